"""The /etc/resolv.conf of a pod.

Source: pkg/kubelet/network/dns/dns.go, GetPodDNS, appendDNSConfig, mergeDNSOptions,
formDNSConfigFitsLimits; containerd's internal/cri/server/sandbox_run_linux.go, parseDNSOptions.
Differs: the machine's own has one server and no domain; no event tells of what is left out.
"""

from collections.abc import Iterable

from fleet.objects.pods import Pod

CLUSTER_DNS, CLUSTER_DOMAIN = "10.96.0.10", "cluster.local"
MACHINES_DNS = "192.0.2.53"
SERVERS_MAX, SEARCHES_MAX = 3, 32


def resolv_conf(pod: Pod) -> str:
    """Return the text of the file."""
    spec = pod.spec.network
    is_host = spec.dns_policy == "Default" or (
        spec.dns_policy == "ClusterFirst" and pod.spec.host_network
    )
    options: dict[str, str] = {}
    if spec.dns_policy == "None":
        servers: list[str] = []
        searches: list[str] = []
    elif is_host:
        servers, searches = [MACHINES_DNS], []
    else:
        domain = f"svc.{CLUSTER_DOMAIN}"
        servers = [CLUSTER_DNS]
        searches = [f"{pod.namespace}.{domain}", domain, CLUSTER_DOMAIN]
        options["ndots"] = "5"
    servers = _unique((*servers, *spec.nameservers))[:SERVERS_MAX]
    searches = _unique((*searches, *spec.searches))[:SEARCHES_MAX]
    options |= dict(spec.options)
    text = f"search {' '.join(searches)}\n" if searches else ""
    text += "".join(f"nameserver {each}\n" for each in servers)
    shown = " ".join(f"{name}:{value}" if value else name for name, value in options.items())
    return text + (f"options {shown}\n" if shown else "")


def _unique(found: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(found))
