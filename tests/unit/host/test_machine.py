"""Preflight of the machine: memory and file descriptors, by number."""

import resource

import pytest

from fleet.errors import SetupError
from fleet.host import machine
from fleet.host.machine import check_memory, descriptors_needed, raise_descriptors
from fleet.profile.settings import Fidelity

Limits = tuple[int, int]


class Resource:
    """Stands in for the `resource` module: limits that only root may raise."""

    RLIMIT_NOFILE = resource.RLIMIT_NOFILE
    RLIM_INFINITY = resource.RLIM_INFINITY

    def __init__(self, limits: Limits, *, is_root: bool) -> None:
        self.limits = limits
        self._is_root = is_root

    def getrlimit(self, kind: int) -> Limits:
        assert kind == self.RLIMIT_NOFILE
        return self.limits

    def setrlimit(self, kind: int, limits: Limits) -> None:
        assert kind == self.RLIMIT_NOFILE
        if limits[1] > self.limits[1] and not self._is_root:
            raise ValueError("not allowed to raise maximum limit")
        assert limits[0] <= limits[1] or limits[1] == self.RLIM_INFINITY
        self.limits = limits


@pytest.mark.parametrize(
    ("limits", "is_root", "nodes", "is_local", "wanted"),
    [
        ((1024, 20_000), False, 100, False, (1024, 20_000)),  # enough as it is
        ((1024, 20_000), False, 5000, False, (20_000, 20_000)),
        ((1024, 20_000), False, 100, True, (20_000, 20_000)),  # the API server inherits it
        ((1024, 20_000), True, 50_000, False, (52_700, 52_700)),
        ((1024, -1), False, 5000, False, (5450, -1)),
        ((-1, -1), False, 5000, True, (-1, -1)),
    ],
)
def test_the_soft_limit_is_raised_to_what_is_needed(
    monkeypatch: pytest.MonkeyPatch,
    limits: Limits,
    is_root: bool,  # noqa: FBT001 - a parameter of the table
    nodes: int,
    is_local: bool,  # noqa: FBT001
    wanted: Limits,
) -> None:
    fake = Resource(limits, is_root=is_root)
    monkeypatch.setattr(machine, "resource", fake)
    raise_descriptors(nodes, Fidelity.KUBELET, is_local=is_local)
    assert fake.limits == wanted


def test_a_hard_limit_that_is_too_low_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Resource((1024, 4096), is_root=False)
    monkeypatch.setattr(machine, "resource", fake)
    with pytest.raises(SetupError) as caught:
        raise_descriptors(5000, Fidelity.KUBELET, is_local=False)
    assert str(caught.value) == (
        "5000 nodes in fidelity kubelet need 5450 open files, the limit is 4096: raise it "
        "(ulimit -Hn 5450), take fewer --nodes, --no-agents, or --fidelity light"
    )
    assert fake.limits == (1024, 4096)


def test_light_nodes_share_their_connections() -> None:
    assert descriptors_needed(100_000, Fidelity.LIGHT) == descriptors_needed(1, Fidelity.LIGHT)
    assert descriptors_needed(100_000, Fidelity.LIGHT) < 1024


def test_memory_that_does_not_suffice_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: 2_000_000_000)
    check_memory(5000, Fidelity.KUBELET, is_local=False)
    check_memory(1000, Fidelity.LIGHT, is_local=True)
    with pytest.raises(SetupError, match=r"^5000 nodes in fidelity kubelet need about 5\.1 GB"):
        check_memory(5000, Fidelity.KUBELET, is_local=True)


def test_there_is_some_memory() -> None:
    assert machine.available_bytes() > 0
