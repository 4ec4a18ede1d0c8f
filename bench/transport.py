"""Measure the wire engine: CPU per PUT, memory per connection.

    python bench/transport.py [--connections 5000] [--rate 500] [--flush-ms 20] [--seconds 10]
                                    [--server HOST:PORT --ca FILE]

Without --server the test peer runs as a child. Any HTTP/2 server that answers every path will do;
`/bytes?n=400000` is to answer 400 KB and `/watch` to stay open, else those figures are left out.
"""

# ruff: noqa: ASYNC110 - it polls, as a reactor that turns by the clock does
import argparse
import asyncio
import gc
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "wire"))

from peer import make_certificate

from fleet.wire.http2.http2_codec import Inbox
from fleet.wire.http2.messages import ContentType, Request, Response, StreamOpened
from fleet.wire.sockets.dials import Endpoint
from fleet.wire.sockets.transport import Transport

BODY = b'{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"node"}}' * 5
PUT = Request(b"PUT", b"/leases/fleet-00000?timeout=10s", BODY, ContentType.JSON, timeout_ns=10**10)
BIG = Request(b"GET", b"/bytes?n=400000")
WATCH = Request(b"GET", b"/watch?timeoutSeconds=500", stream=True)


class Bench:
    """One transport, its inbox, and how to wait for answers."""

    def __init__(self, endpoint: Endpoint, ca: str, loop: asyncio.AbstractEventLoop) -> None:
        self.inbox: Inbox = []
        self.responses = 0
        self.opened = 0  # watches
        self.failures = 0
        self.latencies: list[int] = []
        self.transport = Transport(
            endpoint,
            ssl.create_default_context(cafile=ca),
            user_agent=b"kubelet/v1.36.3 (linux/amd64) kubernetes/0123456",
            authorization=b"Bearer " + b"t" * 1000,
            accept=b"application/vnd.kubernetes.protobuf,application/json",
            now_ns=time.monotonic_ns,
            inbox=self.inbox,
            on_ready=self.take,
            loop=loop,
        )

    def take(self) -> None:
        for _, entry in self.inbox:
            if isinstance(entry, Response):
                self.responses += 1
                self.failures += entry.code != 200
                self.latencies.append(entry.arrived_ns - entry.sent_ns)
            elif isinstance(entry, StreamOpened):
                self.opened += 1
        self.inbox.clear()

    async def each(
        self, request: Request, connections: int, times: int = 1, at_once: int = 100
    ) -> None:
        """Send a request on every connection, `at_once` at a time, and wait for the answers."""
        sent, begun = 0, self.responses
        for _ in range(times):
            for pool in range(connections):
                self.transport.send(pool, request, pool)
                sent += 1
                while sent - (self.responses - begun) >= at_once:
                    self.transport.flush()
                    await asyncio.sleep(0.001)
        self.transport.flush()
        while self.responses - begun < sent:
            await asyncio.sleep(0.002)

    async def steady(self, connections: int, rate: int, flush_s: float, seconds: float) -> float:
        """Spread PUTs evenly over the connections; return the CPU seconds of one."""
        loop = asyncio.get_running_loop()
        transport, begun, sent = self.transport, self.responses, 0
        cpu_s, start = time.process_time(), loop.time()
        turn = 0
        swept = start
        self.latencies.clear()
        while (now := loop.time()) < start + seconds:
            due = int((now - start) * rate)
            for number in range(sent, due):
                transport.send(number * 7919 % connections, PUT, number)
            sent = due
            transport.flush()
            if now - swept >= 1:
                swept = now
                transport.sweep(time.monotonic_ns())
            turn += 1
            await asyncio.sleep(max(0.0, start + turn * flush_s - loop.time()))
        while self.responses - begun < sent:
            await asyncio.sleep(0.002)
        return (time.process_time() - cpu_s) / max(sent, 1)


def rss() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


async def measure(options: argparse.Namespace, endpoint: Endpoint, ca: str) -> None:
    count = options.connections
    bench = Bench(endpoint, ca, asyncio.get_running_loop())
    before = rss()
    for pool in range(count):
        bench.transport.open_pool(pool, b"system:node:fleet-%05d" % pool)
    cpu_s, start = time.process_time(), time.monotonic()
    await bench.each(PUT, count)
    print(
        f"{count} connections in {time.monotonic() - start:.1f} s, "
        f"{(time.process_time() - cpu_s) / count * 1e6:.0f} us CPU each"
    )
    await bench.each(PUT, count)
    print(f"memory per connection: {(rss() - before) / count / 1024:.1f} KB")
    gc.freeze()  # as the reactor does after the bring-up
    gc.set_threshold(50_000)
    for flush_ms in options.flush_ms:
        used_s = await bench.steady(count, options.rate, flush_ms / 1000, options.seconds)
        bench.latencies.sort()
        ms = [bench.latencies[int(len(bench.latencies) * q)] / 1e6 for q in (0.5, 0.99)]
        print(
            f"flush every {flush_ms} ms, {options.rate} PUT/s: {used_s * 1e6:.1f} us CPU per PUT, "
            f"answer after p50 {ms[0]:.2f} p99 {ms[1]:.2f} ms"
        )
    cpu_s = time.process_time()
    await bench.each(PUT, count, times=4, at_once=1000)
    print(
        f"as fast as it goes: {(time.process_time() - cpu_s) / count / 4 * 1e6:.1f} us CPU per PUT"
    )
    if options.server and not options.full:
        return
    idle = rss()
    await bench.each(BIG, count, at_once=20)
    print(f"left by a 400 KB answer: {(rss() - idle) / count / 1024:.1f} KB per connection")
    idle = rss()
    for pool in range(count):
        for number in range(5):
            bench.transport.send(pool, WATCH, (pool, number))
    bench.transport.flush()
    while bench.opened < 5 * count:
        await asyncio.sleep(0.05)
        bench.transport.sweep(time.monotonic_ns())
    await asyncio.sleep(2)
    print(
        f"5 watches: {(rss() - idle) / count / 1024:.1f} KB more, "
        f"{(rss() - before) / count / 1024:.1f} KB per connection in all"
    )
    cpu_s = time.process_time()
    for _ in range(100):
        bench.transport.sweep(time.monotonic_ns())
    print(f"a sweep: {(time.process_time() - cpu_s) * 10:.2f} ms; failures {bench.failures}")
    await bench.transport.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--flush-ms", type=int, nargs="+", default=[20])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--server", default="")
    parser.add_argument("--ca", default="")
    parser.add_argument("--full", action="store_true", help="the server knows /bytes and /watch")
    options = parser.parse_args()
    if options.server:
        host, _, port = options.server.rpartition(":")
        uvloop.run(measure(options, Endpoint(host, int(port)), options.ca))
        return
    with tempfile.TemporaryDirectory() as folder:
        files = make_certificate(Path(folder))
        peer = [
            sys.executable,
            str(Path(__file__).parents[1] / "tests" / "wire" / "peer.py"),
            *map(str, files),
        ]
        with subprocess.Popen(peer, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            port = child.stdout.readline().decode()
            uvloop.run(measure(options, Endpoint("127.0.0.1", int(port)), str(files.certificate)))
            child.stdin.close()


if __name__ == "__main__":
    main()
