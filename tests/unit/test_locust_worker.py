"""Why a Locust master may not have answered, as far as its address tells."""

import asyncio
import socket

import pytest
import zmq

from fleet import locust_worker
from fleet.locust_worker import obstacle

LOOPBACK = "127.0.0.1"


@pytest.mark.parametrize(
    ("listens", "told"),
    [
        (False, "connection refused"),
        (True, "what listens there hangs, or is not the port for workers"),  # a web server
    ],
)
def test_no_master_is_there(
    monkeypatch: pytest.MonkeyPatch,
    listens: bool,  # noqa: FBT001
    told: str,
) -> None:
    monkeypatch.setattr(locust_worker, "PROBE_S_MAX", 0.2)
    with socket.socket() as there:
        there.bind((LOOPBACK, 0))
        if listens:
            there.listen()
        assert asyncio.run(obstacle(LOOPBACK, there.getsockname()[1])) == told


def test_a_master_is_there_and_says_nothing() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port(f"tcp://{LOOPBACK}")
        found = asyncio.run(obstacle(LOOPBACK, port))
    assert found == "it is reached, but says nothing that a Locust master says"
