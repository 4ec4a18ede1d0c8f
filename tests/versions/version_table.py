"""The figures of all minors in one table, at the end of `make versions`."""

import orjson
import pytest

from versions.smoke import JUDGED, PROPERTY, Figures, table


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
