"""What a release consists of: reproducible, complete, and installed in one way only."""

import importlib.metadata
import re
import stat
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import controlplane_wheel
import dockerfile
import pytest
import release
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fleet
from fleet.controlplane.binaries import PACKAGE, packaged_binaries
from fleet.controlplane.options import COMPONENTS, KUBECTL

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("built")
    release.build(directory)
    return directory


def only(directory: Path, pattern: str) -> Path:
    [path] = directory.glob(pattern)
    return path


def test_a_wheel_of_the_sdist_is_the_wheel(built: Path, tmp_path: Path) -> None:
    with tarfile.open(only(built, "*.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    source = only(tmp_path, "fleet_emulator-*")
    command = (sys.executable, "-m", "hatchling", "build", "--target", "wheel")
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=60)
    wheel = only(built, "*.whl")
    assert (source / "dist" / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_wheel_has_what_fleet_reads_beside_its_code(built: Path) -> None:
    with zipfile.ZipFile(only(built, "*.whl")) as wheel:
        names = set(wheel.namelist())
    for path in (*(ROOT / "profiles").glob("*/*.yaml"), ROOT / "profiles/loads/api_users.py"):
        assert f"fleet/profiles/{path.relative_to(ROOT / 'profiles')}" in names
    for path in (ROOT / "fleet").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert str(path.relative_to(ROOT)) in names
    assert not [name for name in names if "test" in name.partition("/")[0]]


def test_the_chart_is_packed_the_same_each_time(tmp_path: Path) -> None:
    packed = release.pack_chart(tmp_path)
    before = packed.read_bytes()
    release.pack_chart(tmp_path)
    assert packed.read_bytes() == before
    with tarfile.open(packed) as archive:
        names = set(archive.getnames())
    chart = ROOT / "charts" / "fleet"
    assert names == {f"fleet/{path.relative_to(chart)}" for path in chart.rglob("*.*")}


def test_what_is_locked_is_what_pyproject_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["locust"], *extras["worker"]]
    text = release.REQUIREMENTS.read_text()
    locked = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE))
    for requirement in map(Requirement, asked):
        version = locked.get(canonicalize_name(requirement.name))
        assert version, f"{requirement} is not in {release.REQUIREMENTS.name}: run `make lock`"
        assert requirement.specifier.contains(version), f"{requirement}: run `make lock`"
    assert text.count("--hash=sha256:") > len(locked)


@pytest.mark.parametrize(
    "name",
    [
        "hpack",  # huffman and huffman_constants
        "kubernetes-asyncio",  # entered without its packages' __init__; KubeConfigLoader._user
        "locust",  # its wire protocol, its dispatcher, its web UI's routes and form
    ],
)
def test_what_fleet_takes_the_insides_of_has_an_upper_bound(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["locust"]]
    [found] = [each for each in map(Requirement, asked) if each.name == name]
    assert not found.specifier.contains("1000")


def test_the_image_is_installed_by_the_script_alone_and_runs_as_nobody() -> None:
    build, image = dockerfile.stages(ROOT / "charts" / "Dockerfile")
    assert build.all("RUN") == ["dist/install.sh dist /opt/fleet"]
    assert image.all("COPY") == ["--from=build /opt/fleet /opt/fleet"]
    assert image.all("RUN") == ["install -d -o 65532 -g 65532 /var/lib/fleet"]
    assert image.last("USER") == "65532:65532"
    assert image.last("WORKDIR") == "/var/lib/fleet"
    assert image.last("ENTRYPOINT") == '["fleet"]'
    assert image.environment()["HOME"] == "/tmp"
    assert image.last("LABEL").count("org.opencontainers.image.") == 6
    assert all(
        stage.last("FROM").startswith("docker.io/library/python:") for stage in (build, image)
    )


def test_the_chart_takes_the_image_that_make_builds() -> None:
    command = ("make", "--dry-run", "image", f"BIN={Path(sys.executable).parent}")
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    tags = re.findall(r"docker build .*--tag (\S+)", said.stdout)
    chart = yaml.safe_load((release.CHART / "Chart.yaml").read_text())
    values = yaml.safe_load((release.CHART / "values.yaml").read_text())
    assert tags == [f"{values['image']['repository']}:{chart['appVersion']}"]
    assert chart["appVersion"] == fleet.__version__
    assert f"docker-image {tags[0]}`" in (ROOT / "docs" / "how-to" / "helm.md").read_text()


def test_the_programs_of_the_control_plane_survive_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert packaged_binaries() is None
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho $1\n")
    wheel = controlplane_wheel.pack(program, tmp_path / "one")
    assert wheel.read_bytes() == controlplane_wheel.pack(program, tmp_path / "two").read_bytes()
    target = tmp_path / "site"
    command = (sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps")
    subprocess.run((*command, f"--target={target}", wheel), check=True, timeout=60)
    monkeypatch.syspath_prepend(target)
    found = packaged_binaries()
    assert found is not None
    assert (found.source, found.version) == (f"package {PACKAGE}", "v1.36.3")
    assert set(found.commands) == {*COMPONENTS, KUBECTL}
    for name, installed in found.commands.items():
        assert Path(installed[0]).stat().st_mode & stat.S_IXUSR
        said = subprocess.run(installed, capture_output=True, text=True, check=True, timeout=10)
        assert said.stdout.strip() == name
    # Every file is recorded, so that pip can take it away again.
    recorded = importlib.metadata.files(PACKAGE)
    assert recorded is not None
    assert all(Path(str(path.locate())).is_file() for path in recorded)
