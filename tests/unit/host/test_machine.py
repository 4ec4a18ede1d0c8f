"""Preflight of the machine: memory, file descriptors and local ports, by number."""

import resource
from pathlib import Path

import pytest

from fleet.errors import SetupError
from fleet.host import machine
from fleet.host.machine import Load, check_memory, check_ports, raise_descriptors
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
    ("limits", "is_root", "nodes", "wanted"),
    [
        ((1024, 20_000), False, 100, (20_000, 20_000)),  # pods and clients bring more
        ((1024, 20_000), False, 5000, (20_000, 20_000)),
        ((20_000, 20_000), False, 5000, (20_000, 20_000)),
        ((1024, 20_000), True, 50_000, (52_700, 52_700)),
        ((1024, -1), False, 5000, (5450, -1)),
        ((8192, -1), False, 5000, (8192, -1)),
        ((-1, -1), False, 5000, (-1, -1)),
    ],
)
def test_the_soft_limit_is_raised_to_the_hard_one(
    monkeypatch: pytest.MonkeyPatch, limits: Limits, nodes: int, wanted: Limits, *, is_root: bool
) -> None:
    fake = Resource(limits, is_root=is_root)
    monkeypatch.setattr(machine, "resource", fake)
    raise_descriptors(Load(nodes, Fidelity.KUBELET))
    assert fake.limits == wanted


def test_a_hard_limit_that_is_too_low_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Resource((1024, 4096), is_root=False)
    monkeypatch.setattr(machine, "resource", fake)
    with pytest.raises(SetupError) as caught:
        raise_descriptors(Load(5000, Fidelity.KUBELET))
    assert str(caught.value) == (
        "5000 nodes in fidelity kubelet need 5450 open files, the limit is 4096: raise it "
        "(ulimit -Hn 5450), take fewer --nodes, --no-agents, or --fidelity light"
    )
    assert fake.limits == (1024, 4096)


def test_sockets_that_listen_are_open_files_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--serve ports` has a socket for each node."""
    fake = Resource((1024, 2249), is_root=False)
    monkeypatch.setattr(machine, "resource", fake)
    raise_descriptors(Load(1000, Fidelity.KUBELET), listening=999)
    with pytest.raises(SetupError, match="need 2250 open files, the limit is 2249"):
        raise_descriptors(Load(1000, Fidelity.KUBELET), listening=1000)


@pytest.mark.parametrize(
    ("nodes", "fidelity", "own_watches", "agents", "connections"),
    [
        (10_000, Fidelity.KUBELET, True, 0.0, 10_500),
        (10_000, Fidelity.KUBELET, True, 2.0, 31_500),
        (10_000, Fidelity.KUBELET, False, 0.0, 10_500),
        (1, Fidelity.LIGHT, False, 0.0, 134),
        (5_000, Fidelity.LIGHT, False, 0.0, 134),
        (100_000, Fidelity.LIGHT, False, 0.0, 2_100),
        (3_000, Fidelity.LIGHT, True, 0.0, 399),
        (20_000, Fidelity.LIGHT, True, 0.0, 2_182),
        (20_000, Fidelity.LIGHT, True, 1.0, 23_182),
    ],
)
def test_connections_are_computed_for_all_nodes(
    nodes: int, fidelity: Fidelity, agents: float, connections: int, *, own_watches: bool
) -> None:
    assert Load(nodes, fidelity, agents, own_watches).connections == connections


def test_local_ports_that_do_not_suffice_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ports = tmp_path / "ip_local_port_range"
    ports.write_text("32768\t60999\n", encoding="ascii")
    monkeypatch.setattr(machine, "LOCAL_PORTS", ports)
    assert machine.local_ports() == 28_232
    check_ports(Load(26_887, Fidelity.KUBELET))
    check_ports(Load(100_000, Fidelity.LIGHT, own_watches=True))
    with pytest.raises(SetupError) as caught:
        check_ports(Load(26_889, Fidelity.KUBELET))
    assert str(caught.value) == (
        "26889 nodes in fidelity kubelet need 28233 connections to the API server, this machine "
        'has 28232 local ports: widen the range (sysctl -w net.ipv4.ip_local_port_range="1024 '
        '65535"), take fewer --nodes, --no-agents, or --fidelity light'
    )
    with pytest.raises(SetupError, match=r"or --watches shared$"):
        check_ports(Load(25_000, Fidelity.LIGHT, 1.0, own_watches=True))
    monkeypatch.setattr(machine, "LOCAL_PORTS", tmp_path / "none")
    assert machine.local_ports() == 65_535


def test_memory_that_does_not_suffice_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: 2_000_000_000)
    check_memory(Load(5000, Fidelity.KUBELET), is_local=False)
    check_memory(Load(1000, Fidelity.LIGHT), is_local=True)
    with pytest.raises(SetupError, match=r"^5000 nodes in fidelity kubelet need about 5\.1 GB"):
        check_memory(Load(5000, Fidelity.KUBELET), is_local=True)
    check_memory(Load(95_000, Fidelity.LIGHT), is_local=False)
    with pytest.raises(SetupError, match=r"^95000 nodes .* 2\.0 GB are available.*watches shared$"):
        check_memory(Load(95_000, Fidelity.LIGHT, own_watches=True), is_local=False)


def test_there_is_some_memory() -> None:
    assert machine.available_bytes() > 0
