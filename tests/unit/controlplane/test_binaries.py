"""Where the programs are looked for, and what is said when there are none."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.go_program import build_e2e_tests

from fleet import KUBERNETES_VERSION
from fleet.controlplane import binaries, build
from fleet.controlplane.binaries import find_binaries
from fleet.controlplane.options import APISERVER, COMPONENTS, ETCD, SCHEDULER
from fleet.errors import Exit, SetupError, UsageError
from fleet.profile.release import minor_of


@pytest.fixture(autouse=True)
def empty_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (binaries.BIN_VARIABLE, binaries.KUBEBUILDER_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "GO_PLACES", ())


def program(directory: Path, name: str, version: str = "v1.36.3") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\necho Kubernetes {version}\n")
    path.chmod(0o755)
    return path


def programs(directory: Path, names: Sequence[str] = COMPONENTS) -> Path:
    for name in names:
        program(directory, name)
    return directory


def source(argument: Path | None = None) -> str:
    found = find_binaries(argument)
    assert found is not None
    return found.source


def test_the_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_binaries() is None
    cache = binaries.cache_directory() / "bin"
    programs(cache, binaries.PROGRAMS)
    assert source() == f"user cache {cache}"
    monkeypatch.setenv("PATH", str(programs(tmp_path / "path")))
    assert source() == "PATH"
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(programs(tmp_path / "assets")))
    assert source() == "$KUBEBUILDER_ASSETS"
    monkeypatch.setenv("FLEET_CONTROLPLANE_BIN", str(programs(tmp_path / "variable")))
    assert source() == "$FLEET_CONTROLPLANE_BIN"
    assert source(programs(tmp_path / "argument")) == "--controlplane-bin"


def test_path_counts_only_with_etcd_and_apiserver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(programs(tmp_path / "path", (APISERVER, SCHEDULER))))
    assert find_binaries() is None


def test_the_cache_is_named_by_version_and_module() -> None:
    name = binaries.cache_directory().name
    assert name == f"{KUBERNETES_VERSION}-{binaries.module_hash(KUBERNETES_VERSION)}"


@pytest.mark.parametrize("wanted", ["1.35", "v1.35", "1.35.4", "v1.35.4"])
def test_a_release_is_named_by_its_minor_or_in_full(wanted: str) -> None:
    assert binaries.built_release(wanted) == "v1.35.4"
    assert binaries.built_release("") == ""


@pytest.mark.parametrize("wanted", ["1.33", "1.36.1", "1", "newest"])
def test_a_release_that_fleet_does_not_build_is_refused(wanted: str) -> None:
    with pytest.raises(UsageError, match=f"--kubernetes-version {wanted}: fleet builds 1.34.4, "):
        binaries.built_release(wanted)


def test_each_release_has_the_modules_of_its_own_kubernetes_alone() -> None:
    releases = binaries.BUILT
    assert {path.stem for path in binaries.MODULE.glob("v*.mod")} == {*releases.values()}
    assert KUBERNETES_VERSION in releases.values()
    hashes = {binaries.module_hash(each) for each in releases.values()}
    assert len(hashes) == len(releases)
    for release in releases.values():
        text = (binaries.MODULE / f"{release}.mod").read_text()
        assert f"k8s.io/kubernetes {release}\n" in text
        replaced = set(re.findall(r"^\tk8s\.io/\S+ => k8s\.io/\S+ (\S+)$", text, re.MULTILINE))
        assert replaced == {release.replace("v1.", "v0.")}


def test_a_place_counts_only_with_the_minor_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(programs(tmp_path / "path")))
    assert find_binaries(None, "v1.35.4") is None
    cache = programs(binaries.cache_directory("v1.35.4") / "bin", binaries.PROGRAMS)
    found = find_binaries(None, "v1.35.4")
    assert found is not None
    assert (found.source, found.version) == (f"user cache {cache}", "v1.35.4")
    assert source() == "PATH"
    with pytest.raises(SetupError, match=r"is v1\.36\.3, not 1\.35 as --kubernetes-version says"):
        find_binaries(tmp_path / "path", "v1.35.4")


def test_a_half_filled_cache_is_no_build() -> None:
    programs(binaries.cache_directory() / "bin", (ETCD, APISERVER))
    assert find_binaries() is None


def test_a_partial_set_works_with_a_warning(tmp_path: Path) -> None:
    found = find_binaries(programs(tmp_path / "assets", (ETCD, APISERVER)))
    assert found is not None
    assert set(found.commands) == {ETCD, APISERVER}
    assert found.version == "v1.36.3"
    (warning,) = found.warnings
    assert "no kube-scheduler and no kube-controller-manager" in warning


def test_a_mix_of_versions_is_never_silent(tmp_path: Path) -> None:
    directory = programs(tmp_path / "bin")
    program(directory, SCHEDULER, "v1.34.1")
    found = find_binaries(directory)
    assert found is not None
    (warning,) = found.warnings
    assert "kube-apiserver v1.36.3, kube-scheduler v1.34.1" in warning


def test_one_binary_is_every_component(tmp_path: Path) -> None:
    path = program(tmp_path, "controlplane")
    for argument in (path, tmp_path):
        found = find_binaries(argument)
        assert found is not None
        assert found.commands[SCHEDULER] == (str(path), SCHEDULER)
        assert not found.warnings


def test_a_named_directory_without_an_apiserver_is_an_error(tmp_path: Path) -> None:
    programs(tmp_path / "assets", (ETCD,))
    with pytest.raises(SetupError, match="no kube-apiserver in this directory"):
        find_binaries(tmp_path / "assets")
    with pytest.raises(SetupError, match="neither a directory nor a program"):
        find_binaries(tmp_path / "missing")


def test_a_program_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    directory = programs(tmp_path / "bin")
    (directory / ETCD).write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(SetupError, match="etcd --version does not work"):
        find_binaries(directory)


def test_without_go_one_message_names_the_ways_out() -> None:
    with pytest.raises(SetupError) as raised:
        asyncio.run(build.provide_binaries())
    assert raised.value.exit_code is Exit.SETUP
    for way in (
        "Go 1.26",
        "go.dev/dl",
        "--controlplane-bin",
        f"setup-envtest use {minor_of(KUBERNETES_VERSION)}",
        "--context",
    ):
        assert way in str(raised.value)


def fake_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a `go` on PATH whose `env` tells GOVERSION and whose other commands run `script`."""
    path = program(tmp_path / "go", "go")
    path.write_text(f'#!/bin/sh\nif [ "$1" = env ]; then echo go1.26.1; exit; fi\n{script}\n')
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")


def test_an_old_go_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = program(tmp_path / "go", "go")
    path.write_text("#!/bin/sh\necho go1.19.2\n")
    monkeypatch.setenv("PATH", str(path.parent))
    with pytest.raises(SetupError, match=r"cannot build them \(go1\.19\.2\): Go 1\.26 is needed"):
        asyncio.run(build.provide_binaries())


# `go build ... -o FILE .`: the file is the last argument but one.
BUILD = """
echo "go: downloading k8s.io/api v0.36.3" >&2
echo fmt >&2
while [ "$1" != -o ]; do shift; done
echo '#!/bin/sh' > "$2"; chmod +x "$2"
"""


def test_a_build_shows_progress_and_fills_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(tmp_path, monkeypatch, BUILD)
    lines: list[str] = []
    built = asyncio.run(build.provide_binaries(None, lines.append))
    assert built.source.startswith("built into ")
    assert [line.rpartition(", ")[0] for line in lines[:3]] == [
        "building the control plane: looking for its Go modules",
        "building the control plane: downloading modules",
        "building the control plane: compiling, 0 of ~2700 packages",
    ]
    assert source().startswith("user cache ")
    left = {path.name for path in binaries.cache_directory().parent.iterdir()}
    name = binaries.cache_directory().name
    assert left == {name, f"{name}.lock"}


def test_a_release_is_built_with_its_own_modules_into_a_place_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(tmp_path, monkeypatch, f'echo "$1 $2" >> {tmp_path}/calls\n{BUILD}')
    built = asyncio.run(build.provide_binaries(release="v1.35.4"))
    assert built.version == "v1.35.4"
    assert (tmp_path / "calls").read_text().splitlines() == ["build -modfile=v1.35.4.mod"]
    assert find_binaries() is None
    assert find_binaries(None, "v1.35.4") is not None


def test_the_projects_own_tests_are_built_once_beside_the_control_plane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = (binaries.MODULE / f"{KUBERNETES_VERSION}.mod").read_text()
    fake_go(tmp_path, monkeypatch, f'echo "$1 $2" >> {tmp_path}/calls\n{BUILD}')
    directory = asyncio.run(build_e2e_tests())
    assert directory != binaries.cache_directory()
    assert {path.name for path in directory.iterdir()} >= {"e2e.test", "ginkgo"}
    assert (directory / "e2e.mod").read_text() == shipped
    assert asyncio.run(build_e2e_tests()) == directory
    assert (tmp_path / "calls").read_text().splitlines() == ["test -c", "build -mod=mod"]
    assert binaries.cached_binaries() is None


def test_a_failed_build_keeps_its_log_and_leaves_no_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(tmp_path, monkeypatch, "echo 'no space left on device' >&2; exit 1")
    with pytest.raises(SetupError, match=r"the log is .*\.log:\n  no space left on device"):
        asyncio.run(build.provide_binaries())
    name = binaries.cache_directory().name
    left = {path.name for path in binaries.cache_directory().parent.iterdir()}
    assert left == {f"{name}.log", f"{name}.lock"}
    fake_go(tmp_path, monkeypatch, BUILD)
    assert asyncio.run(build.provide_binaries()).version == KUBERNETES_VERSION


async def test_a_cancelled_build_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(tmp_path, monkeypatch, 'echo fmt; [ "$1" = env ] || exec sleep 60')
    compiling = asyncio.Event()

    def progress(line: str) -> None:
        if "compiling, 0 of ~2700 packages" in line:
            compiling.set()

    task = asyncio.create_task(build.build_binaries(progress))
    await compiling.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    name = binaries.cache_directory().name
    left = {path.name for path in binaries.cache_directory().parent.iterdir()}
    assert left == {f"{name}.log", f"{name}.lock"}


async def test_two_builders_build_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_go(tmp_path, monkeypatch, f"echo $1 >> {tmp_path}/calls\n{BUILD}")
    monkeypatch.setattr(build, "LOCK_POLL_S", 0.01)
    await asyncio.gather(build.build_binaries(), build.build_binaries())
    assert (tmp_path / "calls").read_text().split() == ["build"]
