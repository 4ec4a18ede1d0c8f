"""What a run does without until it needs it."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("package", "reason"),
    [
        ("cryptography", "a fleet whose nodes have no certificates signs nothing: 8 MB"),
        ("locust", "its workers are processes of their own"),
        ("rich", "a run that draws nothing does without: 1.5 MB"),
    ],
)
def test_a_run_begins_without(package: str, reason: str) -> None:
    code = f"import sys, fleet.cli, fleet.run.run; sys.exit({package!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0, reason
