"""What fleet's own requests take of a server: over TLS on loopback, one server a test."""

import asyncio
import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from test_cluster_connection import Handler, kubeconfig_for, serving
from test_cluster_connection import certificate as certificate  # noqa: PLC0414 - a fixture

from fleet.cluster import api_client
from fleet.cluster.api_client import BACKOFF_MAX_S, Answer, Channel
from fleet.cluster.cluster import ClusterSelection
from fleet.errors import SetupError

Outcome = tuple[Answer, list[float]]


def ask(tmp_path: Path, certificate: Path, handler: Handler) -> Outcome:
    """Return the answer, and how long was waited before each further try."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def scenario() -> Outcome:
        async with serving(certificate, handler) as port:
            path = kubeconfig_for(tmp_path, port, certificate)
            credentials = await ClusterSelection(kubeconfig=path).load()
            async with Channel(credentials, sleep) as channel:
                return await channel.api("preflight").request("GET", "/x"), waits

    return asyncio.run(scenario())


def answering(body: bytes, **headers: str) -> Handler:
    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=body, headers=headers)

    return handler


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_an_answer_stops_at_the_limit(
    tmp_path: Path,
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
    pack: Callable[[bytes], bytes],
) -> None:
    monkeypatch.setattr(api_client, "BODY_BYTES_MAX", 2**20)
    headers = {} if pack is bytes else {"Content-Encoding": "gzip"}
    small = answering(pack(b'{"a":1}'), **headers)
    assert ask(tmp_path, certificate, small)[0].body == {"a": 1}
    large = answering(pack(b" " * (2**20 + 1)), **headers)
    with pytest.raises(SetupError, match=r"127.0.0.1:\d+: an answer above"):
        ask(tmp_path, certificate, large)


@pytest.mark.parametrize(
    ("value", "wait_s"), [("2", 2.0), ("900", BACKOFF_MAX_S)] + [
        (value, 0.1 * 3.0) for value in ("-1", "9" * 400, "1e9", "\u00b2", "Fri, 1 Jan 2100")
    ],
)  # fmt: skip
def test_a_retry_after_beyond_sense_is_ignored(
    tmp_path: Path, certificate: Path, value: str, wait_s: float
) -> None:
    tries = []

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        tries.append(1)
        return web.Response(status=503 if len(tries) == 1 else 200, headers={"Retry-After": value})

    answer, waits = ask(tmp_path, certificate, handler)
    assert answer.ok
    assert waits == pytest.approx([wait_s])
