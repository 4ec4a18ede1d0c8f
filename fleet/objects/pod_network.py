"""What a pod's spec says about names of hosts, and about its kernel's parameters."""

from typing import NamedTuple


class PodNetworkSpec(NamedTuple):
    """What of the files that a kubelet and a runtime write is the pod's own wish."""

    dns_policy: str = "ClusterFirst"
    nameservers: tuple[str, ...] = ()  # these three: dnsConfig
    searches: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()  # the name, and the value or ""
    sysctls: tuple[tuple[str, str], ...] = ()  # names with dots


USUAL_NETWORK = PodNetworkSpec()
