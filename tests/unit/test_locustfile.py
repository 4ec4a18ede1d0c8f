"""The locustfile that a Locust master loads. Importing it patches a process: not this one."""

import subprocess
import sys

import pytest


def load(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    return subprocess.run(
        (sys.executable, "-c", script), capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("version", ["2.46.9", "3.0.0", "3.1.0.dev5"])
def test_a_release_that_it_was_not_made_for_is_refused_in_one_line(version: str) -> None:
    done = load(f"import locust; locust.__version__ = {version!r}; import fleet.locustfile")
    assert done.returncode == 3
    assert done.stderr == (
        f"fleet: its locustfile needs Locust 2.47 or a later 2.x, this is {version}: "
        f"pip install 'fleet-emulator[locust]'\n"
    )


def test_a_later_one_is_taken() -> None:
    done = load("import locust; locust.__version__ = '2.99.1'; import fleet.locustfile")
    assert done.returncode == 0, done.stderr


def test_names_of_rows_may_be_anything_in_the_metrics() -> None:
    script = "from fleet.locustfile import escaped; print(escaped('/q?a=\"1\"\\\\n'))"
    assert load(script).stdout == '/q?a=\\"1\\"\\\\n\n'
