"""Probes of ports, declared and not, and connections to them."""

from types import SimpleNamespace
from typing import cast

import pytest
from world.pod_world import World, container, make_pod

from fleet.k8s.pods import PortSpec, ProbeSpec
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.runtime.ports import PortSession
from fleet.server.host_interface import port_of

PORTS = (PortSpec(8080),)


def world_with(probe: ProbeSpec | None, ports: tuple[PortSpec, ...] = PORTS) -> World:
    world = World()
    world.create(make_pod(container("c", readiness_probe=probe, ports=ports)))
    world.run(20)
    return world


@pytest.mark.parametrize("ports", [PORTS, ()])
@pytest.mark.parametrize(
    "probe",
    [
        ProbeSpec("httpGet", "http", port=8080, path="/"),
        ProbeSpec("httpGet", "http", port=8081, path="/"),
        ProbeSpec("tcpSocket", port=8081),
        ProbeSpec("grpc", port=8081),
        ProbeSpec("tcpSocket", host="192.0.2.77", port=8081),
    ],
)
def test_a_probe_of_any_port_passes(probe: ProbeSpec, ports: tuple[PortSpec, ...]) -> None:
    assert world_with(probe, ports).container().ready


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
    assert one.advance(9999, world.now_ns).data.endswith(b"\r\n\r\nweb")
    assert isinstance(port_of(kubelet, pod, 81, world.now_ns), PortSession)
