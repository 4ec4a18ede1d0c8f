"""How one run ended, for the command line."""

from dataclasses import dataclass, field
from pathlib import Path

import orjson

from fleet.errors import Exit
from fleet.report.report import RunFigures, summary
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

    def text(self) -> str:
        """Return the summary for people."""
        return summary_text(self.figures, self.run_directory, self.next_steps, self.report)


def exit_code_of(figures: RunFigures, command: int | None) -> int:
    """Return what a run ends with: the code of its command, if it had one and was valid."""
    if command is None or figures.all_invalid_reasons():
        return figures.exit_code()
    return command
