"""The command that the bench runs inside `fleet spawn`: a quiet minute, then pods.

Pods are bound by their creator (spec.nodeName), so that the scheduler is no part of the figure, and
created and deleted by a client of its own with many requests at a time. "Running" and "gone" are
what that client's watch sees.
"""

import asyncio
import base64
import contextlib
import json
import os
import ssl
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil
import yaml

from .accounting import apiserver_of, components, cpu_s, fleet_tree, rss_mb

SETTLE_S = 25.0  # the first leases come 10 s after their nodes, and start-up events end
IN_FLIGHT = 64
NAMESPACE = "bench"
RUNNING = "Running"
Json = dict[str, Any]
DEADLINE_S = 300.0
PODS_S = 40.0  # so many a second at least are waited for beyond that
RETRY_S = 0.1
"""How long a watch waits that was refused, while nobody answers at the API server's port."""
POD_SPEC: Json = {"containers": [{"name": "c", "image": "registry.k8s.io/pause:3.10"}]}


def client(kubeconfig: Path) -> tuple[str, ssl.SSLContext]:
    """Return URL and TLS context of the administrator."""
    content = yaml.safe_load(kubeconfig.read_text())
    cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    with tempfile.NamedTemporaryFile() as pair:
        pair.write(base64.b64decode(user["client-certificate-data"]))
        pair.write(base64.b64decode(user["client-key-data"]))
        pair.flush()
        context.load_cert_chain(pair.name)
    return cluster["server"], context


async def each(count: int, work: Callable[[int], Awaitable[None]]) -> None:
    """Do `work(i)` for all i, many at a time."""
    todo = iter(range(count))

    async def worker() -> None:
        for index in todo:
            await work(index)

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


async def follow(session: aiohttp.ClientSession, url: str, see: Callable[[Json, int], int]) -> None:
    """Watch what is at `url` for ever; `see` takes each event and returns the version after it.

    A busy API server ends watches whose reader is late, and may be gone for a while: as every
    client does, go on from the last version seen, or begin anew where the server no longer knows
    it.
    """
    version = 0
    while True:
        is_answered = False
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async with session.get(
                f"{url}?watch=true&resourceVersion={version}",
                timeout=aiohttp.ClientTimeout(total=None),
            ) as response:
                is_answered = response.status == 200
                if response.status == 410:
                    version = 0
                buffer = b""
                async for chunk in response.content.iter_any():
                    if not is_answered:
                        continue  # a server that starts answers with a Status
                    *lines, buffer = (buffer + chunk).split(b"\n")
                    for line in lines:
                        version = see(orjson.loads(line), version)
        if not is_answered:
            await asyncio.sleep(RETRY_S)


class Phases:
    """The phase of every pod, as a client sees it; gone ones are removed."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.running = 0

    def see(self, event: Json, version: int) -> int:
        """Take one event of the watch; return the version to go on from."""
        if event["type"] == "ERROR":
            self.states.clear()
            self.running = 0
            return 0
        metadata = event["object"]["metadata"]
        if event["type"] == "BOOKMARK":
            return int(metadata["resourceVersion"])
        self.running -= self.states.pop(metadata["name"], "") == RUNNING
        if event["type"] != "DELETED":
            phase = event["object"]["status"].get("phase", "")
            self.states[metadata["name"]] = phase
            self.running += phase == RUNNING
        return max(version, int(metadata["resourceVersion"]))


async def until(condition: Callable[[], bool], limit_s: float = DEADLINE_S) -> float | None:
    """Wait for a condition, checked every 20 ms; return how long it took, None if too long."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit_s:
            return None
        await asyncio.sleep(0.02)
    return round(time.monotonic() - began, 1)


def session_of(context: ssl.SSLContext) -> aiohttp.ClientSession:
    """Make a client for many requests at a time beside two watches."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=IN_FLIGHT + 2))


async def make_namespace(session: aiohttp.ClientSession, url: str) -> None:
    """Create the namespace of the pods, unless it is there, and wait until it takes them."""
    body = {"metadata": {"name": NAMESPACE}}
    async with session.post(f"{url}/api/v1/namespaces", json=body) as answer:
        assert answer.status in (201, 409), await answer.text()
    account = f"{url}/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
    while (await session.get(account)).status != 200:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.1)


async def pods(url: str, context: ssl.SSLContext, count: int) -> dict[str, float | None]:
    """Create and delete bound pods; return how long all took to be Running, and gone.

    None: not within DEADLINE_S and what so many pods may take.
    """
    async with session_of(context) as session:
        await make_namespace(session, url)
        async with session.get(f"{url}/api/v1/nodes") as answer:
            names = sorted(each["metadata"]["name"] for each in (await answer.json())["items"])
        phases = Phases()
        states = phases.states
        path = f"{url}/api/v1/namespaces/{NAMESPACE}/pods"
        watching = asyncio.create_task(follow(session, path, phases.see))

        async def create(index: int) -> None:
            pod = {
                "metadata": {"name": f"p-{index:05d}"},
                "spec": {"nodeName": names[index % len(names)], **POD_SPEC},
            }
            async with session.post(path, json=pod) as response:
                assert response.status in (201, 409), await response.text()

        async def delete(index: int) -> None:
            async with session.delete(f"{path}/p-{index:05d}") as response:
                assert response.status in (200, 404), await response.text()

        creating = asyncio.create_task(each(count, create))
        limit_s = DEADLINE_S + count / PODS_S
        running_s = await until(lambda: phases.running == count, limit_s)
        await creating
        await asyncio.sleep(5)
        deleting = asyncio.create_task(each(count, delete))
        gone_s = await until(lambda: deleting.done() and not states, limit_s)
        await deleting
        watching.cancel()
        return {"pods_running_s": running_s, "pods_gone_s": gone_s}


def run_time_s(timeseries: Path) -> float:
    """Return how old the run is by its own clock: the time of its newest sample."""
    return float(orjson.loads(timeseries.read_bytes().splitlines()[-1])["wall_s"])


def main() -> None:
    """Measure and write what was measured."""
    out, count, idle_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    fleet = psutil.Process(os.getppid())
    apiserver, plane = apiserver_of(fleet), list(components(fleet).values())

    def used_s() -> float:
        return cpu_s(fleet_tree(fleet, command=os.getpid()))

    result: dict[str, float | None] = {
        "pods": count,
        "fleet_cpu_s_at_start": round(used_s(), 1),
        "controlplane_cpu_s_at_start": round(cpu_s(plane), 1),
    }
    time.sleep(SETTLE_S)
    timeseries = Path(os.environ["FLEET_RUN_DIR"]) / "timeseries.jsonl"
    before = (time.monotonic(), used_s(), cpu_s([apiserver]))
    result["idle_from_s"] = run_time_s(timeseries)
    time.sleep(idle_s)
    after = (time.monotonic(), used_s(), cpu_s([apiserver]))
    span = after[0] - before[0]
    result |= {
        "idle_to_s": run_time_s(timeseries),
        "idle_fleet_cpu_percent": round(100 * (after[1] - before[1]) / span, 2),
        "idle_fleet_rss_mb": round(rss_mb(fleet_tree(fleet, command=os.getpid())), 1),
        "idle_apiserver_cpu_percent": round(100 * (after[2] - before[2]) / span, 1),
        "apiserver_rss_mb": round(apiserver.memory_info().rss / 1e6),
    }
    url, context = client(Path(os.environ["KUBECONFIG"]))
    result |= asyncio.run(pods(url, context, count))
    out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
