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
    ["serve", "exec serve --port 80", "pause", "sleep 1 & exit 2", "if true; then exec serve; fi"],
)
def test_a_script_that_is_an_unknown_program_is_unknown(text: str) -> None:
    assert (script(text).run_ns, script(text).unknown_ns) == (None, 0)


def test_a_script_is_known_up_to_the_program_that_it_becomes() -> None:
    run = script("sleep 3; exec serve")
    assert (run.run_ns, run.unknown_ns) == (None, 3 * S)
    endless = script("sleep infinity; exit 1")
    assert (endless.run_ns, endless.unknown_ns) == (None, None)


@pytest.mark.parametrize(
    ("text", "seconds", "code"),
    [
        ("serve; exit 3", 0, 3),
        ("migrate --all && sleep 2", 2, 0),
        ("frobnicate || exit 1", 0, 0),
        ("if frobnicate; then exit 4; fi", 0, 4),
        ("frobnicate | grep -q ready && exit 5", 0, 5),
        ("true | sed p", 0, 0),
        ("set -euo pipefail; frobnicate | sort -k2 | head -n 1; exit 6", 0, 6),
        ('x=$(frobnicate); [ -n "$x" ] && exit 7', 0, 7),
        ('if [ "$(frobnicate)" != 200 ]; then exit 1; fi; sleep 1', 1, 0),
        ('if [ -z "$(frobnicate)" ]; then exit 1; fi; sleep 1', 1, 0),
        ("(exec frobnicate); exit 8", 0, 8),
        ("echo $HOME", 0, 0),
        ("exit $(frobnicate)", 0, 0),
        ("until nslookup db; do sleep 2; done; exit 9", 0, 9),
        ("while ! nc -z db 5432; do sleep 1; done", 0, 0),
        ('until [ "$(curl -s http://db/)" = ok ]; do sleep 1; done', 0, 0),
        ("while true; do if pg_isready; then break; fi; sleep 1; done; exit 2", 0, 2),
        ("break; continue; exit 7", 0, 7),
        ("for i in 1 2 3; do sleep 1; continue; exit 1; done", 3, 0),
        ("trap 'sleep 2; exit 9' EXIT; sleep 1; exit 3", 3, 3),
    ],
)
def test_an_unknown_command_in_a_script_succeeds_at_once(
    text: str, seconds: int, code: int
) -> None:
    run = script(text)
    assert (run.run_ns, run.exit_code, run.unknown_ns) == (seconds * S, code, None)


def test_the_options_of_a_shell() -> None:
    words = ("bash", "-euo", "pipefail", "-c", "echo start; sleep 2; false | true; sleep 9")
    assert run_of_command(words, ()) == run_of_command(words, ())
    assert (run_of_command(words, ()).run_ns, run_of_command(words, ()).exit_code) == (2 * S, 1)
    assert run_of_command(("sh", "-lc", "exit 3"), ()).exit_code == 3


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
