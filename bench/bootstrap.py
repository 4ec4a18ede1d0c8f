"""`python -m bench.bootstrap`: how fast nodes get certificates, and nothing else.

All nodes ask at once, each over a TLS connection of its own, for a certificate from a local control
plane, whose controller-manager approves and signs. Kubelets do not start, so the rate is that of
bootstrapping alone. The lag is what a kubelet's timers would have had of it.
"""

import argparse
import asyncio
import time
from typing import cast

import psutil
import uvloop

from fleet.background import Background
from fleet.clock import TICK_NS, Draws, SystemClock
from fleet.cluster.api_client import Cluster
from fleet.cluster.credentials import ClusterSelection
from fleet.controlplane.controlplane import ControlPlane
from fleet.host.machine import Load, raise_descriptors
from fleet.host.node_certificates import CertificateContext, NodeCertificates, open_bootstrap
from fleet.host.reactor_loop import ReactorLoop
from fleet.k8s.effects import NodeId
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.profile.loader import load_mix
from fleet.profile.settings import IdentityMode, Settings
from fleet.reactor.process import Entry
from fleet.reactor.reactor import Reactor
from fleet.wire.api.requests import Caller
from fleet.wire.sockets.dials import Endpoint
from fleet.wire.sockets.transport import Transport


async def bench(nodes: int, at_once: int) -> None:
    """Bootstrap so many nodes and print what it took."""
    loop = asyncio.get_running_loop()
    settings = Settings(nodes=nodes, identity=IdentityMode.CSR)
    model = load_mix().model_of(0)
    raise_descriptors(Load(nodes, settings.fidelity))
    reactor = Reactor(SystemClock(), Draws(1))
    driver = ReactorLoop(reactor, loop)
    done = asyncio.Event()
    background = Background(print)
    issued: list[float] = []

    def on_ready(_node: NodeId, _context: CertificateContext) -> None:
        issued.append(time.monotonic())
        if len(issued) == nodes:
            done.set()

    async with (
        ControlPlane() as plane,
        await Cluster.connect(ClusterSelection(kubeconfig=plane.info.token_kubeconfig)) as cluster,
        open_bootstrap(settings, cluster, "bench", plane.info, background) as bootstrap,
    ):
        assert bootstrap is not None
        user = cluster.credentials
        endpoint = Endpoint(user.host, user.port, user.server_name)

        def transport(authorization: bytes | None) -> Transport:
            return Transport(
                endpoint,
                user.ssl_context(with_client_certificate=False),
                user_agent=b"kubelet/bench",
                authorization=authorization,
                accept=b"application/json",
                now_ns=reactor.clock.now_ns,
                inbox=reactor.inbox,
                on_ready=driver.wake,
                loop=loop,
            )

        first, renewal = transport(bootstrap.authorization), transport(None)
        certificates = NodeCertificates(
            reactor,
            Draws(1),
            bootstrap.store,
            user.ssl_context(with_client_certificate=False),
            bootstrap=first,
            renewal=renewal,
            on_ready=on_ready,
            on_renewed=lambda _node: None,
            approve=None,
        )
        kubelet, caller = cast("VirtualKubelet", object()), cast("Caller", None)
        reactor.kubelets.entries += [Entry(kubelet, caller, node) for node in range(nodes)]
        lags: list[float] = []
        driver.start()
        watch = asyncio.create_task(measure_lag(lags))
        process, server = psutil.Process(), psutil.Process(plane.pids["kube-apiserver"])
        cpu_s, server_s, began_s = cpu(process), cpu(server), time.monotonic()
        for slot in range(nodes):
            while slot - len(issued) >= at_once:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            name = settings.node_name(slot)
            certificates.add(NodeId(slot), name, (), model)
            if slot % 20 == 19:
                await asyncio.sleep(0)
        await done.wait()
        watch.cancel()
        took_s = issued[-1] - began_s
        cpu_s, server_s = cpu(process) - cpu_s, cpu(server) - server_s
        driver.stop()
        for each in (first, renewal):
            await each.close()
    lags.sort()
    print(f"{nodes} nodes, {at_once} at a time, {psutil.cpu_count()} cores")
    print(f"  certificates  {took_s:.1f} s, {nodes / took_s:.0f}/s")
    print(f"  fleet         {cpu_s / nodes * 1e3:.2f} ms CPU a node, connection included")
    print(f"  API server    {server_s / nodes * 1e3:.2f} ms CPU a node")
    print(
        f"  loop late     p50 {lags[len(lags) // 2]:.1f} ms, p99 {lags[-len(lags) // 100]:.1f} ms"
    )


async def measure_lag(lags: list[float]) -> None:
    """Write down how late a 20 ms timer of the same loop is, in milliseconds."""
    step_s = TICK_NS / 1e9
    due_s = time.monotonic() + step_s
    while True:
        await asyncio.sleep(due_s - time.monotonic())
        lags.append((time.monotonic() - due_s) * 1e3)
        due_s = max(due_s + step_s, time.monotonic())


def cpu(process: psutil.Process) -> float:
    """Return the CPU seconds of a process."""
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="bench.bootstrap", description=__doc__)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=2000)
    options = parser.parse_args()
    uvloop.run(bench(options.nodes, options.at_once))


if __name__ == "__main__":
    main()
