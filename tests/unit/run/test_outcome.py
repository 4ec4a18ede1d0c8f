"""What a run ends with: by its figures, or by its command."""

import pytest

from fleet.errors import Exit
from fleet.metrics import Histogram
from fleet.profile.settings import Settings
from fleet.report.figures import ProcessFigures, WatchFigures
from fleet.report.report import Expectation, RunFigures
from fleet.run.ending import exit_code_of, how_longer


def late() -> RunFigures:
    lag = Histogram()
    for _ in range(100):
        lag.record(150_000)
    return RunFigures(run_id="r", process=ProcessFigures(timer_lag=lag), wall_s=20.0)


def unjudged() -> RunFigures:
    """Return a run of which the user asked what nobody could judge."""
    return RunFigures(run_id="r", expectations=[Expectation("p99", is_met=None)])


@pytest.mark.parametrize("command", [0, 7, 143])
def test_the_commands_code_is_that_of_a_valid_run_alone(command: int) -> None:
    assert exit_code_of(RunFigures(run_id="r"), command) == command
    assert exit_code_of(unjudged(), command) == command
    for invalid in (
        late(),
        RunFigures(run_id="r", incomplete_reasons=["the server was sick"]),
        RunFigures(run_id="r", watch=WatchFigures(closed_slow=1)),
        RunFigures(run_id="r", invalid_reasons=["a bug in fleet"]),
    ):
        assert exit_code_of(invalid, command) == Exit.INVALID


def test_without_a_command_the_figures_decide() -> None:
    failed = RunFigures(run_id="r", expectations=[Expectation("p99", is_met=False)])
    assert exit_code_of(RunFigures(run_id="r"), None) == Exit.OK
    assert exit_code_of(failed, None) == Exit.EXPECTATION_FAILED
    assert exit_code_of(late(), None) == Exit.INVALID
    assert exit_code_of(unjudged(), None) == Exit.INVALID


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"until_ready": True}, "--duration 5m in place of --until-ready"),
        ({"command": ("true",)}, "run a COMMAND that takes longer"),
        ({"duration": "5s"}, "for example with --duration 5m"),
    ],
)
def test_the_advice_is_of_the_kind_of_run(given: dict[str, object], advice: str) -> None:
    assert advice in how_longer(Settings.from_options(**given), has_scenario=False)
