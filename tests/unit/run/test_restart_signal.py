"""SIGHUP: which kubelets it restarts, and when it means the end."""

from types import SimpleNamespace

import pytest

from fleet.clock import Draws
from fleet.host.node_host import NodeHost
from fleet.run.interrupts import RestartSignal


class Noted:
    """Stands for an node_host and its siblings."""

    size = 8

    def __init__(self) -> None:
        self.restarted: list[list[int]] = []
        self.passed_on = 0

    def chosen(self, share: float) -> list[int]:
        return list(range(int(self.size * share)))

    def restart(self, nodes: list[int]) -> int:
        self.restarted.append(nodes)
        return len(nodes)

    def restart_kubelets(self) -> None:
        self.passed_on += 1


def made(share: float, notes: list[str]) -> RestartSignal:
    return RestartSignal(share, lambda: notes.append("ended"), notes.append)


def test_a_share_restarts_here_and_in_the_other_processes() -> None:
    notes: list[str] = []
    taken, fleet = made(0.25, notes), Noted()
    taken.node_host = fleet  # type: ignore[assignment]
    taken.siblings = fleet  # type: ignore[assignment]
    taken()
    assert fleet.restarted == [[0, 1]]
    assert fleet.passed_on == 1
    assert notes == ["SIGHUP: restarting 2 of 8 kubelets"]


def test_nothing_happens_before_there_are_kubelets() -> None:
    notes: list[str] = []
    made(1.0, notes)()
    assert notes == ["SIGHUP: no kubelet runs that could restart"]


def test_the_signal_of_a_terminal_that_is_closed_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes: list[str] = []
    monkeypatch.setattr("fleet.run.interrupts._has_terminal", lambda: True)
    taken, fleet = made(1.0, notes), Noted()
    taken.node_host = fleet  # type: ignore[assignment]
    taken()
    assert len(fleet.restarted) == 1
    monkeypatch.setattr("fleet.run.interrupts._has_terminal", lambda: False)
    taken()
    assert len(fleet.restarted) == 1
    assert notes[-1] == "ended"


def test_the_choice_is_a_share_by_chance_that_differs_each_time() -> None:
    """Of 1,000 nodes; a method of its own needs no cluster."""
    picks = [_pick(share, now_ns) for share, now_ns in ((0.3, 1), (0.3, 2), (0.0001, 1), (1.0, 1))]
    assert [len(each) for each in picks] == [300, 300, 1, 1000]
    assert len(picks[0] & picks[1]) < 150
    assert picks[0] == _pick(0.3, 1)


def _pick(share: float, now_ns: int) -> set[int]:

    clock = SimpleNamespace(now_ns=lambda: now_ns)
    node_host = SimpleNamespace(
        _running=list(range(1000)), _draws=Draws(1), reactor=SimpleNamespace(clock=clock)
    )
    return set(NodeHost.chosen(node_host, share))  # type: ignore[arg-type]
