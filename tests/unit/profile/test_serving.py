"""Where kubelets answer, and what their Nodes say of it."""

import dataclasses
import ipaddress

import pytest

from fleet.profile.addresses import NOWHERE, Serving
from fleet.profile.loader import load_mix
from fleet.profile.node_model import NodeModel

SOCKETS = "ExtendWebSocketsToKubelet"


def adapted(serving: Serving) -> NodeModel:
    (model,) = load_mix().models
    return model.on_server("v1.36.3").adapted(zone_labels=True, serving=serving)


def test_each_node_has_a_loopback_address_of_its_own() -> None:
    model = adapted(Serving(port=10250))
    facts = model.identity(300, "n")
    assert facts.addresses == (("InternalIP", "127.128.1.45"), ("Hostname", "n"))
    assert facts.kubelet_port == 10250
    assert SOCKETS in model.release.declared_features
    assert model.addresses(300) == "127.128.1.45"  # of its pods in the host's network, too
    assert model.index_of("127.128.1.45") == 300


@pytest.mark.parametrize(
    ("pools", "addresses"),
    [
        ("198.18.0.0/15,fd00::/64", "127.128.1.45,fd00::12d"),
        ("fd00::/64,198.18.0.0/15", "127.128.1.45,fd00::12d"),
        ("fd00::/64", "127.128.1.45,fd00::12d"),
    ],
)
def test_an_address_that_is_served_is_the_first_of_two(pools: str, addresses: str) -> None:
    made = adapted(Serving(port=10250))
    networks = tuple(map(ipaddress.ip_network, pools.split(",")))
    model = dataclasses.replace(made, address_pools=networks)
    assert model.addresses(300) == addresses
    assert model.index_of(addresses) == 300


def test_or_a_port_of_one_address() -> None:
    model = adapted(Serving("10.0.0.7", 20_000, first=300))
    facts = model.identity(302, "n")
    assert facts.addresses[0] == ("InternalIP", "10.0.0.7")
    assert facts.kubelet_port == 20_002


def test_a_node_without_a_server_declares_none() -> None:
    model = adapted(NOWHERE)
    facts = model.identity(300, "n")
    assert facts.addresses[0] == ("InternalIP", "198.18.1.45")
    assert facts.kubelet_port == 0
    assert SOCKETS not in model.release.declared_features
    assert model.release.declared_features


@pytest.mark.parametrize("serving", [Serving(port=10250), Serving("10.0.0.7", 20_000, first=300)])
def test_a_node_is_found_by_where_it_answers(serving: Serving) -> None:
    for index in (300, 301, 4_000):
        assert serving.index_of(serving.address_of(index), serving.port_of(index)) == index


def test_localhost_is_no_node() -> None:
    assert Serving(port=10250).index_of("127.0.0.1", 10250) < 0
