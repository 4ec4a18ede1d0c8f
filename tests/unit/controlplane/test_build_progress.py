"""How a build of thousands of packages is shown: in few lines."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.controlplane.build import PACKAGES, BuildProgress

GO = f"""#!/bin/sh
if [ "$1" = env ]; then echo go1.26.1; exit; fi
i=0; while [ $i -lt 45 ]; do i=$((i+1)); echo "go: downloading k8s.io/m$i v0.36.3" >&2; done
seq -f example.org/p%.0f {PACKAGES} >&2
while [ "$1" != -o ]; do shift; done
echo '#!/bin/sh' > "$2"; chmod +x "$2"
"""


class World:
    """A build whose clock the test moves, shown where lines go."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.lines: list[str] = []
        self.progress = BuildProgress("x", self.lines.append, now_s=lambda: self.now_s)


def test_there_is_a_line_for_each_step_and_every_10_s() -> None:
    world = World()
    progress = world.progress
    progress.begin("looking for its Go modules")
    progress.begin("downloading modules")
    for number in range(45):
        world.now_s += 0.5
        progress.begin("downloading modules")
        progress.advance(f"k8s.io/m{number}")
    progress.begin("compiling", PACKAGES)
    for number in range(PACKAGES):
        world.now_s += 0.1
        progress.advance(f"p{number}")
    progress.begin("linking")
    for _ in range(25):  # Go says nothing
        world.now_s += 1
        progress.tick()
    assert world.lines[:6] == [
        "building x: looking for its Go modules, 0s",
        "building x: downloading modules, 0s",
        "building x: downloading modules, 20 k8s.io/m19, 10s",
        "building x: downloading modules, 40 k8s.io/m39, 20s",
        f"building x: compiling, 0 of ~{PACKAGES} packages, 22s",
        f"building x: compiling, 100 of ~{PACKAGES} packages, 32s",
    ]
    assert world.lines[-3:] == [
        "building x: linking, 4m52s",
        "building x: linking, 5m02s",
        "building x: linking, 5m12s",
    ]
    assert len(world.lines) <= 35


@pytest.fixture
def build(tmp_path: Path) -> dict[str, object]:
    """Return how to run `fleet controlplane build` with a Go that says what the real one says."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(GO)
    go.chmod(0o755)
    environment = {
        "PATH": f"{go.parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "TERM": "xterm-256color",
        "COLUMNS": "120",
    }
    command = [sys.executable, "-m", "fleet.cli", "controlplane", "build"]
    return {"args": command, "env": environment, "stdin": subprocess.DEVNULL}


def test_through_a_pipe_a_build_is_a_handful_of_lines(build: dict[str, object]) -> None:
    done = subprocess.run(  # type: ignore[call-overload]
        **build, capture_output=True, text=True, timeout=60, check=True
    )
    lines = done.stderr.splitlines()
    assert [re.sub(r"\d+s", "Ns", line) for line in lines if "%" not in line][:3] == [
        "building the control plane: looking for its Go modules, Ns",
        "building the control plane: downloading modules, Ns",
        f"building the control plane: compiling, 0 of ~{PACKAGES} packages, Ns",
    ]
    assert len(lines) < 20, lines
    assert lines[-1].startswith("built the control plane in ")
