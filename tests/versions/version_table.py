"""The figures of all minors in one table, at the end of `make versions`.

With RECORD in the environment they replace FIGURES, from which `make docs` writes the table of
docs/reference/versions.md; only if all minors that fleet builds were played, and none failed.
"""

import dataclasses
import os
from pathlib import Path

import orjson
import pytest

from fleet.controlplane.binaries import BUILT
from versions.smoke import JUDGED, PROPERTY, Figures, table

RECORD = "FLEET_VERSIONS_RECORD"
FIGURES = Path(__file__).with_name("figures.json")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    told = [
        each
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
        for each in report.user_properties
    ]
    rows = [Figures(**orjson.loads(value)) for name, value in told if name == PROPERTY]
    judged = [str(value).split(": ", 1) for name, value in told if name == JUDGED]
    if rows:
        terminalreporter.section("wall times in seconds, and requests of a node by verb")
        terminalreporter.write_line(table(rows, dict(judged)))
    if RECORD in os.environ and not {"failed", "error"} & {*terminalreporter.stats}:
        record(rows, FIGURES)


def record(rows: list[Figures], path: Path) -> None:
    """Write the figures of all minors that fleet builds; of some alone nothing is written."""
    rows = sorted(rows, key=lambda each: each.release)
    if [each.release for each in rows] == sorted(BUILT.values()):
        options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        path.write_bytes(orjson.dumps([dataclasses.asdict(each) for each in rows], option=options))
