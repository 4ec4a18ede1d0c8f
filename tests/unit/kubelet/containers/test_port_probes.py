"""Probes of ports, declared and not, and connections to them."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from world.pod_world import World, container, make_pod

from fleet.k8s.pods import PortSpec, ProbeSpec
from fleet.k8s.streams import Refusal
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.runtime.ports import PortSession
from fleet.server.host_interface import port_of

PORTS = (PortSpec(8080),)


AGNHOST: dict[str, Any] = {
    "image": "registry.k8s.io/agnhost:2.53",
    "args": ("netexec",),
}


def world_with(
    probe: ProbeSpec | None, ports: tuple[PortSpec, ...] = PORTS, **fields: object
) -> World:
    world = World()
    world.create(make_pod(container("c", readiness_probe=probe, ports=ports, **fields)))
    world.run(20)
    return world


@pytest.mark.parametrize(
    ("probe", "ready"),
    [
        (ProbeSpec("httpGet", "http", port=8080, path="/"), True),
        (ProbeSpec("httpGet", "http", port=8081, path="/"), False),
        (ProbeSpec("tcpSocket", port=8081), False),
        (ProbeSpec("grpc", port=8081), False),
        (ProbeSpec("tcpSocket", host="192.0.2.77", port=8081), True),
    ],
)
def test_a_probe_of_any_port_passes_unless_the_server_is_known(
    probe: ProbeSpec,
    ready: bool,  # noqa: FBT001
) -> None:
    assert world_with(probe).container().ready
    assert world_with(probe, **AGNHOST).container().ready is ready


def test_without_declared_ports_all_of_them_answer() -> None:
    assert world_with(ProbeSpec("tcpSocket", port=8081), ()).container().ready


def test_a_connection_to_a_port() -> None:
    world = world_with(None)
    kubelet = cast(
        "VirtualKubelet",
        SimpleNamespace(pods=world.loop, env=world.env, on_container_changed=print),
    )
    pod = next(iter(world.loop))
    one = port_of(kubelet, pod, 8080, world.now_ns)
    assert isinstance(one, PortSession)
    one.write(b"GET /etc/hostname HTTP/1.1\r\n\r\n", world.now_ns)
    assert one.advance(9999, world.now_ns).data.endswith(b"\r\n\r\nweb\n")
    assert isinstance(port_of(kubelet, pod, 81, world.now_ns), PortSession)


def test_a_connection_to_a_port_of_a_server_that_is_known_to_listen_elsewhere() -> None:
    world = world_with(None, **AGNHOST)
    kubelet = cast(
        "VirtualKubelet",
        SimpleNamespace(pods=world.loop, env=world.env, on_container_changed=print),
    )
    refused = port_of(kubelet, next(iter(world.loop)), 81, world.now_ns)
    assert isinstance(refused, Refusal)
    assert refused.text.startswith('failed to connect to localhost:81 inside namespace "')
