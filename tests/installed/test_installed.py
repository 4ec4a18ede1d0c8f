"""`make dist-test`: dist/ is installed as the image and as a laptop without Go install it.

The image's own steps are taken, in a directory instead of a container: charts/install.sh, then the
user, the environment and the working directory that charts/Dockerfile names.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.e2e_world import CONFIRMED, World
from support import dockerfile
from support.guard import MARK

from fleet.controlplane.binaries import PACKAGE
from tools import release

pytest_plugins = ["e2e.e2e_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

BUILD, IMAGE = dockerfile.stages(release.ROOT / "charts" / "Dockerfile")
BARE_PATH = "/usr/local/bin:/usr/bin:/bin"
"""No Go, and the python3 of the system, which another user can run too."""
INSTALL_S_MAX = 600.0
"""A minute on 2 idle cores, five on busy ones: seventy wheels, fetched and compiled to bytecode."""


@pytest.fixture(scope="module")
def open_directory() -> Iterator[Path]:
    """Make a directory that other users can read, unlike pytest's."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def install(target: Path) -> Path:
    """Take the build stage's only step."""
    [step] = BUILD.all("RUN")
    script, _dist, _target = step.split()
    command = (str(release.ROOT / "charts" / Path(script).name), str(release.DIST), str(target))
    environment = {**os.environ, "PATH": BARE_PATH}
    subprocess.run(command, env=environment, check=True, timeout=INSTALL_S_MAX)
    return target


@pytest.fixture(scope="module")
def image(open_directory: Path) -> "Image":
    return Image(install(open_directory / "fleet"), open_directory)


class Image:
    """What a container of the image sees; the user owns two directories and nothing else."""

    def __init__(self, venv: Path, root: Path) -> None:
        self.user, self.group = map(int, IMAGE.last("USER").split(":"))
        self.workdir, self.home = root / "workdir", root / "home"
        for directory in (self.workdir, self.home):
            directory.mkdir()
            if os.geteuid() == 0:
                os.chown(directory, self.user, self.group)
        self.environment = IMAGE.environment() | {
            MARK: os.environ[MARK],
            "PATH": f"{venv / 'bin'}:{BARE_PATH}",
            "HOME": str(self.home),
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the entry point; as root, under the image's user."""
        is_root = os.geteuid() == 0
        return subprocess.Popen(
            ("fleet", *arguments),
            cwd=self.workdir,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            user=self.user if is_root else None,
            group=self.group if is_root else None,
            extra_groups=[] if is_root else None,
        )

    def run(self, *arguments: str) -> str:
        with self.start(*arguments) as process:
            said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said
        return str(said)


def test_the_checksums_are_those_of_the_files() -> None:
    subprocess.run(("sha256sum", "--check", "--strict", release.SUMS), cwd=release.DIST, check=True)
    named = {line.split()[1] for line in (release.DIST / release.SUMS).read_text().splitlines()}
    assert named == {path.name for path in release.DIST.iterdir()} - {release.SUMS}


def test_the_image_tells_what_it_is(image: Image) -> None:
    assert image.run("--version").startswith("fleet ")
    assert "--nodes" in image.run("spawn", "--help")
    assert "flaky-batch" in image.run("profiles", "list")
    assert "Run a Locust master" in image.run("locust", "master", "--help")


@pytest.mark.parametrize("how", ["pip", "uv tool"])
def test_a_wheel_and_a_checkout_install_as_the_page_says(tmp_path: Path, how: str) -> None:
    """docs/start/install.md: a wheel with an extra by pip, a checkout as a tool of uv."""
    build = (
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        str(tmp_path / "dist"),
    )
    environment = os.environ | {
        "UV_TOOL_DIR": str(tmp_path / "tools"),
        "UV_TOOL_BIN_DIR": str(tmp_path / "bin"),
    }
    if how == "pip":
        subprocess.run((sys.executable, "-m", "venv", tmp_path), check=True, timeout=120)
        subprocess.run(build, check=True, cwd=release.ROOT, timeout=120)
        [wheel] = (tmp_path / "dist").iterdir()
        install = [str(tmp_path / "bin/pip"), "install", "--quiet", f"{wheel}[worker]"]
    else:
        install = [shutil.which("uv") or "uv", "tool", "install", "--quiet", str(release.ROOT)]
    subprocess.run(install, check=True, env=environment, timeout=INSTALL_S_MAX)
    fleet = (tmp_path / "bin/fleet").resolve()
    assert (fleet.parent.parent / "share/man/man1/fleet.1").exists()

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = (str(fleet), *arguments)
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    assert "fleet-00004" in run("spawn", "--dry-run", "--nodes=5").stdout
    assert "zone-outage" in run("scenarios", "list").stdout
    refused = run("spawn", "--dashboard")
    assert refused.returncode == 2
    assert "'locust" in refused.stderr


def test_the_image_has_no_compiler_and_no_installer(image: Image) -> None:
    programs = {path.name for path in (image.workdir.parent / "fleet" / "bin").iterdir()}
    assert "fleet" in programs
    assert not {"go", "gcc", "cc", "uv"} & programs
    python = (str(image.workdir.parent / "fleet/bin/python"), "-m", "pip", "--version")
    assert subprocess.run(python, check=False, capture_output=True).returncode != 0


def test_the_image_runs_nodes_and_writes_nowhere_else(image: Image, world: World) -> None:
    kubeconfig = image.home / "kubeconfig"
    shutil.copyfile(world.info.token_kubeconfig, kubeconfig)
    kubeconfig.chmod(0o644)
    venv = image.workdir.parent / "fleet"
    started = time.time()
    said = image.run(
        *("spawn", f"--kubeconfig={kubeconfig}", CONFIRMED),
        *("--nodes=5", "--name-prefix=image", "--until-ready"),
    )
    assert "5 nodes are Ready after" in said
    assert list(image.workdir.glob("runs/*/summary.json"))
    assert not [path for path in venv.rglob("*") if path.lstat().st_mtime > started]
    world.assert_nothing_left("image")


def test_the_image_has_the_shipped_load_and_the_dashboard(image: Image, world: World) -> None:
    kubeconfig = image.home / "kubeconfig-load"
    shutil.copyfile(world.info.token_kubeconfig, kubeconfig)
    kubeconfig.chmod(0o644)
    load = ("--dashboard", "--load=api_users", "--api-users=1")
    named = (f"--kubeconfig={kubeconfig}", CONFIRMED)
    arguments = (*named, "--nodes=2", "--name-prefix=shown", *load)
    is_told = False
    with image.start("spawn", *arguments) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "dashboard: http://" in line and not is_told:
                is_told = True  # a second signal would leave the nodes
                process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, "".join(said)
    world.assert_nothing_left("shown")


def test_without_go_cache_and_network_the_wheels_are_enough(
    open_directory: Path, environment: Path, tmp_path: Path
) -> None:
    venv = install(open_directory / "laptop")
    [programs] = release.DIST.glob(f"{PACKAGE.replace('-', '_')}-*.whl")
    target = ("--python", str(venv / "bin" / "python"))
    quiet = ("install", "--quiet", "--no-index", "--no-deps", str(programs))
    subprocess.run((sys.executable, "-m", "pip", *target, *quiet), check=True, timeout=120)
    bare = {
        "PATH": BARE_PATH,
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        **{name: os.environ[name] for name in (MARK, "NO_PROXY")},
    }

    def fleet(*arguments: str) -> str:
        done = subprocess.run(
            (venv / "bin" / "fleet", *arguments),
            cwd=tmp_path,
            env=bare,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert fleet("controlplane", "build").strip() == f"package {PACKAGE}"
    assert "3 nodes are Ready after" in fleet("spawn", "--nodes=3", "--until-ready")
    assert not (tmp_path / "cache").exists()
    assert environment.exists()
