"""What a pod's spec says about its names, its name servers and its kernel's parameters."""

from typing import NamedTuple


class PodNetworkSpec(NamedTuple):
    """What of the files that a kubelet and a runtime write is the pod's own wish."""

    dns_policy: str = "ClusterFirst"
    nameservers: tuple[str, ...] = ()  # these three: dnsConfig
    searches: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()  # the name, and the value or ""
    sysctls: tuple[tuple[str, str], ...] = ()  # names with dots
    subdomain: str = ""
    hostname_override: str = ""
    is_fqdn: bool = False  # setHostnameAsFQDN
    own_users: bool = False  # hostUsers: false, a user namespace of its own


USUAL_NETWORK = PodNetworkSpec()
