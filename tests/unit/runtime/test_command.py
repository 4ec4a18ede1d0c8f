"""What is understood of a container's command: run time, exit code, output."""

import pytest

from fleet.clock import NS_PER_S
from fleet.runtime.command import FOR_EVER, CommandRun, run_of_command

S = NS_PER_S


def script(text: str, flag: str = "-c") -> CommandRun:
    return run_of_command(("/bin/sh",), (flag, text))


@pytest.mark.parametrize(
    ("text", "seconds", "code"),
    [
        ("sleep 2; exit 3", 2, 3),
        ("false || sleep 1", 1, 0),
        ("true || sleep 1", 0, 0),
        ("false && sleep 1 || sleep 2", 2, 0),
        ("true || sleep 1 && sleep 2", 2, 0),
        ("false && sleep 1", 0, 1),
        ("false\nsleep 1", 1, 0),
        ("exec sleep 3; exit 1", 3, 0),
        ("sleep 1 && exit", 1, 0),
        ("false; exit", 0, 1),
        ("sleep 0.5 1m", 60.5, 0),
        ("'sleep' \"1\"", 1, 0),
    ],
)
def test_a_script_ends_as_a_shell_would_end_it(text: str, seconds: float, code: int) -> None:
    run = script(text)
    assert (run.run_ns, run.exit_code) == (seconds * S, code)


def test_a_shell_that_stops_at_errors() -> None:
    assert script("false; sleep 9", "-ec") == CommandRun(0, 1)
    assert script("false || true; sleep 9", "-ec").run_ns == 9 * S


@pytest.mark.parametrize(
    "text",
    ["sleep infinity; exit 1", "serve", "true | sed p", "echo $HOME", "pause", "sleep 1 & exit 2"],
)
def test_what_is_not_understood_runs_for_ever(text: str) -> None:
    assert script(text).run_ns is None


def test_pause_runs_for_ever() -> None:
    assert run_of_command(("/pause",), ()) == FOR_EVER


def test_output_is_derived() -> None:
    run = script("echo one; sleep 2; echo -n 'two; three' ; sleep infinity")
    assert run.run_ns is None
    assert run.text("") == "one\ntwo; three"
    assert run.text("", until_ns=S) == "one\n"


def test_output_goes_where_it_is_sent() -> None:
    run = script("/bin/echo -n DONE > /dev/termination-log; echo bye")
    assert run.text("/dev/termination-log") == "DONE"
    assert run.text("") == "bye\n"


def test_what_was_written_before_an_unknown_command_is_kept() -> None:
    assert script("echo start; serve --port 80").text("") == "start\n"
