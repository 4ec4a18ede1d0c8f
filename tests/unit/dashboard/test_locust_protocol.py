"""The Locust worker's protocol machine: what it says, and which target it follows."""

from typing import Any

import pytest

from fleet.dashboard.locust_protocol import (
    ACK_TICKS,
    FOREIGN_WORKER,
    QUIET_TICKS,
    READY_TRIES_MAX,
    REMINDER_TICKS,
    SILENCE_MAX,
    USER_CLASS,
    Load,
    LocustWorker,
    WorkerState,
)

LOAD = Load(12.5, 1000)


class Master:
    """A worker, and what its master saw."""

    def __init__(self, *, holds: bool = False, nodes_max: int = 1000) -> None:
        self.worker = LocustWorker(holds=holds, nodes_max=nodes_max)
        self.clock = 100.0

    def tick(self, count: int = 1) -> list[str]:
        for _ in range(count):
            self.worker.on_tick(LOAD)
        return self.said()

    def said(self) -> list[str]:
        kinds = [message.kind for message in self.worker.out]
        self.worker.out.clear()
        return kinds

    def register(self) -> None:
        self.tick()
        self.worker.on_message("ack", {"index": 0})
        self.said()

    def spawn(self, nodes: int, *, options: dict[str, Any] | None = None, **others: int) -> None:
        self.clock += 1
        counts = {USER_CLASS: nodes, **others}
        data = {"timestamp": self.clock, "user_classes_count": counts, "parsed_options": options}
        self.worker.on_message("spawn", data)

    def reach(self, nodes: int) -> list[str]:
        self.worker.on_count(nodes)
        return self.said()


@pytest.fixture
def master() -> Master:
    made = Master()
    made.register()
    return made


def test_it_registers_as_a_foreign_worker_and_beats() -> None:
    master = Master()
    master.worker.on_tick(LOAD)
    assert master.worker.out == [("client_ready", FOREIGN_WORKER)]
    master.said()
    master.worker.on_message("ack", {"index": 7})
    assert master.worker._is_registered
    assert master.said() == ["report"]  # with its nodes, before any are dealt out
    assert master.worker.index == 7
    master.worker.on_tick(LOAD)
    [(kind, beat)] = master.worker.out
    assert (kind, beat) == (
        "heartbeat",
        {"state": "ready", "current_cpu_usage": 12.5, "current_memory_usage": 1000},
    )


def test_unanswered_requests_end_in_a_new_identity() -> None:
    master = Master()
    ticks = ACK_TICKS * READY_TRIES_MAX
    assert master.tick(ticks) == ["client_ready"] * READY_TRIES_MAX
    assert not master.worker.reopen
    assert master.tick() == ["client_ready"]
    assert master.worker.reopen


def test_a_request_that_found_no_connection_is_repeated_at_once() -> None:
    master = Master()
    for _ in range(READY_TRIES_MAX + 1):
        assert master.tick() == ["client_ready"]
        master.worker.on_unsent("client_ready")
    assert not master.worker.reopen
    assert master.tick(ACK_TICKS) == ["client_ready"]


def test_five_minutes_without_a_master_are_told_and_cost_no_node(master: Master) -> None:
    master.spawn(35)
    master.reach(35)
    told = []
    for second in range(1, 301):
        for kind in master.tick():
            master.worker.on_unsent(kind)
        if master.worker.is_reminder_due():
            told.append(second)
        assert not master.worker.wants_report()
    assert told == list(range(QUIET_TICKS, 301, REMINDER_TICKS))
    assert master.worker.target == 35
    assert master.tick() == ["heartbeat"]
    master.worker.on_message("heartbeat", None)
    assert master.worker.notes[-1] == "the Locust master answers again"
    assert not master.worker.is_reminder_due()


def test_statistics_wait_for_a_master_that_answers(master: Master) -> None:
    master.spawn(1)
    master.tick()
    assert master.worker.wants_report()
    master.tick()
    assert not master.worker.wants_report()  # the last heartbeat was not answered
    master.worker.on_message("heartbeat", None)
    master.tick()
    assert master.worker.wants_report()
    master.worker.on_unsent("heartbeat")
    assert not master.worker.wants_report()


def test_a_shard_that_was_replaced_gives_its_nodes_up_when_it_returns() -> None:
    master = Master(holds=True)
    master.reach(4)  # adopted, before the master knows us
    master.register()
    master.spawn(0)
    assert master.worker.target == 4  # a master that has just come up ramps from 0 too
    master.worker.on_message("spawning_complete", {"user_count": 8})
    assert master.worker.target == 0
    master.reach(4)
    master.worker.on_message("ack", {"index": 1})  # of a second request, late
    master.spawn(0)
    master.worker.on_message("spawning_complete", {"user_count": 8})
    assert master.worker.target == 0
    assert master.reach(0) == ["report", "spawning", "spawning_complete"]


def test_the_newest_absolute_target_counts(master: Master) -> None:
    master.spawn(20)
    assert (master.worker.target, master.worker.state) == (20, WorkerState.SPAWNING)
    master.spawn(40)
    master.clock -= 2
    master.spawn(30)  # older than the last
    assert master.worker.target == 40
    assert master.said() == ["spawning", "spawning"]
    assert master.reach(39) == []
    assert master.reach(40) == ["spawning_complete"]
    assert master.worker.state is WorkerState.RUNNING
    assert master.reach(41) == []


def test_a_run_begins_with_fresh_statistics_and_again_on_request(master: Master) -> None:
    master.spawn(1, options={"reset_stats": True})
    assert master.worker.fresh
    master.worker.fresh = False
    master.spawn(2, options={"reset_stats": True})
    assert not master.worker.fresh
    master.worker.on_message("spawning_complete", {"user_count": 2})
    assert master.worker.fresh


def test_users_that_it_cannot_run_are_refused_loudly(master: Master) -> None:
    master.spawn(3, Api=2, Idle=0)
    [(kind, data), (spawning, _)] = master.worker.out
    assert (kind, spawning) == ("exception", "spawning")
    assert isinstance(data, dict)
    assert "VirtualNode only, not Api: start the master with `fleet locust master`" in data["msg"]
    assert master.worker.target == 3
    master.said()
    master.spawn(4, Api=3)
    assert master.said() == ["spawning"]  # once is enough
    master.spawn(4, Api=3, Other=1)
    assert master.said() == ["exception", "spawning"]


def test_more_nodes_than_were_confirmed_are_refused_once(master: Master) -> None:
    master = Master(nodes_max=10)
    master.register()
    master.spawn(9)
    assert master.said() == ["spawning"]
    master.spawn(11)
    [(kind, data), (spawning, _)] = master.worker.out
    assert (kind, spawning) == ("exception", "spawning")
    assert isinstance(data, dict)
    assert "11 nodes are wanted of one worker that may have 10" in data["msg"]
    assert master.worker.notes[-1] == data["msg"]
    master.said()
    master.spawn(12)
    assert master.worker.target == 10
    assert master.reach(10) == ["spawning", "spawning_complete"]


def test_stop_takes_all_nodes_away_and_registers_again(master: Master) -> None:
    master.spawn(5)
    master.reach(5)
    master.worker.on_message("stop", None)
    assert master.worker.target == 0
    assert master.reach(2) == []
    assert master.reach(0) == ["report", "client_stopped"]
    assert master.worker.state is WorkerState.READY
    assert master.worker.target is None
    assert master.tick() == ["client_ready"]


def test_a_quitting_master_ends_it_or_not() -> None:
    master = Master(holds=False)
    master.register()
    master.spawn(2)
    master.reach(2)
    master.worker.on_message("quit", None)
    assert master.reach(0) == ["report", "quit"]
    assert master.worker.is_done

    held = Master(holds=True)
    held.register()
    held.spawn(2)
    held.reach(2)
    held.worker.on_message("quit", None)
    assert held.worker.target == 2
    assert held.tick() == ["client_ready"]


def test_a_restarted_master_is_noticed_and_not_followed_down(master: Master) -> None:
    master.spawn(35)
    master.reach(35)
    assert master.tick(SILENCE_MAX) == ["heartbeat"] * SILENCE_MAX
    assert master.tick() == ["client_ready"]
    master.worker.on_message("ack", {"index": 0})
    for target in (10, 20, 30):
        master.spawn(target)
        assert master.worker.target == 35
        assert "spawning_complete" in master.said()
    master.spawn(40)
    assert master.worker.target == 40


def test_leaving_ignores_targets(master: Master) -> None:
    master.spawn(4)
    master.reach(4)
    master.worker.leave()
    master.spawn(9)
    assert master.worker.target == 0
    assert master.reach(0)[-2:] == ["report", "quit"]
    assert master.worker.is_done


def test_reports_come_each_second_of_a_ramp_else_every_third(master: Master) -> None:
    master.spawn(4)
    due = []
    for _ in range(3):
        master.tick()
        due.append(master.worker.wants_report())
        master.worker.on_message("heartbeat", None)
    assert due == [True, True, True]
    master.reach(4)
    settled = []
    for _ in range(6):
        master.tick()
        master.worker.on_message("heartbeat", None)
        settled.append(master.worker.wants_report())
    assert sum(settled) == 2
    report = master.worker.report({"stats": []}, {"ready": 4})
    assert report == (
        "stats",
        {
            "stats": [],
            "user_classes_count": {USER_CLASS: 4},
            "user_count": 4,
            "fleet": {"ready": 4},
        },
    )
