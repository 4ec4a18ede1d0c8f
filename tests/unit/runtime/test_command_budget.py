"""Commands that would freeze or fill fleet: each is over its budget, and says so at once."""

import io
import re
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.k8s.scripts import ScriptSpec, Variable
from fleet.runtime import command
from fleet.runtime.command import (
    KEPT_CHARACTERS_MAX,
    process_of,
    run_around,
    run_of_command,
)
from fleet.runtime.container_log import OPEN_MAX, ScriptLines
from fleet.runtime.files import NodeFiles
from fleet.runtime.probe_script import behavior_of_script, phase_of
from fleet.runtime.script import expand, variables_of
from fleet.runtime.session import Session
from fleet.runtime.shell.budget import LINE_UNITS, UNITS, OverBudgetError
from fleet.runtime.shell.patterns import Pattern
from fleet.runtime.shell.process import Process, run_words
from fleet.runtime.shell.shell import ARGUMENT_MAX
from fleet.runtime.shell.surroundings import CommandRun, Surroundings, Written

EXPLODING = ".*.*.*.*.*.*x"
DOUBLES = "; ".join(["export A=aaaaaaaa", *["export A=$A$A$A$A"] * 20])


def around(*, is_whole: bool = False, given: bytes | None = None) -> Surroundings:
    files = NodeFiles().view((), {}, system={}, start_ns=1)
    return Surroundings({}, files, 0.5, 1, is_whole=is_whole, input=given, cwd="/")


def whole(given: bytes | None, *, is_trial: bool) -> Surroundings:
    return around(is_whole=True, given=None if is_trial else given)


def nested(opener: str, inner: str, closer: str, depth: int = 400) -> str:
    return opener * depth + inner + closer * depth


OVER = {
    "a variable that doubles": DOUBLES,
    "words that double": "A="
    + "a" * 500
    + "; A=$A$A$A$A; for B in "
    + "$A" * 1500
    + "; do :; done",
    "subshells": nested("(", "true", ")"),
    "groups": nested("{ ", "true;", "};"),
    "substitutions": "echo " + nested("$(", "echo", ")"),
    "quoted substitutions": "echo " + nested('"$(echo ', "a", ')"', 300),
    "defaults": "A=; echo " + nested("${A:-", "a", "}", 400),
    "conditions": nested("if true; then ", "true;", " fi;", 200),
    "arithmetic": "echo $((" + "-" * 200 + "1))",
    "a printf for each of many words": "A='"
    + "b " * 500
    + "'; printf '"
    + "a" * 2400
    + "%s' $A $A",
}


@pytest.mark.parametrize("script", OVER.values(), ids=OVER)
def test_a_script_over_its_budget_fails(script: str) -> None:
    run = run_words(("sh", "-c", script), around())
    assert run.error
    assert run.run_ns is None


EVERYDAY = {
    "a loop that waits": "while true; do date; sleep 10; done",
    "a loop that spins": "while :; do :; done",
    "many lines": "for i in $(seq 1 300); do echo line $i of a log; done",
    "nested by hand": "if true; then (cd /; if [ -n a ]; then { echo $(echo $(echo a)); }; fi); fi",
    "an odd default": "echo ${A:-it's}; sleep 1",
    "brackets": "echo $(([[[[[[[[[[1]]]]]]]]]]))",
    "negations": "! " * 500 + "true",
    "tests of negations": "test " + "! " * 500 + "a",
    "a long sleep": "sleep 999999999999d 999999999999d",
    "no number": "sleep 1e308",
}


@pytest.mark.parametrize("script", EVERYDAY.values(), ids=EVERYDAY)
def test_what_ends_or_waits_is_within_it(script: str) -> None:
    assert not run_words(("sh", "-c", script), around()).error


def test_a_script_that_prints_for_a_day_is_within_it() -> None:
    """Its log is followed piece by piece; each piece has a budget of its own."""
    words = ("sh", "-c", "while true; do seq 1 500; sleep 1; done")
    process = process_of(words, around())
    day_ns = 2_000 * 1_000_000_000
    while not process.advance(day_ns, 100):
        process.written.clear()
    assert not process.error
    assert process.shell.clock_ns > day_ns


def test_a_slice_of_a_busy_script_is_as_long_as_a_budget() -> None:
    process = Process(("sh", "-c", "while true; do seq 1 900 | sort; done"), around())
    assert not process.advance(1, 10**9)
    assert process.shell.budget.spent < UNITS


def test_a_pattern_that_explodes_is_matched_in_one_pass() -> None:
    files = around().files
    assert files is not None
    files.write("/tmp/a", "a" * 4000)
    run = run_words(("grep", EXPLODING, "/tmp/a"), around()._replace(files=files))
    assert (run.run_ns, run.exit_code, run.error) == (0, 1, "")
    files.write("/tmp/a", "a" * 1_000_000)
    assert run_words(("grep", EXPLODING, "/tmp/a"), around()._replace(files=files)).error


PLACES = st.lists(
    st.tuples(st.sampled_from(["a", "b", ".", "\\s", " "]), st.sampled_from(["", "*"])), max_size=6
)


@given(
    st.sampled_from(["", "^"]), PLACES, st.sampled_from(["", "$"]), st.text("ab x"), st.booleans()
)
def test_a_pattern_finds_what_python_finds(
    start: str,
    places: list[tuple[str, str]],
    end: str,
    line: str,
    is_whole: bool,  # noqa: FBT001
) -> None:
    text = start + "".join(map("".join, places)) + end
    found = re.fullmatch(text, line) if is_whole else re.search(text, line)
    assert Pattern(text, is_literal=False, is_whole=is_whole).finds(line) is bool(found)


def chain(length: int) -> ScriptSpec:
    first = Variable("A0", "a" * 1000)
    rest = [Variable(f"A{n}", f"$(A{n - 1})" * 10) for n in range(1, length)]
    return ScriptSpec(variables=(first, *rest))


def test_variables_that_multiply_end_at_what_a_process_may_have() -> None:
    with pytest.raises(OverBudgetError, match="argument list too long"):
        variables_of(chain(12), lambda _source: None)
    assert len(variables_of(chain(3), lambda _source: None)["A2"]) == 100_000


def test_arguments_end_there_too() -> None:
    with pytest.raises(OverBudgetError):
        expand("$(A)" * 100_000, {"A": "a" * ARGUMENT_MAX})
    found = run_around(("echo", *["$(A)"] * 60), around()._replace(variables={"A": "a" * 100_000}))
    assert found.error == "argument list too long"
    assert expand("$(A) $$(A) $(B)", {"A": "a"}) == "a $(A) $(B)"


def test_a_probe_over_its_budget_times_out() -> None:
    phase = phase_of(("sh", "-c", DOUBLES), 0, around())
    assert phase.answer.value == "Timeout"


def sparse_tar() -> bytes:
    """Return an archive of one file of 64 GiB, all of it a hole."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as archive:
        info = tarfile.TarInfo("hole")
        info.type = tarfile.GNUTYPE_SPARSE
        archive.addfile(info)
    data = bytearray(made.getvalue())
    data[386:410] = b"00000000000\x0000000000000\x00"
    data[483:495] = b"\x80" + (64 << 30).to_bytes(11, "big")
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


def longnames_tar(count: int) -> bytes:
    """Return an archive whose headers announce headers."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1
    return (info.tobuf(tarfile.GNU_FORMAT) + b"a".ljust(512, b"\0")) * count


@pytest.mark.parametrize("data", [sparse_tar(), longnames_tar(2000)], ids=["sparse", "names"])
def test_a_tar_that_is_larger_inside_is_refused(data: bytes) -> None:
    run = run_words(("tar", "xf", "-", "-C", "/tmp"), around(is_whole=True, given=data))
    assert run.exit_code
    assert sum(len(each.text or "") for each in run.changes) < len(data)


@pytest.mark.parametrize(("files", "size"), [(1000, 1000), (900, 15_000), (1, 15 << 20)])
def test_what_a_volume_can_hold_can_be_copied_into_it_and_back(files: int, size: int) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for number in range(files):
            info = tarfile.TarInfo(f"d/{number}")
            info.size = size
            archive.addfile(info, io.BytesIO(b"a" * size))
    place = around(is_whole=True, given=made.getvalue())
    run = run_words(("tar", "-xmf", "-", "-C", "/tmp"), place)
    assert (run.run_ns, run.exit_code, len(run.changes)) == (0, 0, files)
    back = run_words(("tar", "cf", "-", "/tmp/d"), place._replace(input=None))
    assert (back.run_ns, back.exit_code) == (0, 0)
    assert len(back.text("")) >= files * size


def test_a_user_is_told_what_is_over_the_budget() -> None:
    run = run_words(("sh", "-c", nested("(", "true", ")")), around(is_whole=True))
    assert (run.run_ns, run.exit_code) == (0, 2)
    assert "it is nested too deeply" in run.text("")


def test_a_shell_goes_on_after_a_line_over_its_budget() -> None:
    session = Session(("sh",), whole, 0, stdin=True, tty=False)
    session.write(f"echo $(({'-' * 200}1))\necho next\n".encode(), 0)
    assert session.advance(4096, 0).stdout == b"next\n"


def test_many_lines_are_run_a_few_at_a_time() -> None:
    session = Session(("sh",), whole, 0, stdin=True, tty=False)
    session.write(b":\n" * 1_000 + b"echo end\n", 0)
    said, calls = b"", 0
    while not said:
        found = session.advance(4096, 0)
        assert found.more or found.wake_ns is not None or found.stdout
        said, calls = found.stdout, calls + 1
    assert said == b"end\n"
    assert 10 < calls < 100


def test_nothing_runs_of_a_process_that_cannot_be_started() -> None:
    over = around()._replace(error="argument list too long")
    assert run_words(("echo", "a"), over) == CommandRun(None, error="argument list too long")


def test_bytes_that_are_no_text_can_be_told_to_the_server() -> None:
    run = CommandRun(0, 1, (Written(0, "", "caf\udce9"),))
    assert run.text("") == "caf\ufffd"


def test_the_phases_of_a_probe_share_one_budget() -> None:
    """A container that changes its files often does not buy its probe a budget each time."""
    container = "; ".join(f"echo {at} > /tmp/a; sleep 1" for at in range(60))
    probe = "for i in $(seq 1 900); do A=$(cat /tmp/a); done"
    found = behavior_of_script(("sh", "-c", probe), ("sh", "-c", container))
    answers = [phase.answer.value for phase in found.phases]
    assert answers[0] == "Success"
    assert answers[-1] == "Timeout"


def test_a_line_that_does_not_end_is_cut() -> None:
    script = "while true; do printf " + "a" * 3000 + "; sleep 1; done"
    lines = ScriptLines(lambda: process_of(("sh", "-c", script), around()))
    for _ in range(20):
        assert lines.next(5_000 * 10**9) is None
    assert len(lines._open[False]) == OPEN_MAX


def test_the_lines_of_one_piece_of_a_log_are_few() -> None:
    script = "while true; do for i in $(seq 1 900); do seq 1 900; done; done"
    lines = ScriptLines(lambda: process_of(("sh", "-c", script), around()))
    assert lines.next(1) is not None
    assert 1_000 < len(lines._buffer) < UNITS // LINE_UNITS


def test_long_commands_are_not_kept() -> None:
    before = command._run_of.cache_info().currsize
    for number in range(5):
        assert run_of_command(("exit", str(number)), ("x" * KEPT_CHARACTERS_MAX,)) is not None
    assert command._run_of.cache_info().currsize == before
    assert run_of_command(("true",), ()) is run_of_command((), ("true",))
