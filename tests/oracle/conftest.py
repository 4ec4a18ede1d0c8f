"""What was compared is shown at the end, whichever process compared it."""

import pytest

COMPARED = "compared"
"""The property of a test by which it says what it has compared."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    told = [
        str(value)
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
        for name, value in report.user_properties
        if name == COMPARED
    ]
    if told:
        terminalreporter.section("compared with the real kubelet")
    for each in told:
        terminalreporter.write_line(each)
