"""`python -m bench.scrapes`: what it costs that every node is scraped each 15 s.

Two scrapers, each with a connection of its own to each node that stays open: one reads
/metrics/resource as metrics-server does, one /stats/summary. They are a ServiceAccount's, so that
nodes have the API server review its token and its rights. First a quiet stretch, then the scrapers
come; their first rounds, with a TLS handshake to each node, are told apart.
CPU is the processes' own, lateness that of the Leases in the time series of the same stretch.
"""

import argparse
import asyncio
import json
import math
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import orjson
import psutil
import uvloop

from .accounting import apiserver_of, cpu_s, fleet_tree, rss_mb
from .inside import client, run_time_s

ROOT = Path(__file__).resolve().parents[1]
INSIDE = "--inside"
SETTLE_S = 25.0
PATHS = ("/metrics/resource", "/stats/summary")
NAME, NAMESPACE = "scraper", "default"
ANSWER_S_MAX = 10.0
"""As long as metrics-server waits."""
WARM_ROUNDS = 2
BEGIN_PER_S = 60
"""Nodes a second that a scraper begins with: each is a handshake, and reviews by the API server."""
Json = dict[str, Any]


class Stretch(NamedTuple):
    """What was used in a stretch of time."""

    from_s: float  # by the run's clock
    to_s: float
    fleet_cpu_percent: float
    fleet_rss_mb: float
    apiserver_cpu_percent: float


def main() -> int:
    """Run one fleet, and print its figures as JSON; the exit code tells whether it was valid."""
    parser = argparse.ArgumentParser(prog="bench.scrapes", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--fidelity", choices=("light", "kubelet"), default="light")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two scrapes")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each measured stretch")
    parser.add_argument(INSIDE, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        found = uvloop.run(inside(options.every, options.seconds))
        options.inside.write_text(json.dumps(found))
        return 0
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as scratch:
        out, run_dir = Path(scratch) / "out.json", Path(scratch) / "run"
        command = [
            *(sys.executable, "-m", "fleet.cli", "spawn", f"--nodes={options.nodes}"),
            *(f"--fidelity={options.fidelity}", f"--run-dir={run_dir}", "--", sys.executable),
            *("-m", "bench.scrapes", INSIDE, str(out)),
            *(f"--every={options.every}", f"--seconds={options.seconds}"),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": scratch}
        done = subprocess.run(
            command, check=False, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
        )
        found = json.loads(out.read_text()) if out.exists() else {}
        lines = (run_dir / "timeseries.jsonl").read_bytes().splitlines()
        series = [orjson.loads(line) for line in lines]
    for name in ("idle", "scraped"):
        if name in found:
            found[name]["lease_late_p99_ms"] = lateness_ms(found[name], series)
    found |= {"nodes": options.nodes, "every_s": options.every, "exit_code": done.returncode}
    print(json.dumps(found, indent=2))
    return done.returncode


def lateness_ms(stretch: Mapping[str, float], series: Sequence[Json]) -> float:
    """Return how late Leases were sent: the p99 of the seconds' own p99."""
    late = sorted(
        each["lease"]["late_ms"]["p99"] or 0.0
        for each in series
        if stretch["from_s"] <= each["wall_s"] <= stretch["to_s"]
    )
    return float(late[int(len(late) * 0.99)]) if late else 0.0


class Scraper:
    """One reader of one path of all nodes, each in its turn once in a period."""

    def __init__(self, path: str, urls: Sequence[str], token: str, every_s: float) -> None:
        self.path = path
        self._urls = urls
        self._headers = {"Authorization": f"Bearer {token}"}
        self._every_s = every_s
        self.took_s: list[float] = []
        self.failed: dict[str, int] = {}
        self.bytes = 0

    async def run(self) -> None:
        """Scrape until cancelled."""
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # nodes sign their certificates themselves
        connector = aiohttp.TCPConnector(ssl=context, limit=0, keepalive_timeout=4 * self._every_s)
        timeout = aiohttp.ClientTimeout(total=ANSWER_S_MAX)
        async with (
            aiohttp.ClientSession(
                connector=connector, headers=self._headers, timeout=timeout
            ) as session,
            asyncio.TaskGroup() as tasks,
        ):
            for at, url in enumerate(self._urls):
                phase_s = self._every_s * at / len(self._urls)
                late = math.ceil(max(at / BEGIN_PER_S - phase_s, 0) / self._every_s)
                first_s = phase_s + late * self._every_s
                tasks.create_task(self._node(session, url + self.path, first_s))

    async def _node(self, session: aiohttp.ClientSession, url: str, phase_s: float) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + phase_s
        while True:
            await asyncio.sleep(due_s - loop.time())
            due_s += self._every_s
            began_s = loop.time()
            try:
                async with session.get(url) as answer:
                    self.bytes += len(await answer.read())
                    why = "" if answer.status == 200 else str(answer.status)
            except (aiohttp.ClientError, TimeoutError) as error:
                why = type(error).__name__
            if why:
                self.failed[why] = self.failed.get(why, 0) + 1
            else:
                self.took_s.append(loop.time() - began_s)

    def figures(self) -> Json:
        """Return what was seen since the last time, and forget it."""
        took = sorted(self.took_s)
        found: Json = {"scrapes": len(took), "failed": dict(self.failed)}
        if took:
            found |= {
                "p50_ms": round(1000 * took[len(took) // 2], 1),
                "p99_ms": round(1000 * took[int(len(took) * 0.99)], 1),
                "bytes": self.bytes // len(took),
            }
        self.took_s, self.failed, self.bytes = [], {}, 0
        return found


async def inside(every_s: float, seconds: float) -> Json:
    """Measure from inside of a run."""
    await asyncio.sleep(SETTLE_S)
    idle, _ = await stretch(seconds, [])
    token, urls = await prepare()
    scrapers = [Scraper(path, urls, token, every_s) for path in PATHS]
    running = [asyncio.create_task(each.run()) for each in scrapers]
    ramp_s = len(urls) / BEGIN_PER_S
    first, seen_first = await stretch(ramp_s + every_s * WARM_ROUNDS, scrapers)
    scraped, seen = await stretch(seconds, scrapers)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return {
        "idle": idle._asdict(),
        "first_rounds": {**first._asdict(), "seen": seen_first},
        "scraped": {**scraped._asdict(), "seen": seen},
        "beyond_idle_cpu_percent": round(scraped.fleet_cpu_percent - idle.fleet_cpu_percent, 2),
    }


async def stretch(seconds: float, scrapers: Sequence[Scraper]) -> tuple[Stretch, Json]:
    """Let some time pass; return what was used, and what the scrapers saw."""
    end = begin()
    await asyncio.sleep(seconds)
    return end(), {each.path: each.figures() for each in scrapers}


def begin() -> Callable[[], Stretch]:
    """Begin a stretch of the run that this process is the command of; call what is returned."""
    fleet = psutil.Process(os.getppid())
    timeseries = Path(os.environ["FLEET_RUN_DIR"]) / "timeseries.jsonl"
    apiserver = apiserver_of(fleet)

    def used() -> tuple[float, float, float]:
        return time.monotonic(), cpu_s(fleet_tree(fleet, command=os.getpid())), cpu_s([apiserver])

    from_s, before = run_time_s(timeseries), used()

    def end() -> Stretch:
        after = used()
        span_s = after[0] - before[0]
        return Stretch(
            from_s,
            run_time_s(timeseries),
            round(100 * (after[1] - before[1]) / span_s, 2),
            round(rss_mb(fleet_tree(fleet, command=os.getpid())), 1),
            round(100 * (after[2] - before[2]) / span_s, 2),
        )

    return end


async def prepare() -> tuple[str, list[str]]:
    """Make the ServiceAccount; return its token, and where the nodes answer."""
    url, context = client(Path(os.environ["KUBECONFIG"]))
    rules = [{"apiGroups": [""], "resources": ["nodes/metrics", "nodes/stats"], "verbs": ["get"]}]
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME}
    rights = f"{url}/apis/rbac.authorization.k8s.io/v1"
    accounts = f"{url}/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    named = {"metadata": {"name": NAME}}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:

        async def post(where: str, body: Json) -> Json:
            async with session.post(where, json=body) as answer:
                assert answer.status == 201, await answer.text()
                made: Json = await answer.json()
                return made

        await post(accounts, named)
        await post(f"{rights}/clusterroles", {**named, "rules": rules})
        await post(
            f"{rights}/clusterrolebindings", {**named, "subjects": [subject], "roleRef": reference}
        )
        request = {"spec": {"expirationSeconds": 7200}}
        token = (await post(f"{accounts}/{NAME}/token", request))["status"]["token"]
        async with session.get(f"{url}/api/v1/nodes") as answer:
            nodes = (await answer.json())["items"]
    return token, [endpoint(node["status"]) for node in nodes]


def endpoint(status: Json) -> str:
    """Return where a node answers."""
    [address] = [each["address"] for each in status["addresses"] if each["type"] == "InternalIP"]
    return f"https://{address}:{status['daemonEndpoints']['kubeletEndpoint']['Port']}"


if __name__ == "__main__":
    sys.exit(main())
