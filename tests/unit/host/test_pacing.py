"""How many nodes may start: as the API server answers, and as fast as others see them Ready."""

import pytest

from fleet.host.pacing import (
    FIRST_COLD,
    LOOK_S,
    PATIENCE_S,
    UNSETTLED_MAX,
    Pacing,
    StartLimit,
    StartStage,
)
from fleet.k8s.effects import NodeId

STARTING = FIRST_COLD


class BringUp:
    """Nodes whose stages the test sets, and a clock."""

    def __init__(self) -> None:
        self.pacing = Pacing(StartLimit(is_cold=True))
        self.stages: dict[NodeId, StartStage] = {}
        self.now_s = 100.0

    def room(self) -> int:
        return self.pacing.room(lambda node: self.stages[node], {}, self.now_s)

    def start(self) -> int:
        """Start as many as may; return how many did."""
        room = self.room()
        for _ in range(room):
            node = NodeId(len(self.stages))
            self.stages[node] = StartStage.STARTING
            self.pacing.add(node)
        return room

    def all_reach(self, stage: StartStage) -> None:
        self.stages = dict.fromkeys(self.stages, stage)

    @property
    def held_by(self) -> str:
        return self.pacing.held_by(self.now_s)


@pytest.fixture
def bring_up() -> BringUp:
    return BringUp()


def test_a_number_starts_at_one_time(bring_up: BringUp) -> None:
    assert bring_up.start() == STARTING
    assert bring_up.held_by == ""
    assert bring_up.start() == 0
    assert bring_up.held_by == f"the API server: {STARTING} nodes are starting"
    for node in range(3):
        bring_up.stages[NodeId(node)] = StartStage.SETTLED
    assert bring_up.start() == 3
    bring_up.now_s += 5
    assert bring_up.held_by == ""


def test_nodes_that_others_do_not_see_ready_hold_the_next_ones_back(bring_up: BringUp) -> None:
    while bring_up.start():
        bring_up.all_reach(StartStage.SAID)
    assert len(bring_up.stages) == UNSETTLED_MAX
    kept = f"the controllers: {UNSETTLED_MAX} Ready nodes keep the not-ready taint"
    assert bring_up.held_by == kept
    bring_up.stages[NodeId(7)] = StartStage.SETTLED
    assert bring_up.start() == 1


def test_where_nobody_takes_the_taint_away_nobody_is_waited_for(
    bring_up: BringUp, caplog: pytest.LogCaptureFixture
) -> None:
    while bring_up.start():
        bring_up.all_reach(StartStage.SAID)
    bring_up.now_s += PATIENCE_S - 0.1
    assert bring_up.start() == 0
    bring_up.now_s += 0.2
    for _ in range(20):
        assert bring_up.start() == STARTING
        bring_up.all_reach(StartStage.SAID)
        bring_up.now_s += LOOK_S
    assert len(caplog.records) == 1
    bring_up.all_reach(StartStage.SETTLED)  # somebody does it after all
    bring_up.now_s += LOOK_S
    assert bring_up.start() == STARTING
    assert not bring_up.pacing.is_blind


def test_one_more_node_that_is_seen_is_progress(bring_up: BringUp) -> None:
    while bring_up.start():
        bring_up.all_reach(StartStage.SAID)
    for node in range(5):
        bring_up.now_s += PATIENCE_S - 0.1
        bring_up.stages[NodeId(node)] = StartStage.SETTLED
        assert bring_up.room() == node + 1
        assert not bring_up.pacing.is_blind


def test_nodes_that_are_gone_leave_their_room(bring_up: BringUp) -> None:
    """As when a dashboard asks for nodes and takes them back before they are up."""
    bring_up.start()
    for node in bring_up.stages:
        bring_up.pacing.remove(node)
    assert bring_up.room() == STARTING
