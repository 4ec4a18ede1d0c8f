"""A real Locust master over a real fleet: what is asked for is there, and is counted."""

import json
import os
import signal
import time

import psutil
import pytest

from e2e.e2e_world import POLL_S, World, assert_killed_and_adopted, children, eventually
from e2e.locust_dashboard import Dashboard, audited

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PREFIX = "dash"
SPAWN = ("--dashboard", "--rate=20", "--fidelity=light")
QUIET_LOOKS = 30  # 3 s: a master that begins by itself looks once a second


def test_nodes_follow_the_dashboard_and_are_counted(world: World) -> None:
    with world.spawn(PREFIX, 12, *SPAWN, "--max-nodes=25") as run:
        run.until("dashboard: http://")
        dashboard = Dashboard(run)
        eventually(dashboard.shows("running", 12), "12 users")
        assert set(world.nodes(PREFIX)) == {f"{PREFIX}-{slot:05d}" for slot in range(12)}

        dashboard.swarm(25)
        eventually(dashboard.shows("running", 25), "25 users")
        assert len(world.nodes(PREFIX)) == 25
        dashboard.swarm(7)
        eventually(dashboard.shows("running", 7), "7 users")
        assert set(world.nodes(PREFIX)) == {f"{PREFIX}-{slot:05d}" for slot in range(7)}

        dashboard.stop()
        eventually(dashboard.shows("stopped", 0), "stopped")
        assert world.nodes(PREFIX) == {}
        since = len(world.audit())
        dashboard.swarm(9)
        eventually(dashboard.shows("running", 9), "9 users")

        def all_counted() -> bool:
            return all(
                dashboard.count("POST", resource)
                == audited(world, PREFIX, "create", resource, since)
                for resource in ("nodes", "leases")
            )

        eventually(all_counted, "the counts of the API server's audit log")
        assert dashboard.count("POST", "nodes") >= 9  # more if one had to be repeated

        row = "fleet-0000,9,9,"  # shard, target, registered: of the last report
        eventually(lambda: row in dashboard.get("/fleet/nodes.csv"), "its row in the tab Fleet")
        assert [each["shard"] for each in dashboard.shards()] == ["fleet-0000"]
        assert "canvas" in dashboard.get("/fleet")
        run.end_well_or_late()
    world.assert_nothing_left(PREFIX)
    written = {path.name for path in run.directory.iterdir()}
    assert {"locust.html", "locust.json", "locust_stats.csv", "summary.json"} <= written
    assert [each["name"] for each in run.summary()["phases"]] == ["bring-up", "steady"]


def test_nobody_but_who_has_the_token_steers(world: World) -> None:
    with world.spawn(PREFIX, 4, *SPAWN) as run:
        run.until("dashboard: http://")
        dashboard = Dashboard(run)
        eventually(dashboard.shows("running", 4), "4 users")
        before = world.uids(PREFIX)
        key = {"Authorization": f"Bearer {dashboard.token}"}
        form = {"user_count": 40, "spawn_rate": 40}
        report = run.directory / "of-others.html"
        for told, code, words in (
            ({}, 403, "It needs a token"),
            ({"Origin": "https://evil.test", **key}, 403, "another site"),
            ({"Origin": dashboard.url.replace("127.0.0.1", "localhost"), **key}, 403, "another"),
            ({"Sec-Fetch-Site": "same-site", **key}, 403, "another site"),
            ({"Host": "evil.test", **key}, 403, "--dashboard-host evil.test"),
        ):
            answer = dashboard.ask("/swarm", form, told)
            assert (answer[0], words in answer[1]) == (code, True), (told, answer)
            assert dashboard.ask("/stop", {}, told)[0] == 403, told
            assert dashboard.ask("/fleet/history", headers=told)[0] == 403, told
        code, body = dashboard.ask("/swarm", {**form, "html_file": str(report)}, key)
        assert (code, json.loads(body)["message"]) == (400, "the form has no html_file")
        assert dashboard.ask("/healthz") == (200, "ok")

        for _ in range(QUIET_LOOKS):  # a master tells its workers each second
            assert dashboard.stats()["user_count"] <= 4
            time.sleep(POLL_S)
        eventually(dashboard.shows("running", 4), "4 users still")
        after = world.uids(PREFIX)
        assert after == before
        processes = psutil.Process(run.process.pid).children(recursive=True)
        assert processes
        for process in processes:
            assert dashboard.token not in " ".join(process.cmdline())
        run.end_well_or_late()
    world.assert_nothing_left(PREFIX)
    assert not report.exists()
    for path in run.directory.rglob("*"):  # continuous integration publishes it
        assert path.is_dir() or dashboard.token.encode() not in path.read_bytes(), path


def test_a_master_that_is_killed_comes_back_and_adopts_the_nodes(world: World) -> None:
    with world.spawn(PREFIX, 8, *SPAWN, "--processes=2") as run:
        run.until("dashboard: http://")
        dashboard = Dashboard(run)
        eventually(dashboard.shows("running", 8), "8 users")
        assert {worker["user_count"] for worker in dashboard.stats()["workers"]} == {4}
        eventually(lambda: len(dashboard.shards()) == 2, "a row for each in the tab Fleet")
        before = world.uids(PREFIX)
        [master] = children(run, "locust")
        os.kill(master.pid, signal.SIGKILL)
        run.until("starting it again, the nodes stay")
        eventually(lambda: run.log.count("dashboard: http://") == 2, "a second dashboard")
        eventually(dashboard.shows("running", 8), "8 users again")
        after = world.uids(PREFIX)
        assert after == before
        dashboard.swarm(4)
        eventually(dashboard.shows("running", 4), "4 users")
        expected = {f"{PREFIX}-{shard:04d}-{slot:05d}" for shard in (0, 1) for slot in (0, 1)}
        assert set(world.nodes(PREFIX)) == expected
        dashboard.stop()
        eventually(dashboard.shows("stopped", 0), "stopped")
        for _ in range(QUIET_LOOKS):  # it was started with --autostart, and would begin again
            assert dashboard.stats()["user_count"] == 0
            time.sleep(POLL_S)
        eventually(dashboard.shows("stopped", 0), "it is stopped still")
        run.end_well_or_late()
    world.assert_nothing_left(PREFIX)


@pytest.mark.slow
def test_a_process_that_is_killed_adopts_its_nodes(world: World) -> None:
    with world.spawn(PREFIX, 8, *SPAWN, "--processes=2") as run:
        run.until("dashboard: http://")
        dashboard = Dashboard(run)
        eventually(dashboard.shows("running", 8), "8 users")
        before = world.uids(PREFIX)
        assert_killed_and_adopted(run, 4)
        eventually(lambda: len(dashboard.shards()) == 2, "its row in the tab Fleet")
        eventually(dashboard.shows("running", 8), "8 users again")
        after = world.uids(PREFIX)
        assert after == before
        dashboard.swarm(6)
        eventually(dashboard.shows("running", 6), "6 users")
        run.interrupt()
        assert run.wait() == 4, run.log  # the figures lack the part of the process that died
    world.assert_nothing_left(PREFIX)


def test_a_master_that_is_not_there_is_missed_and_waited_for(world: World) -> None:
    with world.spawn(PREFIX, 3, "--locust-master=127.0.0.1:1", "--fidelity=light") as run:
        run.until("no Locust master answers at tcp://127.0.0.1:1 (connection refused); 0 nodes")
        run.end_well_or_late()
    world.assert_nothing_left(PREFIX)


def test_what_was_not_confirmed_is_refused_and_foreign_nodes_stay(world: World) -> None:
    """A machine joins under a name of the growth, and one that went comes back as another's."""
    grown, reborn = f"{PREFIX}-00003", f"{PREFIX}-00002"
    with world.spawn(PREFIX, 3, *SPAWN, "--max-nodes=5") as run:
        run.until("dashboard: http://")
        dashboard = Dashboard(run)
        eventually(dashboard.shows("running", 3), "3 users")
        ours = world.uids(PREFIX)[reborn]
        world.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": grown}})
        before = world.get("node", grown)
        dashboard.swarm(9)
        run.until("9 nodes are wanted of one worker that may have 5")
        run.until(f"node {grown} exists and is not this run's: it is left alone")
        eventually(lambda: len(world.nodes(PREFIX)) == 4, "the others grow")
        world.kubectl("delete", "node", reborn)
        world.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": reborn}})
        dashboard.swarm(1)
        eventually(lambda: len(world.nodes(PREFIX)) == 1, "one is left")
        run.interrupt()
        assert run.wait() == 4
    assert f"1 nodes exist that are not this run's: {grown}" in run.summary()["invalid_reasons"]
    try:
        for name in (grown, reborn):
            found = world.get("node", name)
            assert not found["spec"].get("providerID")
            assert found["metadata"]["uid"] != ours
            leases = world.items("leases", "-n", "kube-node-lease")
            assert name == reborn or name not in {each["metadata"]["name"] for each in leases}
        assert world.get("node", grown)["metadata"]["uid"] == before["metadata"]["uid"]
    finally:
        world.kubectl("delete", "node", grown, reborn)
