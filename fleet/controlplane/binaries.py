"""Where the control plane's programs come from.

In this order: `--controlplane-bin`, `$FLEET_CONTROLPLANE_BIN`, `$KUBEBUILDER_ASSETS`, PATH, the
package fleet-controlplane-bin, the user cache, and else a build into that cache (build.py). What a
user names must be complete enough; PATH is taken only if etcd and kube-apiserver are both on it.
With `--kubernetes-version` a place counts only if its API server is of that minor.
"""

import dataclasses
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from fleet import KUBERNETES_VERSION
from fleet.controlplane.options import APISERVER, COMPONENTS, ETCD, KUBECTL
from fleet.errors import SetupError, UsageError
from fleet.profile.release import RELEASES, minor_of

MODULE = Path(__file__).parent / "go"
"""One main.go, and for each release that fleet builds `VERSION.mod` and `VERSION.sum`."""
PROGRAM = "controlplane"  # the one binary of all components, as the Go module builds it

PROGRAMS = (*COMPONENTS, KUBECTL)
REQUIRED = (ETCD, APISERVER)

VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
VERSION_TIMEOUT_S = 20.0  # the first time some 100 MB may have to come from a slow disk

PACKAGE = "fleet-controlplane-bin"
"""The distribution that `make controlplane-wheel` packs: the one binary, and nothing else."""
PACKAGE_MODULE = PACKAGE.replace("-", "_")

BIN_VARIABLE = "FLEET_CONTROLPLANE_BIN"
KUBEBUILDER_VARIABLE = "KUBEBUILDER_ASSETS"


@dataclasses.dataclass(frozen=True, slots=True)
class Binaries:
    """The programs of a control plane: each component's command, without flags."""

    commands: Mapping[str, tuple[str, ...]]
    source: str
    version: str  # the API server's, such as `v1.36.3`
    warnings: tuple[str, ...] = ()


BUILT = {each.name: each.newest for each in RELEASES}
"""The release of each minor that fleet builds: `v1.36.3` of 1.36. The oldest is the first."""


def built_release(wanted: str) -> str:
    """Return the release that `--kubernetes-version` means, "" if it does not say. UsageError."""
    if not wanted:
        return ""
    found = BUILT.get(minor_of(wanted))
    if found is None or wanted.removeprefix("v") not in {minor_of(found), found.removeprefix("v")}:
        built = ", ".join(each.removeprefix("v") for each in BUILT.values())
        raise UsageError(
            f"--kubernetes-version {wanted}: fleet builds {built}; choose one of them, such as "
            f"{minor_of(KUBERNETES_VERSION)}, or bring your own programs: --controlplane-bin DIR"
        )
    return found


def find_binaries(argument: Path | None = None, release: str = "") -> Binaries | None:
    """Find the programs without building them; None if only a build can give them.

    `release` is the one to find; "" takes any of a place, and the default of those that are built.
    Raises SetupError if a place that the user named does not have etcd and kube-apiserver, or has
    those of another minor.
    """
    variables = (
        (f"${name}", os.environ.get(name)) for name in (BIN_VARIABLE, KUBEBUILDER_VARIABLE)
    )
    for source, place in (("--controlplane-bin", argument), *variables):
        if place:
            named = _from_place(Path(place).expanduser().absolute(), source)
            if not _fits(named, release):
                wanted = minor_of(release)
                raise SetupError(
                    f"{source} {place}: {APISERVER} is {named.version}, not {wanted} as "
                    "--kubernetes-version says; drop one of the two"
                )
            return named
    found = {name: shutil.which(name) for name in PROGRAMS}
    commands = {name: (path,) for name, path in found.items() if path is not None}
    if all(name in commands for name in REQUIRED):
        on_path = _inspected(commands, "PATH")
        if _fits(on_path, release):
            return on_path
    packaged = packaged_binaries()
    if packaged is not None and _fits(packaged, release):
        return packaged
    return cached_binaries(release or KUBERNETES_VERSION)


def _fits(binaries: Binaries, release: str) -> bool:
    return not release or minor_of(binaries.version) == minor_of(release)


def packaged_binaries() -> Binaries | None:
    """Find what the package fleet-controlplane-bin installed alongside fleet."""
    try:
        package = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    program = str(package.locate_file(f"{PACKAGE_MODULE}/{PROGRAM}"))
    commands = {name: (program, name) for name in PROGRAMS}
    return Binaries(commands, f"package {PACKAGE}", f"v{package.version}")


def cached_binaries(release: str = KUBERNETES_VERSION) -> Binaries | None:
    """Find what an earlier build of a release left in the user cache."""
    directory = cache_directory(release) / "bin"
    commands = {name: (str(directory / name),) for name in PROGRAMS}
    if not all(os.access(command[0], os.X_OK) for command in commands.values()):
        return None
    return Binaries(commands, f"user cache {directory}", release)


def cache_directory(release: str = KUBERNETES_VERSION) -> Path:
    """Name the directory of the build that belongs to a release's module and these flags."""
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "fleet" / "controlplane" / f"{release}-{module_hash(release)}"


def module_hash(release: str) -> str:
    """Hash all that decides what a build of a release makes, but for Go itself."""
    digest = hashlib.sha256(" ".join(linker_flags(release)).encode())
    parts = {"go.mod": f"{release}.mod", "go.sum": f"{release}.sum", "main.go": "main.go"}
    for name, file in parts.items():
        digest.update(name.encode() + b"\0" + (MODULE / file).read_bytes())
    return digest.hexdigest()[:12]


def linker_flags(release: str) -> tuple[str, ...]:
    """List the linker's flags: no symbols, and the version that every component reports.

    Source: hack/lib/version.sh, kube::version::ldflags.
    """
    major, minor, _patch = release.removeprefix("v").split(".")
    values = {
        "gitVersion": release,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    variables = (
        flag
        for package in VERSION_PACKAGES
        for name, value in values.items()
        for flag in ("-X", f"{package}.{name}={value}")
    )
    return ("-s", "-w", *variables)


def _from_place(place: Path, source: str) -> Binaries:
    """Take the programs from a directory, or from the one binary that is all of them."""
    if place.is_dir():
        paths = {name: place / name for name in PROGRAMS}
        commands: dict[str, tuple[str, ...]] = {
            name: (str(path),) for name, path in paths.items() if os.access(path, os.X_OK)
        }
        program = place / PROGRAM
        if not commands and os.access(program, os.X_OK):
            commands = {name: (str(program), name) for name in PROGRAMS}
        missing = [name for name in REQUIRED if name not in commands]
        if missing:
            raise SetupError(f"{source} {place}: no {' and no '.join(missing)} in this directory")
        return _inspected(commands, source)
    if not os.access(place, os.X_OK):
        raise SetupError(f"{source} {place}: neither a directory nor a program")
    return _inspected({name: (str(place), name) for name in PROGRAMS}, source)


def _inspected(commands: Mapping[str, tuple[str, ...]], source: str) -> Binaries:
    """Read the versions, and warn of what is missing and of what does not belong together."""
    versions = {name: _version(commands[name]) for name in COMPONENTS if name in commands}
    server = versions[APISERVER]
    warnings = []
    missing = [name for name in COMPONENTS if name not in commands]
    if missing:
        effect = "pods are not scheduled and nodes are not managed"
        warnings.append(f"no {' and no '.join(missing)} in {source}: {effect}")
    mixed = [
        f"{name} {version}"
        for name, version in versions.items()
        if name != ETCD and version != server
    ]
    if mixed:
        warnings.append(f"mixed versions in {source}: {APISERVER} {server}, {', '.join(mixed)}")
    return Binaries(commands, source, server, tuple(warnings))


def _version(command: tuple[str, ...]) -> str:
    """Ask a program for its version. Raises SetupError if it does not say."""
    program = " ".join(command)
    try:
        answer = subprocess.run(  # noqa: S603  # the user named this program
            (*command, "--version"),
            capture_output=True,
            check=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SetupError(f"{program} --version does not work: {error}") from error
    match = re.search(r"v?\d+\.\d+\.\d+\S*", answer)
    if match is None:
        raise SetupError(f"{program} --version names no version: {answer[:100]!r}")
    return match.group()
