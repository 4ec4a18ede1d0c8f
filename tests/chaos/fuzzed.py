"""`make fuzz-server`: a small fleet at an API server whose answers are changed on their way.

Both fidelities run while pods come and go, until --answers frames of the server were changed. For
many answers, Leases are renewed each second, watches last some 10 s, and kubelets restart. Then the
proxy passes everything as it is, and the API server is restarted, so that every client lists again:
what a changed answer said may have been valid, and wrong. After that every node has to be Ready and
renew its Lease, and every pod has to be where it belongs. There is no traceback, and the processes
hold about what they held before.
"""

import argparse
import asyncio
import itertools
import random
import ssl
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
import uvloop
from support.guard import guarded

from chaos.answer_proxy import HTTP1, HTTP2, AnswerProxy, Mangler
from chaos.chaos import keep, say
from chaos.invariants import check
from chaos.stage import Fleet, Stage, staged
from fleet.controlplane.directory import Certificates, Layout, Pair
from fleet.controlplane.options import APISERVER
from fleet.controlplane.pki import Authority
from fleet.run.control_socket import ask

HELD_AFTER = (
    "every node is Ready",
    "every node renews its Lease",
    "every pod is where it belongs",
    "no object is without an owner",
    "no traceback in the log",
)
SHARES = (0.02, 0.1, 0.3)
"""Of the frames that are changed, in turn: few, so that a story goes on, and many at a time."""
TURN_S = 10.0
BUSY = """
apiVersion: fleet.emulator/v1alpha1
kind: NodeProfile
metadata: {name: busy}
spec:
  kubeletConfiguration: {nodeLeaseDurationSeconds: 4, nodeStatusUpdateFrequency: 5s}
"""
RESTART = {"type": "KubeletRestart"}
SHORT_WATCHES = {APISERVER: ("min-request-timeout=10",)}
GROWTH_MAX = 1.5
"""How much a process may have grown: the allocator keeps what was needed at once."""


def contexts(stage: Stage) -> tuple[ssl.SSLContext, dict[str, ssl.SSLContext]]:
    """Return TLS as the API server's double for fleets, and as a client of the API server."""
    certificates = Certificates.within(Layout(stage.plane.info.directory).pki)
    pair = Pair(stage.root / "proxy.crt", stage.root / "proxy.key")
    Authority.load(certificates.ca).server(pair, "proxy", ("127.0.0.1",))
    inner = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    inner.load_cert_chain(pair.certificate, pair.key)
    inner.set_alpn_protocols([HTTP2, HTTP1])
    outer = {}
    for protocol in (HTTP2, HTTP1):
        outer[protocol] = ssl.create_default_context(cafile=str(certificates.ca.certificate))
        outer[protocol].set_alpn_protocols([protocol])
    return inner, outer


async def change(full: Fleet, mangler: Mangler, options: argparse.Namespace) -> None:
    """Change answers until there are enough, or the time is over."""
    shares = itertools.cycle(SHARES)
    begin_s = time.monotonic()
    while mangler.counts.total() < options.answers:
        if time.monotonic() > begin_s + options.minutes * 60:
            break
        mangler.share = next(shares)
        await asyncio.sleep(TURN_S)
        count, rate = mangler.counts.total(), mangler.counts.total() / (time.monotonic() - begin_s)
        say(f"{count:,} of {mangler.passed:,} frames changed, {rate:.0f} a second")
        if mangler.share == SHARES[-1]:
            await ask(full.directory, {"do": "inject", "fault": RESTART})


async def play(options: argparse.Namespace) -> list[str]:
    """Run it; return what is wrong."""
    async with staged(random.Random(options.seed), SHORT_WATCHES) as stage:
        await stage.deploy(options.pods)
        mangler = Mangler(random.Random(options.seed))
        proxy = AnswerProxy(stage.plane.info.ports[APISERVER], *contexts(stage), mangler)
        port = await proxy.listen()
        profile = stage.root / "busy.yaml"
        profile.write_text(BUSY)
        fleets = [
            await stage.add_fleet(
                name, fidelity, options.nodes, f"--profile={profile}", server=port
            )
            for name, fidelity in (("full", "kubelet"), ("lean", "light"))
        ]
        await asyncio.gather(*(fleet.until_ready() for fleet in fleets))
        before = [psutil.Process(fleet.pid).memory_info().rss for fleet in fleets]
        churning = asyncio.create_task(stage.churn(options.churn))
        await change(fleets[0], mangler, options)
        mangler.share = 0.0
        churning.cancel()
        await stage.plane.kill(APISERVER)
        await stage.revive(APISERVER)
        found = await check(stage, options.limit)
        wrong = [f"{name}: {found[name]}" for name in HELD_AFTER if found[name]]
        say(f"{mangler.counts.total():,} answers changed")
        say("\n".join(f"{count:>8,} {what}" for what, count in sorted(mangler.counts.items())))
        for fleet, rss in zip(fleets, before, strict=True):
            after = psutil.Process(fleet.pid).memory_info().rss
            say(f"{fleet.prefix}: {rss / 1e6:.0f} MB before, {after / 1e6:.0f} MB after")
            if after > GROWTH_MAX * rss:
                wrong.append(f"{fleet.prefix} grew from {rss} to {after}")
            say(f"{fleet.prefix} exits with {await fleet.end()}")
        keep(stage, options.out)
        proxy.close()
        return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(f"{datetime.now(tz=UTC):%Y%m%d}"))
    parser.add_argument("--nodes", type=int, default=60, help="of each fidelity")
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--churn", type=float, default=5.0, help="pods deleted in a second")
    parser.add_argument("--answers", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=20.0, help="at most")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds until all is well")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz-server"))
    options = parser.parse_args()
    with guarded(f"/fuzzed/{time.time_ns()}"):
        wrong = uvloop.run(play(options))
    print("\n".join(wrong) or "all is well")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
