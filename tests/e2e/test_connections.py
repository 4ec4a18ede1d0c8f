"""Connections whose peer falls silent: found by pings as client-go finds them, and left."""

import datetime as dt
import json
import urllib.parse
from pathlib import Path

import pytest
import yaml

from e2e.e2e_world import CONFIRMED, World, eventually
from e2e.forking_proxy import forking_proxy
from fleet.wire.sockets.connection import IDLE_VARIABLE, PING_VARIABLE

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]

PREFIX = "silent"
NODES = 5


def through(world: World, port: int, path: Path) -> Path:
    """Write a kubeconfig whose requests go to another port."""
    document = yaml.safe_load(world.info.kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    path.write_text(yaml.safe_dump(document))
    return path


def renewed_since(world: World, moment: dt.datetime) -> int:
    """Count the nodes whose Lease a kubelet has renewed after a moment."""
    leases = world.items("leases", "-n", "kube-node-lease")
    return sum(
        dt.datetime.fromisoformat(each["spec"]["renewTime"]) > moment
        for each in leases
        if each["metadata"]["name"].startswith(f"{PREFIX}-")
    )


@pytest.mark.parametrize(
    ("idle_s", "ping_s"),
    [
        pytest.param(3, 2, id="set"),
        pytest.param(0, 0, id="as kubelets have it", marks=pytest.mark.slow),
    ],
)
def test_a_silent_peer_is_left(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle_s: int, ping_s: int
) -> None:
    """All connections hang at once; each node dials anew, and the server misses none for long."""
    for name, value in ((IDLE_VARIABLE, idle_s), (PING_VARIABLE, ping_s)):
        monkeypatch.setenv(name, str(value or ""))
    port = urllib.parse.urlsplit(world.info.url).port
    assert port is not None
    with forking_proxy(port) as proxy:
        kubeconfig = through(world, proxy.port, tmp_path / "kubeconfig")
        named = (f"--kubeconfig={kubeconfig}", CONFIRMED)
        with world.spawn(PREFIX, NODES, world.quick(), *named) as run:
            run.until_ready()
            assert proxy.freeze() > NODES
            # What was sent before may still arrive; a renewal is stamped when it is sent.
            since = dt.datetime.now(tz=dt.UTC) + dt.timedelta(seconds=0.5)
            eventually(
                lambda: renewed_since(world, since) == NODES,
                "every node is back",
            )
            proxy.cut()  # or fleet's own client would wait for them at the end
            run.interrupt()
            run.wait()
    summary = json.loads((run.directory / "summary.json").read_text())
    assert summary["connections"]["pings_lost"] >= NODES
    assert summary["connections"]["dials"] >= 2 * NODES
    if idle_s:  # else the silence lasts as long as node-lifecycle waits
        assert summary["nodes"]["ever_not_ready"] == 0
    world.assert_nothing_left(PREFIX)
