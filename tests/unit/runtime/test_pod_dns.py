"""The DNS settings of pods. Source: pkg/kubelet/network/dns/dns.go, GetPodDNS."""

import pytest
from world.pod_world import make_pod, model_of

from fleet.errors import UsageError
from fleet.k8s.pods import PodNetworkSpec
from fleet.profile.kubelet_configuration import DNSSettings
from fleet.runtime.container_config import PodDNS, pod_dns, resolver_file_problem

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
    assert model.dns == DNSSettings(("2001:db8::a",), "x", "")
    assert model.kubelet.without_effect == ()
    with pytest.raises(UsageError, match=r"clusterDNS.*'dns\.example'"):
        model_of(kubeletConfiguration={"clusterDNS": ["dns.example"]})


def test_the_file_of_the_machines_says_what_a_profile_says() -> None:
    """Source: parseResolvConf; a domain counts once with and without the dot at its end."""
    told = {"nameservers": ["192.0.2.1"], "searches": ["a.", ".", "b"], "options": ["timeout:2"]}
    settings = model_of(resolvConf=told).dns
    own = settings_of(PodNetworkSpec("Default"), settings)
    assert own == PodDNS(("192.0.2.1",), ("a", "b"), (("timeout", "2"),))
    found = settings_of(PodNetworkSpec(), settings)
    assert found.servers == ("10.96.0.10",)
    assert found.searches[3:] == ("a", "b")
    assert found.options == (("ndots", "5"),)
    assert settings_of(PodNetworkSpec("None"), settings).searches == ()


def test_a_file_with_many_servers_is_cut_and_one_with_many_domains_is_told() -> None:
    servers = tuple(f"192.0.2.{number}" for number in range(4))
    found = settings_of(PodNetworkSpec("Default"), DNSSettings(host_servers=servers))
    assert found.servers == servers[:3]
    assert found.problems[0].endswith("nameserver line is: 192.0.2.0 192.0.2.1 192.0.2.2")


@pytest.mark.parametrize(
    ("searches", "domain", "said"),
    [
        (29, "x", ""),
        (30, "x", "consisting of more than 29 domains!"),
        (32, "", ""),
        (33, "", "consisting of more than 32 domains!"),
    ],
)
def test_a_file_leaves_room_for_the_domains_of_the_cluster(
    searches: int, domain: str, said: str
) -> None:
    domains = tuple(f"d{number}" for number in range(searches))
    settings = DNSSettings(domain=domain, host_searches=domains)
    problem = resolver_file_problem(settings)
    assert problem.endswith(said)
    assert bool(problem) == bool(said)
    assert not resolver_file_problem(settings._replace(resolver_file=""))


@pytest.mark.parametrize(
    ("searches", "said"),
    [
        (("x" * 254,), "a search path which length is more than allowed 253 chars!"),
        (("x" * 250,) * 9, "search line which length is more than allowed 2048 chars!"),
    ],
)
def test_domains_that_are_too_long_are_told(searches: tuple[str, ...], said: str) -> None:
    assert resolver_file_problem(DNSSettings(host_searches=searches)).endswith(said)


def test_a_server_of_the_file_is_an_address_as_it_is_written() -> None:
    found = model_of(resolvConf={"nameservers": ["2001:db8::0"]}).dns
    assert found.host_servers == ("2001:db8::0",)
    with pytest.raises(UsageError, match=r"nameservers.*'dns\.example'"):
        model_of(resolvConf={"nameservers": ["dns.example"]})
