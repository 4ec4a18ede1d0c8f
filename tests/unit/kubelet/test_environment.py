"""What the kubelets of one profile share."""

import dataclasses
import ipaddress

from world.pod_world import model_of

from fleet.clock import Draws
from fleet.kubelet.environment import Environment
from fleet.profile.serving import NodeRange, Serving

FOUR, SIX = "10.244.3.0/24", "fd00:3::/64"
SERVED = Serving(port=10250, range=NodeRange(ipaddress.IPv4Network("10.77.0.0/16"), pods_max=110))


def test_ranges_of_pods_are_the_node_s_but_of_ipv4_those_that_are_served() -> None:
    model = model_of(addressPool="198.18.0.0/15,fd00:c6:12::/108")
    env = Environment(model, Draws(1))
    for said in ("", FOUR, f"{SIX},{FOUR}"):
        assert env.pod_cidrs_of("198.18.0.2,fd00:c6:12::2", said) == said
    env.model = dataclasses.replace(model, serving=SERVED)
    host_ips = env.model.addresses(1)
    assert host_ips == "10.77.0.2,fd00:c6:12::2"
    served = "10.77.128.128/25"
    assert env.pod_cidrs_of(host_ips, "") == env.pod_cidrs_of(host_ips, FOUR) == served
    assert env.pod_cidrs_of(host_ips, f"{SIX},{FOUR}") == f"{served},{SIX}"
