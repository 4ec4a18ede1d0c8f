"""A Locust master of its own, as in a chart: fleets join it, are lost, come back and outlive it."""

import contextlib
import csv
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_world import FLEET, Running, World, eventually
from locust_dashboard import Dashboard, audited

pytest_plugins = ("e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PREFIX = "pods"
LOOPBACK = "127.0.0.1"


class Master:
    """One `fleet locust master`, and where it listens."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log
        eventually(lambda: '{"fleet"' in self.log, "its ports")
        [line] = [line for line in self.log.splitlines() if line.startswith('{"fleet"')]
        ports = json.loads(line)["fleet"]
        self.port: int = ports["master"]
        self.dashboard = Dashboard(url=f"http://{LOOPBACK}:{ports['web']}")

    @property
    def log(self) -> str:
        return self._log.read_text()


@contextlib.contextmanager
def master(world: World, *arguments: str, port: int = 0, **variables: str) -> Iterator[Master]:
    log = world.root / f"master-{len(list(world.root.glob('master-*')))}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            (*FLEET, "locust", "master", f"--master-bind-port={port}", "--web-port=0", *arguments),
            cwd=world.root,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
        )
    with process:
        try:
            yield Master(process, log)
        finally:
            process.kill()


def worker(
    world: World, shard: int, port: int, *arguments: str
) -> contextlib.AbstractContextManager[Running]:
    options = (f"--shard={shard}", f"--locust-master={LOOPBACK}:{port}", "--fidelity=light")
    return world.spawn(PREFIX, 2, *options, *arguments)


def counts(world: World) -> list[int]:
    """Return how many nodes each of two shards has."""
    names = world.nodes(PREFIX)
    return [sum(name.startswith(f"{PREFIX}-{shard:04d}-") for name in names) for shard in (0, 1)]


def test_a_headless_run_ends_by_itself_and_its_figures_are_the_server_s(world: World) -> None:
    since = len(world.audit())
    options = ("--headless", "--users=6", "--spawn-rate=6", "--run-time=12s", "--csv=headless")
    with (
        master(world, *options, LOCUST_EXPECT_WORKERS="2") as ended,
        worker(world, 0, ended.port) as first,
        worker(world, 1, ended.port) as second,
    ):
        eventually(lambda: counts(world) == [3, 3], "three nodes each")
        assert [run.wait() for run in (first, second)] == [0, 0], (first.log, second.log)
        assert ended.process.wait(120) == 0, ended.log
    rows = {
        (row["Type"], row["Name"]): int(row["Request Count"])
        for row in csv.DictReader((world.root / "headless_stats.csv").read_text().splitlines())
    }
    for resource in ("nodes", "leases"):
        assert rows["POST", resource] == audited(world, PREFIX, "create", resource, since) == 6
    world.assert_nothing_left(PREFIX)


@pytest.mark.slow
def test_the_nodes_of_a_lost_shard_move_and_go_when_it_returns(world: World) -> None:
    mine = ("--on-master-quit=hold", "--run-id=fixed", "--holder=pod-1")
    with (
        master(world, FLEET_SHARD_LOSS="move") as steering,
        worker(world, 0, steering.port) as stays,
    ):
        dashboard = steering.dashboard
        with worker(world, 1, steering.port, *mine) as lost:
            eventually(lambda: len(dashboard.shards_known()) == 2, "two workers")
            dashboard.swarm(8)
            eventually(dashboard.shows("running", 8), "8 users")
            assert counts(world) == [4, 4]
            with worker(world, 1, steering.port) as stranger:
                assert stranger.wait() == 3
                assert f"prefix {PREFIX}-0001 is in use by run fixed" in stranger.log
            lost.process.kill()
        eventually(lambda: counts(world) == [8, 4], "the lost shard's share on the other")
        with worker(world, 1, steering.port, *mine) as back:
            back.until("adopted 4 nodes that an earlier run left")
            eventually(lambda: counts(world) == [8, 0], "the orphans gone")
            eventually(dashboard.shows("running", 8), "8 users")
            dashboard.swarm(12)
            eventually(lambda: counts(world) == [8, 4], "growth on the emptiest")
            eventually(dashboard.shows("running", 12), "12 users")
            dashboard.stop()
            eventually(lambda: counts(world) == [0, 0], "no node left")
            back.end()
        stays.end()
    world.assert_nothing_left(PREFIX)


@pytest.mark.slow
def test_nodes_outlive_masters_that_quit_that_die_and_that_stay_away(world: World) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(master(world))
        hold = "--on-master-quit=hold"
        run = stack.enter_context(worker(world, 0, first.port, hold))
        eventually(first.dashboard.shards_known, "a worker")
        first.dashboard.swarm(5)
        eventually(first.dashboard.shows("running", 5), "5 users")
        before = {name: node["metadata"]["uid"] for name, node in world.nodes(PREFIX).items()}
        first.process.send_signal(signal.SIGTERM)
        run.until("the Locust master has quit; 5 nodes stay")
        address = f"tcp://{LOOPBACK}:{first.port}"
        run.until(f"no Locust master answers at {address} (connection refused); 5 nodes stay")
        second = stack.enter_context(master(world, port=first.port))
        eventually(second.dashboard.shows("running", 5), "a second master has adopted them")
        second.process.kill()
        third = stack.enter_context(master(world, port=first.port))
        run.until("the Locust master does not know us: it was restarted, or is gone")
        eventually(third.dashboard.shows("running", 5), "so has a third")
        after = {name: node["metadata"]["uid"] for name, node in world.nodes(PREFIX).items()}
        assert after == before
        third.dashboard.swarm(3)
        eventually(third.dashboard.shows("running", 3), "3 users")
        run.end()
    world.assert_nothing_left(PREFIX)
