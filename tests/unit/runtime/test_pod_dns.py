"""The DNS settings of pods. Source: pkg/kubelet/network/dns/dns.go, GetPodDNS."""

import pytest
from world.pod_world import make_pod, model_of

from fleet.errors import UsageError
from fleet.k8s.pods import PodNetworkSpec
from fleet.profile.kubelet_configuration import DNSSettings
from fleet.runtime.container_config import PodDNS, pod_dns

BOTH = "192.0.2.1,2001:db8::1"
USUAL = DNSSettings()
NO_SERVERS = DNSSettings(servers=())


def settings_of(
    network: PodNetworkSpec, settings: DNSSettings = USUAL, *, host_network: bool = False
) -> PodDNS:
    return pod_dns(make_pod(network=network, host_network=host_network), settings, BOTH)


def test_a_pod_without_a_cluster_dns_has_that_of_its_node() -> None:
    found = settings_of(PodNetworkSpec(), NO_SERVERS)
    assert (found.servers, found.searches, found.lacks_server) == (("192.0.2.53",), (), True)
    for network in (PodNetworkSpec("Default"), PodNetworkSpec("None", ("1.1.1.1",))):
        assert not settings_of(network, NO_SERVERS).lacks_server
    assert not settings_of(PodNetworkSpec(), NO_SERVERS, host_network=True).lacks_server
    own = PodNetworkSpec("ClusterFirstWithHostNet")
    assert settings_of(own, NO_SERVERS, host_network=True).lacks_server


def test_without_a_file_of_the_host_its_own_address_is_asked() -> None:
    settings = DNSSettings(resolver_file="")
    found = settings_of(PodNetworkSpec("Default"), settings)
    assert (found.servers, found.searches) == (("127.0.0.1", "::1"), (".",))
    assert settings_of(PodNetworkSpec(), settings).servers == ("10.96.0.10",)


def test_a_cluster_may_have_no_domain_or_another_one() -> None:
    assert settings_of(PodNetworkSpec(), DNSSettings(domain="")).searches == ()
    found = settings_of(PodNetworkSpec(), DNSSettings(domain="corp.example"))
    assert found.searches == ("default.svc.corp.example", "svc.corp.example", "corp.example")


@pytest.mark.parametrize(
    ("searches", "left"),
    [
        (tuple(f"d{number}" for number in range(29)), 32),  # with three of the cluster
        (tuple(f"d{number}" for number in range(30)), 32),
        (("x" * 254, "short"), 4),  # one that no resolver takes
        (tuple(f"{number:03}" + "y" * 150 for number in range(20)), 15),  # 2,048 characters
    ],
)
def test_what_does_not_fit_is_left_out_and_told(searches: tuple[str, ...], left: int) -> None:
    found = settings_of(PodNetworkSpec(searches=searches))
    assert len(found.searches) == left
    assert len(" ".join(found.searches)) <= 2_048
    text = (
        "Search Line limits were exceeded, some search paths have been omitted, "
        f"the applied search line is: {' '.join(found.searches)}"
    )
    assert found.problems == (() if left == len(searches) + 3 else (text,))


def test_a_cluster_dns_is_an_address() -> None:
    kubelet = {"clusterDNS": ["2001:DB8::A"], "clusterDomain": "x", "resolvConf": ""}
    model = model_of(kubeletConfiguration=kubelet)
    assert model.kubelet.dns == DNSSettings(("2001:db8::a",), "x", "")
    assert model.kubelet.without_effect == ()
    with pytest.raises(UsageError, match=r"clusterDNS.*'dns\.example'"):
        model_of(kubeletConfiguration={"clusterDNS": ["dns.example"]})
