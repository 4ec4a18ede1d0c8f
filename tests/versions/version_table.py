"""The figures of all minors in one table, at the end of `make versions`."""

import orjson
import pytest

from versions.smoke import PROPERTY, Figures, table


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = [
        Figures(**orjson.loads(value))
        for report in terminalreporter.stats.get("passed", ())
        for name, value in report.user_properties
        if name == PROPERTY
    ]
    if rows:
        terminalreporter.section("wall times in seconds, and requests of a node by verb")
        terminalreporter.write_line(table(rows))
