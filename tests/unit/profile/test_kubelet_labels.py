"""Which labels NodeRestriction lets a kubelet set on its Node."""

import pytest

from fleet.profile.node_model import forbidden_labels


@pytest.mark.parametrize(
    ("key", "is_forbidden"),
    [
        ("node-role.kubernetes.io/worker", True),
        ("node-role.kubernetes.io/control-plane", True),
        ("node-restriction.kubernetes.io/team", True),
        ("pool.node-restriction.kubernetes.io/team", True),
        ("kubernetes.io/role", True),
        ("other.k8s.io/foo", True),
        ("k8s.io/foo", True),
        ("cloud.google.com/gke-nodepool", False),
        ("eks.amazonaws.com/nodegroup", False),
        ("kubernetes.io/hostname", False),
        ("beta.kubernetes.io/arch", False),
        ("topology.kubernetes.io/zone", False),
        ("topology.kubernetes.io/rack", True),
        ("node.kubernetes.io/windows-build", False),
        ("foo.node.kubernetes.io/bar", False),
        ("kubelet.kubernetes.io/bar", False),
        ("foonode.kubernetes.io/bar", True),
        ("notkubernetes.io/bar", False),
        ("type", False),
        ("fleet.emulator/run", False),
    ],
)
def test_what_a_kubelet_may_not_set(key: str, *, is_forbidden: bool) -> None:
    assert forbidden_labels([key]) == (frozenset({key}) if is_forbidden else frozenset())
