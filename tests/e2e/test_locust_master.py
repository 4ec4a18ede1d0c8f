"""A Locust master of its own, as in a chart: fleets join it, are lost, come back and outlive it."""

import contextlib
import csv
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

from e2e.e2e_world import FLEET, Running, World, condition, eventually
from e2e.locust_dashboard import Dashboard, audited

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PREFIX = "pods"
LOOPBACK = "127.0.0.1"
OLDER = "locust==2.43.*"
QUIET_PORTS = range(20_000, 32_000)  # below those that the kernel gives to connections
AWAY_S = float(os.environ.get("AWAY_S", "15"))
"""How long a master hangs; AWAY_S=300 is the five minutes that a user may meet."""


class Master:
    """One `fleet locust master`, and where it listens."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log
        eventually(lambda: '{"fleet"' in self.log, "its ports")
        [line] = [line for line in self.log.splitlines() if line.startswith('{"fleet"')]
        ports = json.loads(line)["fleet"]
        self.port: int = ports["master"]
        self.dashboard = Dashboard(self)

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


def quiet_port() -> int:
    """Return a port that is free, and stays so while no master has it."""
    while True:
        port = random.choice(QUIET_PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((LOOPBACK, port))
            return port


def worker(
    world: World, shard: int, port: int, *arguments: str
) -> contextlib.AbstractContextManager[Running]:
    options = (f"--shard={shard}", f"--locust-master={LOOPBACK}:{port}", "--fidelity=light")
    return world.spawn(PREFIX, 2, *options, "--max-nodes=20", *arguments)


def counts(world: World) -> list[int]:
    """Return how many nodes each of two shards has."""
    names = world.nodes(PREFIX)
    return [sum(name.startswith(f"{PREFIX}-{shard:04d}-") for name in names) for shard in (0, 1)]


def leases(world: World) -> dict[str, str]:
    """Return when the nodes last renewed their Leases."""
    found = world.items("leases.coordination.k8s.io", "-n", "kube-node-lease")
    return {each["metadata"]["name"]: each["spec"]["renewTime"] for each in found}


def test_a_headless_run_ends_by_itself_and_its_figures_are_the_server_s(world: World) -> None:
    since = len(world.audit())
    options = ("--headless", "--users=6", "--spawn-rate=6", "--run-time=20s", "--csv=headless")
    with (
        master(world, *options, LOCUST_EXPECT_WORKERS="2") as ended,
        worker(world, 0, ended.port) as first,
        worker(world, 1, ended.port) as second,
    ):
        for run in (first, second):
            run.ended_well_or_late()
        assert ended.process.wait(120) == 0, ended.log
    rows = {
        (row["Type"], row["Name"]): int(row["Request Count"])
        for row in csv.DictReader((world.root / "headless_stats.csv").read_text().splitlines())
    }
    for resource in ("nodes", "leases"):
        by_shard = [
            audited(world, f"{PREFIX}-{shard:04d}", "create", resource, since) for shard in (0, 1)
        ]
        assert rows["POST", resource] == sum(by_shard)
        assert min(by_shard) >= 3, "three nodes each"
    world.assert_nothing_left(PREFIX)


def test_a_dashboard_is_whole_below_the_path_of_a_proxy(world: World) -> None:
    """A proxy ends TLS and hands each request on as it came, under the name that browsers use."""
    base = "/load/fleet"
    with master(world, f"--web-base-path={base}", "--dashboard-host=fleet.test") as steering:
        link, address = steering.dashboard.link, urlsplit(steering.dashboard.url)
        assert address.path == base
        assert urlsplit(link).path == f"{base}/fleet"
        outside = {"Host": "fleet.test", "X-Forwarded-Proto": "https"}

        def ask(path: str, **said: str) -> tuple[int, Message, str]:
            assert address.port is not None
            connection = http.client.HTTPConnection(LOOPBACK, address.port, timeout=60)
            with contextlib.closing(connection):
                method = "POST" if "body" in said else "GET"
                connection.request(method, path, said.pop("body", None), {**outside, **said})
                answer = connection.getresponse()
                return answer.status, answer.headers, answer.read().decode(errors="replace")

        code, headers, _ = ask(f"{base}?{urlsplit(link).query}")
        assert (code, headers["Location"]) == (303, "./fleet/")
        cookie, _, rules = headers["Set-Cookie"].partition("; ")
        assert rules == f"Path={base}; HttpOnly; SameSite=Strict; Secure"
        assert ask(f"{base}/")[0] == 403
        code, _, page = ask(f"{base}/", Cookie=cookie)
        assert code == 200
        loaded = re.findall(r'(?:src|href)="([^"]*)"', page)
        assert any(each.endswith(".js") for each in loaded)
        for each in (*loaded, "./stats/requests", "./fleet", "./fleet/nodes.csv", "./logs"):
            assert ask(urljoin(f"{base}/", each), Cookie=cookie)[0] == 200, each
        form = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": cookie}
        swarm = {"body": "user_count=1&spawn_rate=1", "Origin": "https://fleet.test", **form}
        assert ask(f"{base}/swarm", **swarm)[0] == 200
        assert ask("/swarm", **swarm)[0] == 404
        assert ask(f"{base}/swarm", **{**swarm, "Origin": "https://evil.test"})[0] == 403
        assert ask("/healthz")[0] == 200


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
            back.end_well_or_late()
        stays.end_well_or_late()
    world.assert_nothing_left(PREFIX)


@pytest.mark.slow
def test_nodes_outlive_masters_that_quit_that_die_and_that_stay_away(world: World) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(master(world, port=quiet_port()))
        hold = "--on-master-quit=hold"
        run = stack.enter_context(worker(world, 0, first.port, hold))
        eventually(first.dashboard.shards_known, "a worker")
        first.dashboard.swarm(5)
        eventually(first.dashboard.shows("running", 5), "5 users")
        before = world.uids(PREFIX)
        first.process.send_signal(signal.SIGTERM)
        run.until("the Locust master has quit; 5 nodes stay")
        address = f"tcp://{LOOPBACK}:{first.port}"
        run.until(f"no Locust master answers at {address} (connection refused); 5 nodes stay")
        second = stack.enter_context(master(world, port=first.port))
        eventually(second.dashboard.shows("running", 5), "a second master has adopted them")
        second.process.kill()
        second.process.wait()  # it has the port as long as it is there
        third = stack.enter_context(master(world, port=first.port))
        run.until("the Locust master does not know us: it was restarted, or is gone")
        eventually(third.dashboard.shows("running", 5), "so has a third")
        after = world.uids(PREFIX)
        assert after == before
        third.dashboard.swarm(3)
        eventually(third.dashboard.shows("running", 3), "3 users")
        run.end_well_or_late()
    world.assert_nothing_left(PREFIX)


@pytest.mark.slow
@pytest.mark.timeout(300 + AWAY_S)
def test_a_master_that_hangs_for_long_is_missed_and_costs_no_node(world: World) -> None:
    with master(world) as hangs, worker(world, 0, hangs.port) as run:
        eventually(hangs.dashboard.shards_known, "a worker")
        hangs.dashboard.swarm(4)
        eventually(hangs.dashboard.shows("running", 4), "4 users")
        before = world.uids(PREFIX)
        renewed = leases(world)
        hangs.process.send_signal(signal.SIGSTOP)
        since_s = time.monotonic()
        address = f"tcp://{LOOPBACK}:{hangs.port}"
        reason = "what listens there hangs, or is not the port for workers"
        run.until(f"no Locust master answers at {address} ({reason}); 4 nodes stay")
        while time.monotonic() < since_s + AWAY_S:
            time.sleep(1)
        nodes = world.nodes(PREFIX)
        assert {name: node["metadata"]["uid"] for name, node in nodes.items()} == before
        assert {condition(node, "Ready") for node in nodes.values()} == {"True"}
        eventually(lambda: all(leases(world)[name] > renewed[name] for name in before), "renewals")
        hangs.process.send_signal(signal.SIGCONT)

        def has_us_again() -> bool:
            since = run.log.rpartition("nodes stay")[2]
            return "answers again" in since or "joined the Locust master as worker" in since

        eventually(has_us_again, "the master has us again")
        eventually(hangs.dashboard.shows("running", 4), "4 users again")
        hangs.dashboard.swarm(2)
        eventually(hangs.dashboard.shows("running", 2), "2 users")
        assert set(world.nodes(PREFIX)) == set(sorted(before)[:2])
        run.end_well_or_late()
    world.assert_nothing_left(PREFIX)


@pytest.fixture(scope="module")
def older_locust(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install a release of Locust that fleet was not made for, beside what it needs."""
    directory = tmp_path_factory.mktemp("older")
    command = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")
    done = subprocess.run(
        (*command, f"--target={directory}", OLDER), capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"{OLDER}: {done.stderr}")
    return directory


@pytest.mark.slow
def test_a_master_of_another_release_is_refused_in_one_line(
    world: World, older_locust: Path
) -> None:
    told = "fleet: its locustfile needs Locust 2.47 or a later 2.x, this is 2.4"
    for arguments in (
        ("locust", "master", "--master-bind-port=0", "--web-port=0"),
        ("spawn", "--nodes=1", "--dashboard"),
    ):
        done = subprocess.run(
            (*FLEET, *arguments),
            cwd=world.root,
            env={**os.environ, "PYTHONPATH": str(older_locust)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 3, done.stderr
        assert told in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_master_without_fleet_s_locustfile_is_told_apart(
    world: World, older_locust: Path, tmp_path: Path
) -> None:
    """It deals its own users to us, and is of another release: the handshake lets us in."""
    port, web = quiet_port(), quiet_port()
    locustfile = tmp_path / "mine.py"
    locustfile.write_text(
        "from locust import User, task\n\n\nclass Api(User):\n    @task\n    def idle(self): ...\n"
    )
    ports = (f"--master-bind-port={port}", f"--web-port={web}", f"--web-host={LOOPBACK}")
    options = ("--master", *ports, "--autostart", "--expect-workers=1", "--users=2")
    dashboard = Dashboard(url=f"http://{LOOPBACK}:{web}")
    log = tmp_path / "log"
    with log.open("w") as output, worker(world, 0, port) as run:
        stock = subprocess.Popen(
            (sys.executable, "-m", "locust", "-f", str(locustfile), *options),
            env={**os.environ, "PYTHONPATH": str(older_locust)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            told = "a fleet worker runs VirtualNode only, not Api: start the master with"
            run.until(told)
            eventually(lambda: told in dashboard.get("/exceptions"), "the master is told as well")
            assert not world.nodes(PREFIX)
        finally:
            stock.kill()
            stock.wait()
        assert "Starting Locust 2.4" in log.read_text()
        run.end_well_or_late()
    world.assert_nothing_left(PREFIX)
