"""`make new-release V=v1.38.0`: pin a release of Kubernetes, and print what changed in its kubelet.

Writes `VERSION.mod` and `VERSION.sum` next to the control plane's main.go, in place of an older
patch release of that minor. Then prints what differs from the newest minor before it: feature gates
that the kubelet reads, its calls of the API server, and its reasons for Events. With these the
record of the new minor in `fleet/profile/releases.toml` begins.
"""

import argparse
import asyncio
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from fleet.controlplane.binaries import BUILT, MODULE
from fleet.controlplane.build import find_go
from fleet.profile.release import minor_of

VERSION = re.compile(r"v1\.\d+\.\d+")
KUBELET = (
    "cmd/kubelet",
    "pkg/kubelet",
    "pkg/volume",
    "pkg/credentialprovider",
    "pkg/kubeapiserver",
)
"""Folders of k8s.io/kubernetes with what a kubelet runs."""
KUBERNETES = "k8s.io/kubernetes"
OWN_GATES, CLIENT_GATES = "pkg/features/kube_features.go", "features/known_features.go"
STAGING = re.compile(r"^\t(k8s\.io/\S+) => \./staging", re.MULTILINE)
SPECS = re.compile(r"^\t(?:\w+\.)?(\w+): \{\n((?:\t\t\{.*\n)+)\t\},$", re.MULTILINE)
SPEC = re.compile(r'MustParse\("([\d.]+)"\), Default: (\w+), PreRelease: featuregate\.(\w+|"")')
CLIENT_SPEC = re.compile(r'MustParse\("([\d.]+)"\), Default: (\w+), PreRelease: (\w+)')
CALL = re.compile(
    r"\.(\w+V\d\w*)\(\)\s*\.\s*(\w+)\([^()]*\)\s*"
    r"\.\s*(Get|List|Watch|Create|CreateToken|Update|UpdateStatus|Patch|Delete|Evict|Apply)\("
)
REASON = re.compile(r'^\t\w+\s*= "(\w+)"', re.MULTILINE)


def module_text(release: str, upstream: str) -> str:
    """Return the go.mod of a release before `go mod tidy`, from that of k8s.io/kubernetes."""
    lines = {name: re.search(rf"^{name} .*$", upstream, re.MULTILINE) for name in ("go", "godebug")}
    go, godebug = (found[0] for found in lines.values() if found)
    staging = release.replace("v1.", "v0.", 1)
    replaced = [f"\t{each} => {each} {staging}\n" for each in STAGING.findall(upstream)]
    return f"""module controlplane

{go}

{godebug}

// Not part of the control plane, but built in this module: `go build k8s.io/kubernetes/cmd/kubemark`.
tool k8s.io/kubernetes/cmd/kubemark

require k8s.io/kubernetes {release}

// k8s.io/kubernetes asks for its staging modules as v0.0.0 and replaces them by its own folders.
replace (
{"".join(replaced)})
"""  # noqa: E501 - as the modules that were written before have it


def write_module(release: str, directory: Path = MODULE) -> None:
    """Write the module of a release, in place of that of another patch release of its minor."""
    upstream = (source(KUBERNETES, release) / "go.mod").read_text()
    (directory / f"{release}.mod").write_text(module_text(release, upstream))
    go = asyncio.run(find_go())
    subprocess.run((go, "mod", "tidy", f"-modfile={release}.mod"), cwd=directory, check=True)
    for other in directory.glob(f"v{minor_of(release)}.*"):
        if other.stem != release:
            other.unlink()


def source(module: str, release: str) -> Path:
    """Return the folder of a module at a release, downloaded if it is missing."""
    version = release if module == KUBERNETES else release.replace("v1.", "v0.", 1)
    command = (asyncio.run(find_go()), "mod", "download", "-json", f"{module}@{version}")
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    found = json.loads(answer.stdout or "{}")
    if "Dir" not in found:
        raise SystemExit(f"{module}@{version}: {found.get('Error') or answer.stderr}".strip())
    return Path(found["Dir"])


def gates(text: str, release: str) -> dict[str, str]:
    """Return the feature gates that a source file declares, as they are at a release."""
    minor = _number(minor_of(release))
    found = {}
    for name, body in SPECS.findall(text):
        specs = SPEC.findall(body) or CLIENT_SPEC.findall(body)
        known = [each for each in specs if _number(each[0]) <= minor]
        if known:
            _, default, stage = known[-1]
            is_locked = body.splitlines()[len(known) - 1].find("LockToDefault: true") >= 0
            lock = ", locked" if is_locked else ""
            found[name] = f"{'on' if default == 'true' else 'off'} ({stage}{lock})"
    return found


def calls(text: str) -> set[str]:
    """Return the calls of the API server in a source file, as `get CoreV1 Nodes`."""
    return {f"{verb.lower()} {group} {what}" for group, what, verb in CALL.findall(text)}


class Kubelet:
    """What a release's kubelet is, as far as its source says it in a form that can be compared."""

    def __init__(self, release: str) -> None:
        kubernetes, client = (source(each, release) for each in (KUBERNETES, "k8s.io/client-go"))
        of_client = gates((client / CLIENT_GATES).read_text(), release)
        self.gates = gates((kubernetes / OWN_GATES).read_text(), release) | of_client
        texts = [path.read_text() for each in KUBELET for path in _sources(kubernetes / each)]
        self.read = {
            name for name in self.gates if any(f"features.{name}" in each for each in texts)
        }
        self.read |= of_client.keys()  # every client reads them
        self.calls = set().union(*map(calls, texts))
        events = (kubernetes / "pkg/kubelet/events/event.go").read_text()
        self.reasons = set(REASON.findall(events))


def _sources(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*.go")):
        if not path.name.endswith("_test.go") and "testing" not in path.parts:
            yield path


def _number(minor: str) -> int:
    return int(minor.partition(".")[2])


def changes(before: Kubelet, after: Kubelet) -> Iterator[str]:
    """Yield one line for each difference, below a heading for each kind."""
    yield "feature gates that the kubelet reads:"
    read = before.read | after.read
    yield from _changed(_only(before.gates, read), _only(after.gates, read))
    yield "calls of the API server:"
    yield from _changed(dict.fromkeys(before.calls, "made"), dict.fromkeys(after.calls, "made"))
    yield "reasons for Events:"
    yield from _changed(
        dict.fromkeys(before.reasons, "known"), dict.fromkeys(after.reasons, "known")
    )


def _only(gates: Mapping[str, str], names: set[str]) -> dict[str, str]:
    return {name: state for name, state in gates.items() if name in names}


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, "-"), after.get(name, "-")
        if old != new:
            yield f"  {name}: {old} -> {new}"


def main() -> None:
    """Pin the release that is named, and print what changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release", help="such as v1.38.0")
    parser.add_argument("--print-only", action="store_true", help="write nothing")
    options = parser.parse_args()
    release = options.release
    if not VERSION.fullmatch(release):
        parser.error(f"{release} is no release: write it as v1.38.0")
    if not options.print_only:
        write_module(release)
        print(
            f"wrote {MODULE / release}.mod and .sum; fleet/profile/releases.toml needs its record"
        )
    minor = _number(minor_of(release))
    older = [each for each in BUILT.values() if _number(minor_of(each)) < minor]
    if not older:
        parser.error(f"fleet has no release before {release} to compare with")
    before, after = Kubelet(older[-1]), Kubelet(release)
    print("\n".join((f"{older[-1]} -> {release}", *changes(before, after))))


if __name__ == "__main__":
    main()
