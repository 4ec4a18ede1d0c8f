"""What a pod asks for names: the kubelet's DNS settings for it.

Source: pkg/kubelet/network/dns/dns.go, GetPodDNS, appendDNSConfig, mergeDNSOptions,
formDNSConfigFitsLimits; containerd's internal/cri/server/sandbox_run_linux.go, parseDNSOptions.
Differs: the machine's own file has one server and no domain.
"""

from collections.abc import Iterable
from typing import NamedTuple

from fleet.k8s.addresses import each_of
from fleet.k8s.pods import Pod
from fleet.profile.kubelet_configuration import DNSSettings

MACHINES_DNS = "192.0.2.53"
SERVERS_MAX, SEARCHES_MAX = 3, 32  # validation.MaxDNSNameservers, MaxDNSSearchPaths
SEARCH_CHARS_MAX, PATH_CHARS_MAX = 2048, 253
_EXCEEDED = "limits were exceeded, some"


class PodDNS(NamedTuple):
    """The settings of one pod, and what a kubelet says when it makes them."""

    servers: tuple[str, ...]
    searches: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    problems: tuple[str, ...] = ()  # the messages of DNSConfigForming
    lacks_server: bool = False  # clusterDNS is empty, and the pod needs one: MissingClusterDNS


def pod_dns(pod: Pod, settings: DNSSettings, host_ips: str) -> PodDNS:
    """Return what a kubelet tells the runtime of a pod's DNS."""
    spec = pod.spec.network
    is_host = spec.dns_policy == "Default" or (
        spec.dns_policy == "ClusterFirst" and pod.spec.host_network
    )
    is_cluster = not is_host and spec.dns_policy != "None"
    servers: list[str] = []
    searches: list[str] = []
    options: dict[str, str] = {}
    if is_cluster and settings.servers:
        servers = list(settings.servers)
        if settings.domain:
            domain = f"svc.{settings.domain}"
            searches = [f"{pod.namespace}.{domain}", domain, settings.domain]
        options["ndots"] = "5"
    elif is_host or is_cluster:
        servers = [MACHINES_DNS]
        if not settings.resolver_file:
            servers = ["::1" if ":" in each else "127.0.0.1" for each in each_of(host_ips)]
            searches = ["."]
    shown, problem = _fitting(_unique((*searches, *spec.searches)))
    servers = _unique((*servers, *spec.nameservers))
    problems = (problem,) if problem else ()
    if len(servers) > SERVERS_MAX:
        servers = servers[:SERVERS_MAX]
        text = "nameservers have been omitted, the applied nameserver line is"
        problems = (f"Nameserver {_EXCEEDED} {text}: {' '.join(servers)}", *problems)
    options |= dict(spec.options)
    lacks_server = is_cluster and not settings.servers
    return PodDNS(tuple(servers), tuple(shown), tuple(options.items()), problems, lacks_server)


def _fitting(searches: list[str]) -> tuple[list[str], str]:
    """Return the domains that fit into the file, and what is said of the others.

    Source: formDNSSearchFitsLimits.
    """
    found = [each for each in searches[:SEARCHES_MAX] if len(each) <= PATH_CHARS_MAX]
    while len(" ".join(found)) > SEARCH_CHARS_MAX:
        found.pop()
    if len(found) == len(searches):
        return found, ""
    text = "search paths have been omitted, the applied search line is"
    return found, f"Search Line {_EXCEEDED} {text}: {' '.join(found)}"


def _unique(found: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(found))
