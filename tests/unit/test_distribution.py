"""What a release consists of: reproducible, complete, and installed in one way only."""

import importlib.metadata
import json
import re
import stat
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from support import dockerfile

import fleet
from fleet.controlplane.binaries import PACKAGE, packaged_binaries
from fleet.controlplane.options import COMPONENTS, KUBECTL
from tools import controlplane_wheel, lock, release, sbom

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("built")
    release.build(directory)
    return directory


def make(*words: str) -> subprocess.CompletedProcess[str]:
    command = ("make", *words)
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240
    )


def only(directory: Path, pattern: str) -> Path:
    [path] = directory.glob(pattern)
    return path


def test_a_wheel_of_the_sdist_is_the_wheel(built: Path, tmp_path: Path) -> None:
    with tarfile.open(only(built, "*.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    source = only(tmp_path, "fleet_emulator-*")
    command = (sys.executable, "-m", "hatchling", "build", "--target", "wheel")
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=240)
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


def test_the_lock_is_what_pyproject_asks_for_and_what_the_tests_run_with() -> None:
    text = lock.LOCK.read_text()
    assert lock.problems(lock.PROJECT.read_text(), text) == []
    assert all(pin.hashes for pin in lock.pins(text).values())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            ("pyyaml==6.0.4", "pyyaml==6.0.3"),
            "pyyaml>=6.0.4 is not met by pyyaml 6.0.3 of the lock",
        ),
        (("\nuvloop==", "\n# uvloop=="), "uvloop>=0.22 is not in the lock"),
        (
            ("\nmultidict==", "\n# multidict=="),
            "multidict>=4.0 is not in the lock",
        ),  # aiohttp's
        (("\nrich==", "\nrich==999."), "is installed, the lock has 999."),
    ],
)
def test_a_stale_lock_stops_a_release_before_anything_is_built(
    change: tuple[str, str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = tmp_path / "requirements.txt"
    text = lock.LOCK.read_text()
    assert change[0] in text
    stale.write_text(text.replace(*change))
    monkeypatch.setattr(lock, "LOCK", stale)
    monkeypatch.setattr(lock, "ROOT", tmp_path)
    monkeypatch.setattr(release, "DIST", tmp_path / "dist")
    with pytest.raises(SystemExit, match="run `make lock setup`") as refused:
        release.main()
    assert problem in str(refused.value)
    assert not release.DIST.exists()


def test_a_new_environment_has_the_versions_of_the_lock() -> None:
    said = make("--dry-run", "--always-make", "setup", "BIN=.venv/bin").stdout
    [sed] = [line for line in said.splitlines() if line.startswith("sed ")]
    made = subprocess.run(
        sed.partition(" > ")[0], shell=True, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    pinned = [Requirement(line) for line in made.splitlines()]
    pins = lock.pins(lock.LOCK.read_text())
    assert {each.name: str(each.specifier) for each in pinned} == {
        name: f"=={pin.version}" for name, pin in pins.items()
    }
    assert "pip install --quiet --constraint .venv/constraints.txt" in said


def test_the_bill_of_materials_has_both_locks(tmp_path: Path) -> None:
    path = sbom.write(tmp_path)
    made = json.loads(path.read_text())
    assert path.name == f"fleet-emulator-{fleet.__version__}.cdx.json"
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    found = {each["purl"] for each in made["components"]}
    packages = lock.pins(lock.LOCK.read_text())
    assert {f"pkg:pypi/{pin.name}@{pin.version}" for pin in packages.values()} < found
    release = fleet.KUBERNETES_VERSION
    assert f"pkg:golang/k8s.io/kubernetes@{release}" in found
    staging = release.replace("v1.", "v0.", 1)  # what go.mod has instead of v0.0.0
    assert f"pkg:golang/k8s.io/client-go@{staging}" in found
    required = re.findall(r"^\t\S+ v\S+", sbom.GO_MOD.read_text(), re.MULTILINE)
    assert any(each.startswith("pkg:npm/uplot@1.") for each in found)  # a file of the package
    assert len(found) == len(made["components"]) == len(packages) + len(required) + 1
    assert sbom.write(tmp_path).read_text() == sbom.bill(
        lock.LOCK.read_text(), sbom.GO_MOD.read_text()
    )


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
    assert image.last("LABEL").count("org.opencontainers.image.") == 7
    base = "docker.io/library/python:${PYTHON}-slim@${BASE_DIGEST}"
    assert (build.last("FROM"), image.last("FROM")) == (f"{base} AS build", base)


@pytest.mark.parametrize(
    ("digest", "code"),
    [("", 2), ("latest", 2), ("sha256:abc", 2), ("sha256:" + "0123456789abcdef" * 4, 0)],
)
def test_an_image_is_only_built_on_a_base_that_is_named_by_its_digest(
    digest: str, code: int
) -> None:
    ended = make("base-digest", f"BASE_DIGEST={digest}")
    assert ended.returncode == code
    assert ("docker buildx imagetools inspect" in ended.stderr) is bool(code)


def test_the_chart_takes_the_image_that_make_builds() -> None:
    said = make("--dry-run", "image", f"BIN={Path(sys.executable).parent}").stdout
    tags = re.findall(r"docker build .*--tag (\S+)", said)
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
    subprocess.run((*command, f"--target={target}", wheel), check=True, timeout=240)
    monkeypatch.syspath_prepend(target)
    found = packaged_binaries()
    assert found is not None
    assert (found.source, found.version) == (f"package {PACKAGE}", fleet.KUBERNETES_VERSION)
    assert set(found.commands) == {*COMPONENTS, KUBECTL}
    for name, installed in found.commands.items():
        assert Path(installed[0]).stat().st_mode & stat.S_IXUSR
        said = subprocess.run(installed, capture_output=True, text=True, check=True, timeout=120)
        assert said.stdout.strip() == name
    # Every file is recorded, so that pip can take it away again.
    recorded = importlib.metadata.files(PACKAGE)
    assert recorded is not None
    assert all(Path(str(path.locate())).is_file() for path in recorded)


def test_a_release_names_one_license_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = json.loads(sbom.bill("", ""))["metadata"]["component"]["licenses"]
    assert found == [{"expression": project["license"]}]
    label = f'org.opencontainers.image.licenses="{project["license"]}"'
    assert label in (ROOT / "charts" / "Dockerfile").read_text()
