import io
import re

import pytest

from fleet.report.display import Display, LiveFigures, clock
from fleet.report.figure import combined

CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def isatty(self) -> bool:
        return True


def rising(elapsed_s: float, ready: int = 3, **more: float) -> LiveFigures:
    figures = LiveFigures(
        elapsed_s=elapsed_s,
        nodes_requested=10,
        nodes_registered=5,
        nodes_ready=ready,
        requests_per_s=2_167.0,
        request_p99_ms=12.13,
        lease_late_p99_ms=1.8,
    )
    for name, value in more.items():
        setattr(figures, name, value)
    return figures


def shown(stream: io.StringIO, *updates: LiveFigures, phase: str = "", hint: str = "") -> str:
    """Return what a display writes from its start to its end, without control codes."""
    display = Display(stream=stream)
    if hint:
        display.hint(hint)
    display.start()
    if phase:
        display.phase(phase)
    for figures in updates:
        display.update(figures)
    display.stop()
    return CONTROL.sub("", stream.getvalue())


def plain_lines(*updates: LiveFigures, phase: str = "bringing nodes up") -> list[str]:
    return shown(io.StringIO(), *updates, phase=phase).splitlines()


def test_without_a_terminal_there_are_plain_lines() -> None:
    lines = plain_lines(rising(1.0))
    assert lines == [
        "[ 0:00] bringing nodes up",
        (
            "[ 0:01] bringing nodes up: 3/10 Ready, 5 registered; 2,167/s, p99 12.1 ms, 0 errors; "
            "leases sent p99 1.8 ms late"
        ),
    ]


def test_what_holds_the_nodes_back_is_said() -> None:
    figures = rising(1.0)
    figures.held_by = "the API server: 48 nodes are starting"
    [_, line] = plain_lines(figures)
    words = "3/10 Ready, 5 registered; held back by the API server: 48 nodes are starting; 2,167/s"
    assert words in line
    figures.nodes_ready = figures.nodes_requested
    assert "held back" not in plain_lines(figures)[-1]


def test_limits_of_fleet_itself_are_shown_as_its_own() -> None:
    figures = rising(1.0)
    figures.own_limits = {"streams to the API server": 280_000}
    figures.held_by = "fleet itself: its limit of streams to the API server"
    [_, line] = plain_lines(figures)
    assert (
        "own limits of fleet were hit: streams to the API server (280,000 times); the run is "
        "invalid; held back by fleet itself: its limit of streams to the API server"
    ) in line


def test_coming_up_prints_a_line_every_ten_seconds() -> None:
    lines = plain_lines(*[rising(i / 10, ready=i // 100) for i in range(350)])
    assert [line[:7] for line in lines] == ["[ 0:00]", "[ 0:00]", "[ 0:10]", "[ 0:20]", "[ 0:30]"]


def test_rates_alone_are_no_news() -> None:
    lines = plain_lines(*[rising(float(i), ready=10, requests_per_s=i) for i in range(65)])
    assert [line[:7] for line in lines] == ["[ 0:00]", "[ 0:00]", "[ 0:30]", "[ 1:00]"]


def test_hints_and_notes_are_plain_lines_too() -> None:
    stream = io.StringIO()
    display = Display(stream=stream)
    display.start()
    display.hint("export KUBECONFIG=/tmp/[x]/k")
    display.note("WARNING [all] is well")
    assert stream.getvalue() == "export KUBECONFIG=/tmp/[x]/k\nWARNING [all] is well\n"


def test_a_phase_is_told_once() -> None:
    stream = io.StringIO()
    display = Display(stream=stream)
    display.phase("cleaning up")
    display.phase("cleaning up")
    display.phase("cleaning up: nodes 3/30")
    assert stream.getvalue() == "[ 0:00] cleaning up\n"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "30")
    return Terminal()


def seen(terminal: Terminal) -> str:
    return CONTROL.sub("", terminal.getvalue())


def test_a_terminal_gets_a_block_with_a_bar(terminal: Terminal) -> None:
    figures = rising(61.0, watches=25_000, fleet_cpu=0.312, controlplane_cpu=1.52)
    figures.pods = {"Running": 12, "Pending": 0, "Failed": 1}
    hint = "Ctrl-C drains [and] cleans up"
    written = shown(terminal, figures, phase="bringing nodes up", hint=hint)
    last = written.rpartition("fleet  bringing nodes up")[2].splitlines()
    assert last == [
        "  1:01",
        "  nodes          ━━━━━━━━━━━━━━━╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌  3 of 10 Ready, 5 registered",
        "  pods           12 Running, 1 Failed",
        "  requests       2,167/s, p99 12.1 ms, 0 errors",
        "  leases         sent p99 1.8 ms late",
        "  fleet          31.2% of a core, 25,000 watches",
        "  control plane  1.52 cores",
        "Ctrl-C drains [and] cleans up",
    ]


@pytest.mark.parametrize("nodes", [300, 100_000])
def test_the_bar_of_a_narrow_terminal_leaves_room_for_the_time_left(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    more = {"nodes_requested": nodes, "nodes_registered": nodes}
    pace = ((1.0, 0), (2.0, 100), (12.0, 200))
    written = shown(terminal, *(rising(elapsed_s, ready, **more) for elapsed_s, ready in pace))
    words = f"  200 of {nodes:,} Ready, {nodes:,} registered, about "
    assert words in written
    assert " left" in written.rpartition(words)[2].splitlines()[0]


def test_no_old_figures_stay_while_a_run_ends(terminal: Terminal) -> None:
    display = Display(stream=terminal)
    display.start()
    display.update(rising(61.0, watches=25_000))
    display.phase("draining")
    display.over()
    display.phase("cleaning up: nodes 3/30")
    display.stop()
    last = seen(terminal).rpartition("fleet  cleaning up")[2].splitlines()
    assert last == [": nodes 3/30  1:01"]


def test_a_terminal_shows_the_phase_of_a_scenario_and_what_is_on(terminal: Terminal) -> None:
    figures = rising(61.0, ready=10)
    figures.scenario = "phase 2 of 4, [outage]: 9:12 left"
    figures.faults = [f"Partition {number}, until it is healed" for number in range(6)]
    written = shown(terminal, figures, phase="outage: 10m")
    last = written.rpartition("fleet  outage: 10m")[2].splitlines()
    assert last[2:8] == [
        "  scenario       phase 2 of 4, [outage]: 9:12 left",
        "  faults         Partition 0, until it is healed",
        "                 Partition 1, until it is healed",
        "                 Partition 2, until it is healed",
        "                 Partition 3, until it is healed",
        "                 and 2 more",
    ]


def test_lines_name_faults_and_phases_too() -> None:
    figures = rising(1.0, ready=10)
    figures.scenario, figures.faults = "phase 1 of 2, dark: 0:30 left", ["NodeDown on 1 of 3 nodes"]
    [_, line] = plain_lines(figures, phase="dark: 30s")
    assert "10/10 Ready; phase 1 of 2, dark: 0:30 left; fault NodeDown on 1 of 3 nodes;" in line


def test_at_most_four_frames_a_second_and_none_without_change(terminal: Terminal) -> None:
    display = Display(stream=terminal)
    display.start()
    written = []
    for hundredth in range(100):
        before = len(terminal.getvalue())
        display.update(rising(hundredth / 100, ready=hundredth // 10))
        written.append(len(terminal.getvalue()) > before)
    assert sum(written) == 4
    size = len(terminal.getvalue())
    display.update(rising(1.3, ready=9))
    size_of_change = len(terminal.getvalue())
    display.update(rising(1.6, ready=9))
    assert size < size_of_change == len(terminal.getvalue())


def test_it_starts_again_after_something_else_had_the_terminal(terminal: Terminal) -> None:
    display = Display(stream=terminal)
    display.start()
    display.stop()
    display.update(rising(1.0))
    display.start()
    display.update(rising(2.0))
    display.stop()
    assert "3 of 10 Ready" in seen(terminal)


def test_a_pause_leaves_nothing_of_the_block(terminal: Terminal) -> None:
    display = Display(stream=terminal)
    display.start()
    display.update(rising(1.0))
    display.pause()
    assert terminal.getvalue().endswith("\x1b[1A\x1b[2K" * 4)  # all of its lines


def test_a_dumb_terminal_gets_plain_lines(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    display = Display(stream=terminal)
    display.start()
    display.phase("x")
    assert terminal.getvalue() == "[ 0:00] x\n"


def test_processes_are_shown_together() -> None:
    one = rising(5.0, fleet_cpu=0.25, controlplane_cpu=0.5, api_errors=1)
    one.pods = {"on nodes": 4}
    other = rising(3.0, request_p99_ms=20.0, fleet_cpu=0.5)
    other.pods = {"on nodes": 5, "Failed": 1}
    other.lease_late_p99_ms = None
    total = combined([one, other])
    assert (total.elapsed_s, total.nodes_requested, total.nodes_ready) == (5.0, 20, 6)
    assert (total.requests_per_s, total.api_errors) == (4_334.0, 1)
    assert (total.request_p99_ms, total.lease_late_p99_ms) == (20.0, 1.8)
    assert (total.fleet_cpu, total.controlplane_cpu) == (0.75, 0.5)
    assert total.pods == {"on nodes": 9, "Failed": 1}
    assert combined([rising(1.0)]) == rising(1.0)


def test_lines_do_not_come_and_go(terminal: Terminal) -> None:
    quiet = rising(2.0, requests_per_s=0.0)
    quiet.request_p99_ms = quiet.lease_late_p99_ms = None
    last = shown(terminal, rising(1.0), quiet).rpartition("fleet  starting")[2]
    assert "requests       0/s, p99 12.1 ms, 0 errors" in last
    assert "leases         sent p99 1.8 ms late" in last


def test_more_nodes_than_are_wanted_do_not_overflow_the_bar(terminal: Terminal) -> None:
    written = shown(terminal, rising(1.0, ready=25, nodes_registered=30))
    assert f"nodes          {'━' * 30}  25 of 10 Ready" in written


@pytest.mark.parametrize(("seconds", "said"), [(0.9, "0:00"), (61, "1:01"), (3_723, "1:02:03")])
def test_clock(seconds: float, said: str) -> None:
    assert clock(seconds) == said


def test_the_quiet_see_only_what_needs_them() -> None:
    for stream in (io.StringIO(), Terminal()):
        display = Display(stream=stream, is_quiet=True)
        display.hint("export K")
        display.start()
        display.phase("bringing nodes up")
        display.update(rising(1.0))
        display.tell("all 10 nodes are Ready")
        display.note("the clean-up failed")
        display.stop()
        assert CONTROL.sub("", stream.getvalue()) == "the clean-up failed\n"


def test_how_long_it_will_take_is_estimated_from_the_pace_so_far() -> None:
    lines = plain_lines(rising(1.0, ready=0), rising(2.0, ready=2), rising(12.0, ready=4))
    assert "left" not in lines[-2]
    assert "4/10 Ready, 5 registered, about 0:30 left;" in lines[-1]
