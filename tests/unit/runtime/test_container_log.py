"""The log of a container: every line is a function of its number, and nothing is kept."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.clock import NS_PER_S
from fleet.k8s.streams import LogOptions
from fleet.profile.container_behavior import LogBehavior
from fleet.runtime.commands import NewFiles, Script
from fleet.runtime.container_log import DeclaredLines, Lines, LogReader, ScriptLines

WALL_NS = 1_800_000_000 * NS_PER_S
VALUES = {"pod": "p", "namespace": "ns", "container": "c", "node": "n"}
FAR = 1 << 40
S = NS_PER_S


def declared(**fields: object) -> DeclaredLines:
    behavior = LogBehavior.model_validate({"template": "line {{index}}", **fields})
    return DeclaredLines(behavior, WALL_NS, 7, VALUES)


def script(text: str) -> ScriptLines:
    return ScriptLines(lambda: Script(("sh", "-c", text), NewFiles({}, is_new=True)))


def whole(
    lines: Lines,
    at_s: float,
    options: LogOptions | None = None,
    *,
    ended_s: float | None = None,
    limit: int = FAR,
) -> str:
    """Read all there is at an instant of a container that started at 0."""
    ended_ns = None if ended_s is None else int(ended_s * S)
    given = options or LogOptions()
    reader = LogReader(lines, 0, WALL_NS, lambda _now: ended_ns, given)
    found = b""
    for _ in range(100_000):
        chunk = reader.read(limit, int(at_s * S))
        assert len(chunk.data) <= limit
        found += chunk.data
        if chunk.is_over or chunk.wake_ns is not None:
            return found.decode()
    raise AssertionError("it does not end")


def test_lines_come_at_the_declared_rate() -> None:
    assert whole(declared(linesPerSecond=2), 1.4) == "line 0\nline 1\nline 2\n"
    assert whole(declared(linesPerSecond=2, maxLines=2), 9) == "line 0\nline 1\n"
    assert whole(declared(), 9, ended_s=1.5) == "line 0\nline 1\n"


def test_a_tail_and_a_since_begin_at_the_right_line() -> None:
    assert whole(declared(), 1e6, LogOptions(tail_lines=2)) == "line 999999\nline 1000000\n"
    assert whole(declared(), 9, LogOptions(tail_lines=0)) == ""
    since = LogOptions(since_ns=WALL_NS + 8 * S - 1)
    assert whole(declared(), 9, since) == "line 8\nline 9\n"
    assert whole(declared(), 9, LogOptions(since_ns=WALL_NS - 5 * S, tail_lines=1)) == "line 9\n"


def test_timestamps_are_those_of_the_file() -> None:
    text = whole(declared(linesPerSecond=4), 0.3, LogOptions(timestamps=True))
    assert text == (
        "2027-01-15T08:00:00.000000000Z line 0\n2027-01-15T08:00:00.250000000Z line 1\n"
    )


@pytest.mark.parametrize("size", [60, 200])
def test_lines_are_filled_up_to_their_size(size: int) -> None:
    (line,) = whole(declared(size=size), 0).splitlines()
    assert len(line) == size


def test_placeholders_are_filled_the_same_in_every_reading() -> None:
    template = "{{time}} {{level}} {{random}} {{pod}}/{{container}} on {{node}} in {{namespace}}"
    first, second = whole(declared(template=template), 50), whole(declared(template=template), 50)
    assert first == second
    assert len({line.split()[2] for line in first.splitlines()}) > 40
    assert first.splitlines()[0].endswith("p/c on n in ns")


def test_a_limit_cuts_the_last_line() -> None:
    assert whole(declared(), 9, LogOptions(limit_bytes=10)) == "line 0\nlin"
    assert whole(declared(), 9, LogOptions(limit_bytes=0)) == ""
    assert whole(script("echo one; echo two"), 9, LogOptions(limit_bytes=5), ended_s=0) == "one\nt"


@settings(max_examples=15)  # each reads a log in pieces of some bytes
@given(st.integers(1, 50), st.sampled_from([LogOptions(), LogOptions(tail_lines=7)]))
def test_small_chunks_add_up(limit: int, options: LogOptions) -> None:
    assert whole(declared(), 30, options, limit=limit) == whole(declared(), 30, options)


def test_the_newest_lines_are_there() -> None:
    found = whole(declared(size=1000), 99_999, LogOptions(limit_bytes=12))
    assert 100_000 - (10 << 20) // 1000 <= int(found.split()[1]) < 100_000 - 9 * (1 << 20) // 1000


def test_a_script_says_what_it_prints_when_it_does() -> None:
    text = "echo start; sleep 3; echo -n no end; echo oops >&2; sleep 2; echo ' here'"
    assert whole(script(text), 2) == "start\n"
    assert whole(script(text), 4) == "start\noops\n"
    assert whole(script(text), 5) == "start\noops\nno end here\n"
    assert whole(script(text), 9, LogOptions(stream="Stderr"), ended_s=5) == "oops\n"
    assert whole(script("echo a; echo -n b"), 9, ended_s=0) == "a\nb"


def test_a_loop_is_followed_as_long_as_somebody_reads() -> None:
    loop = "while true; do echo -n x >> /tmp/a; cat /tmp/a; echo; sleep 1; done"
    assert whole(script(loop), 500, LogOptions(tail_lines=1)) == "x" * 501 + "\n"
    assert whole(script(loop), 300).count("\n") == 301


def test_a_reader_that_follows_is_woken_for_the_next_line_and_the_end() -> None:
    ended: list[int | None] = [None]
    follow = LogOptions(follow=True)
    lines = declared(linesPerSecond=10)
    reader = LogReader(lines, 5 * S, WALL_NS, lambda _now: ended[0], follow)
    first = reader.read(FAR, 5 * S)
    assert (first.data, first.wake_ns, first.is_over) == (b"line 0\n", 5 * S + S // 10, False)
    assert reader.read(FAR, 5 * S + S // 5).data == b"line 1\nline 2\n"
    ended[0] = 5 * S + S // 4
    last = reader.read(FAR, 9 * S)
    assert (last.data, last.is_over) == (b"", True)


def test_a_silent_container_is_looked_at_once_a_second() -> None:
    lines = script("sleep 1000000")
    reader = LogReader(lines, 0, WALL_NS, lambda _now: None, LogOptions(follow=True))
    chunk = reader.read(FAR, 7 * S)
    assert (chunk.data, chunk.wake_ns, chunk.is_over) == (b"", 8 * S, False)


def test_one_call_does_not_follow_a_script_for_long() -> None:
    lines = script("while true; do echo x; sleep 1; done")
    reader = LogReader(lines, 0, WALL_NS, lambda _now: None, LogOptions(tail_lines=1))
    chunk = reader.read(FAR, 1_000_000 * S)
    assert (chunk.data, chunk.wake_ns, chunk.is_over) == (b"", None, False)
