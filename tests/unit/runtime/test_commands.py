"""The built-in reader: when a command ends and how, what it says, which files it leaves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world.pod_world import container, make_pod

from fleet.clock import NS_PER_S as S
from fleet.runtime.commands import STEPS_MAX, UNITS, NewFiles, Script, script_at
from fleet.runtime.files import DIRECTORY
from fleet.runtime.program import UNKNOWN, Run
from fleet.runtime.programs import command_of, program_of


def script(text: str, flag: str = "-c", **files: str) -> Run:
    texts: dict[str, str | None] = {f"/tmp/{name}": text for name, text in files.items()}
    return Script(("/bin/sh", flag, text), NewFiles(texts, is_new=True)).run()


@pytest.mark.parametrize(
    ("text", "seconds", "code"),
    [
        ("sleep 2; exit 3", 2, 3),
        ("false || sleep 1", 1, 0),
        ("true || sleep 1", 0, 0),
        ("false && sleep 1 || sleep 2", 2, 0),
        ("true || sleep 1 && sleep 2", 2, 0),
        ("false && sleep 1", 0, 1),
        ("false\nsleep 1  # wait", 1, 0),
        ("exec sleep 3; exit 1", 3, 0),
        ("sleep 1 && exit", 1, 0),
        ("false; exit", 0, 1),
        ("sleep 0.5 1m", 60.5, 0),
        ("'sleep' \"1\"", 1, 0),
        ("[ -e /tmp/a ] && exit 4; exit 5", 0, 4),
        ("test -f /tmp/b || exit 6", 0, 6),
        ("[ -e /tmp/d ] && exit 4; exit 5", 0, 4),
        ("[ -f /tmp/d ] && exit 4; exit 5", 0, 5),
        ("touch /tmp/b; [ -f /tmp/b ] && rm /tmp/b && cat /tmp/b", 0, 1),
        ("while [ -e /tmp/a ]; do sleep 2; rm -f /tmp/a; done; exit 7", 2, 7),
        ("until [ -e /tmp/b ]; do sleep 1; touch /tmp/b; done", 1, 0),
        ("while true; do while true; do sleep 1; exit 8; done; done", 1, 8),
    ],
)
def test_a_script_ends_as_a_shell_would_end_it(text: str, seconds: float, code: int) -> None:
    run = script(text, a="x", d=DIRECTORY)
    assert (run.run_ns, run.exit_code) == (seconds * S, code)


@pytest.mark.parametrize(
    ("text", "seconds", "code"),
    [
        ("serve; exit 3", 0, 3),
        ("migrate --all > /dev/null 2>&1 && sleep 2", 2, 0),
        ("frobnicate || exit 1", 0, 0),
        ("echo $HOME", 0, 0),
        ("until nslookup db; do sleep 2; done; exit 9", 0, 9),
        ("while killall -0 nginx; do sleep 1; done", 0, 0),
        ("sleep 5 && kill -TERM $(pidof vault)", 5, 0),
    ],
)
def test_an_unknown_command_in_a_script_succeeds_at_once(
    text: str, seconds: int, code: int
) -> None:
    run = script(text)
    assert (run.run_ns, run.exit_code, run.unknown_ns) == (seconds * S, code, None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("serve", 0),
        ("exec serve --port 80", 0),
        ("sleep 3; exec serve", 3),
        ("sleep 1 & exit 2", 0),
        ("sleep 2; if true; then exit 1; fi", 2),
        ("dump | gzip > /b; exit 1", 0),
        ("sleep 1; sleep $DELAY; exit 1", 1),
        ("until [ $READY ]; do sleep 1; done", 0),
        ('until [ "$(curl -s http://db/)" = ok ]; do sleep 1; done', 0),
        ("sleep 4\nfor i in 1 2; do exit 1; done", 4),
        ("cat <<EOF\nx\nEOF", 0),
        (f"sleep 2; {'exec ' * 3000}true", 2),
        ("while true; do sleep 1; wait; done", 1),
        ("done; exit 1", 0),
        ("&& exit 1", 0),
        ("echo 'open", 0),
    ],
)
def test_from_what_is_not_read_on_a_script_is_an_unknown_program(text: str, seconds: int) -> None:
    run = script(text)
    assert (run.run_ns, run.unknown_ns) == (None, seconds * S)


@pytest.mark.parametrize(
    "text", ["sleep infinity", "tail -f /dev/null", "while :; do :; done", "while; do; done"]
)
def test_what_does_not_end_waits_for_ever(text: str) -> None:
    run = script(text)
    assert (run.run_ns, run.unknown_ns, run.error) == (None, None, "")


def test_output_and_files_are_derived() -> None:
    run = script(
        "echo one; sleep 2; echo -n 'two; three'; echo x >> /tmp/a; cat /tmp/d /tmp/a", a="w", d="/"
    )
    assert run.text("") == "one\ntwo; threewx\n"
    assert run.text("", until_ns=S) == "one\n"
    assert [each[:2] for each in run.changes] == [(2 * S, "/tmp/a")]
    assert script("echo -n DONE > /dev/termination-log").text("/dev/termination-log") == "DONE"
    said = script("echo oops >&2; cat /tmp/none").written
    assert [each.text for each in said if each.is_error] == [
        "oops\n",
        "cat: can't open '/tmp/none': No such file or directory\n",
    ]


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("version",), ()),
        (("serve", "--sleep"), ()),
        (("sleep", "3"), ("sleep", "3")),
        (("/bin/sh", "-c", "sleep 3"), ("/bin/sh", "-c", "sleep 3")),
        (("bash", "-euo", "pipefail", "-c", "true"), ("bash", "-euo", "pipefail", "-c", "true")),
    ],
)
def test_arguments_alone_are_for_the_entry_point_unless_they_are_read(
    words: tuple[str, ...], command: tuple[str, ...]
) -> None:
    spec = container("c", args=words)
    assert command_of(spec) == command
    program = program_of(make_pod(spec), spec)
    assert bool(command) is (program is not None and getattr(program, "words", ()) == words)


def alone(command: tuple[str, ...]) -> Run:
    return Script(command, NewFiles({}, is_new=True)).run()


@pytest.mark.parametrize(
    ("command", "seconds", "code"),
    [
        (("sleep", "10"), 10, 0),
        (("/bin/sleep", "1.5m", "10"), 100, 0),
        (("true",), 0, 0),
        (("/bin/false",), 0, 1),
        (("exit", "7"), 0, 7),
        (("exit", "258"), 0, 2),
        (("exit",), 0, 0),
        (("echo", "hello"), 0, 0),
        (("sh", "-c", "echo hi && sleep 2d"), 172_800, 0),
        (("bash", "-euo", "pipefail", "-c", "until false; do exit 3; done"), 0, 3),
        (("sh", "-c", ""), 0, 0),
    ],
)
def test_a_simple_command_ends_as_it_says(
    command: tuple[str, ...], seconds: int, code: int
) -> None:
    run = alone(command)
    assert (run.run_ns, run.exit_code) == (seconds * S, code)


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("nginx",),
        ("sleep",),
        ("sleep", "-1"),
        ("exit", "x"),
        ("exit", "1", "2"),
        ("sh", "script.sh"),
        ("sh", "-c"),
        ("echo",) * 100,
    ],
)
def test_any_other_command_is_unknown(command: tuple[str, ...]) -> None:
    run = alone(command)
    assert (run.run_ns, run.unknown_ns) == (None, 0)


HOSTILE = {
    "many commands": ":;" * 60_000,
    "nested loops": "while true; do " * 5_000 + "true" + "; done" * 5_000,
    "a long word": "echo " + "a" * 120_000,
    "more than Linux takes": "echo " + "a" * 3_000_000,
    "quotes": "echo " + "''" * 60_000,
    "operators": "true " + "&& " * 40_000,
    "a file that grows": "while true; do cat /tmp/a /tmp/a >> /tmp/a; done",
    "many files": "while true; do rm -f " + "a " * 7_000 + "; done",
    "a line that grows": "while true; do echo " + "a" * 10_000 + " >> /tmp/a; sleep 1; done",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.timeout(5)
def test_a_hostile_script_costs_little(text: str) -> None:
    run = script(text, a="a" * 1000)
    assert run.run_ns is None or len(run.written) < STEPS_MAX
    assert len(run.changes) < 32 * STEPS_MAX
    assert sum(len(each.text or "") for each in run.changes) < 8 * UNITS


@given(st.text("ab;&|<>()'\"\\$` \n#[]=-/", max_size=60))
def test_any_text_is_read(text: str) -> None:
    assert isinstance(script(text), Run)
    assert isinstance(script(f"while true; do {text}; sleep 1; done"), Run)


def test_a_command_that_is_unknown_is_that() -> None:
    assert Script(("/pause",), NewFiles({}, is_new=True)).run() == UNKNOWN


def test_a_long_flag_of_a_shell_is_read_once() -> None:
    """A look at each pair of its letters would take hours."""
    assert script_at(("sh", f"-{'c' * 1_000_000}!", "exit 3")) == 0


def test_a_loop_that_sleeps_is_followed_while_its_file_grows() -> None:
    loop = f"while true; do echo {'x' * 200} >> /tmp/a; sleep 1; done"
    one = Script(("sh", "-c", loop), NewFiles({}, is_new=True))
    while not one.advance(1_000 * S, 100):
        assert not one.is_lost
    assert one.clock_ns > 1_000 * S
    assert not one.is_lost
