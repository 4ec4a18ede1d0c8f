"""`make new-release`: the module of a release, and what changed in its kubelet."""

import re

import pytest

from fleet.controlplane.binaries import BUILT, MODULE
from tools import new_release

UPSTREAM = """\
module k8s.io/kubernetes

go 1.27.0

godebug default=go1.27

require (
\tk8s.io/api v0.0.0
)

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/streaming => ./staging/src/k8s.io/streaming
)
"""
GATES = """\
var defaultVersionedKubernetesFeatureGates = map[featuregate.Feature]featuregate.VersionedSpecs{
\tNews: {
\t\t{Version: version.MustParse("1.38"), Default: false, PreRelease: featuregate.Alpha},
\t},

\tgenericfeatures.Grown: {
\t\t{Version: version.MustParse("1.36"), Default: false, PreRelease: featuregate.Alpha},
\t\t{Version: version.MustParse("1.37"), Default: true, PreRelease: featuregate.Beta},
\t\t{Version: version.MustParse("1.38"), Default: true, PreRelease: featuregate.GA, LockToDefault: true}, // remove in 1.41
\t},
}
"""  # noqa: E501
CLIENT_GATES = """\
\tWatchListClient: {
\t\t{Version: version.MustParse("1.30"), Default: false, PreRelease: Beta},
\t\t{Version: version.MustParse("1.35"), Default: true, PreRelease: Beta},
\t},
"""
CALLS = """\
\tnode, err := kl.heartbeatClient.CoreV1().Nodes().Get(ctx, name, opts)
\t_, err = c.client.CertificatesV1().
\t\tPodCertificateRequests(namespace).Create(ctx, request, metav1.CreateOptions{})
"""


def test_a_module_replaces_what_kubernetes_has_in_folders() -> None:
    lines = new_release.module_text("v1.38.0", UPSTREAM).splitlines()
    assert "require k8s.io/kubernetes v1.38.0" in lines
    assert {"go 1.27.0", "godebug default=go1.27"} <= {*lines}
    assert [line.strip() for line in lines if "=>" in line] == [
        "k8s.io/api => k8s.io/api v0.38.0",
        "k8s.io/streaming => k8s.io/streaming v0.38.0",
    ]


@pytest.mark.parametrize("release", BUILT.values())
def test_each_module_is_as_the_tool_begins_it(release: str) -> None:
    """What it keeps of each is enough to write it again: the rest is of `go mod tidy`."""
    written = (MODULE / f"{release}.mod").read_text()
    staging = re.findall(r"^\t(k8s\.io/\S+) => ", written, re.MULTILINE)
    replaced = "".join(f"\t{each} => ./staging/src/{each}\n" for each in staging)
    head = re.search(r"^go .*\n\ngodebug .*\n", written, re.MULTILINE)
    assert head is not None
    begun = new_release.module_text(release, f"{head[0]}\nreplace (\n{replaced})\n")
    assert {*begun.splitlines()} - {f"require k8s.io/kubernetes {release}"} <= {
        *written.splitlines()
    }


def test_gates_are_as_a_release_has_them() -> None:
    assert new_release.gates(GATES, "v1.36.3") == {"Grown": "off (Alpha)"}
    assert new_release.gates(GATES, "v1.37.2") == {"Grown": "on (Beta)"}
    newest = {"News": "off (Alpha)", "Grown": "on (GA, locked)"}
    assert new_release.gates(GATES, "v1.38.0") == newest
    assert new_release.gates(CLIENT_GATES, "v1.34.4") == {"WatchListClient": "off (Beta)"}


def test_calls_are_found_across_lines() -> None:
    assert new_release.calls(CALLS) == {
        "get CoreV1 Nodes",
        "create CertificatesV1 PodCertificateRequests",
    }


def test_what_is_no_release_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["new_release.py", "1.38"])
    with pytest.raises(SystemExit) as ended:
        new_release.main()
    assert ended.value.code == 2
    assert "1.38 is no release: write it as v1.38.0" in capsys.readouterr().err
