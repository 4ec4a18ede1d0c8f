"""How one run ended, for the command line."""

from dataclasses import dataclass, field
from pathlib import Path

import orjson

from fleet.errors import Exit
from fleet.profile.settings import Settings
from fleet.report.report import LONGER, Outcome, RunFigures, summary
from fleet.report.summary_text import summary_text


@dataclass(slots=True)
class RunOutcome:
    """How a run ended: what to print and with which code to exit."""

    figures: RunFigures
    run_directory: Path | None
    exit_code: int
    next_steps: list[str] = field(default_factory=list)
    problem: str = ""
    """Why the summary is printed only."""
    report: str = ""
    """Where the report is, or why it is not whole."""

    def give_up_files(self, problem: str) -> None:
        """Note that the summary could not be written."""
        self.problem = problem
        self.run_directory = None
        self.exit_code = Exit.SETUP

    def json(self) -> str:
        """Return what `summary.json` holds."""
        return orjson.dumps(summary(self.figures), option=orjson.OPT_INDENT_2).decode()

    def text(self, *, has_colours: bool = False) -> str:
        """Return the summary for people."""
        return summary_text(
            self.figures,
            self.run_directory,
            self.next_steps,
            self.report,
            has_colours=has_colours,
        )


def exit_code_of(figures: RunFigures, command: int | None) -> int:
    """Return what a run ends with: the code of its command, if it had one and was valid."""
    decided = figures.judgement()
    if command is None or decided.outcome in {Outcome.INVALID, Outcome.INCOMPLETE}:
        return decided.exit_code
    return command


def how_longer(settings: Settings, *, has_scenario: bool) -> str:
    """Return what to do so that a run of this kind lasts long enough to be judged."""
    if has_scenario:
        return "give the scenario a longer phase, or more nodes and pods"
    if settings.command:
        return "run a COMMAND that takes longer, or no COMMAND and --duration 5m"
    if settings.is_on_dashboard:
        return "keep the number of nodes on the dashboard as it is for longer, for example 5 min"
    if settings.until_ready:
        return "run it with --duration 5m in place of --until-ready"
    return LONGER
