"""How a pod is named and resolves names, its sysctls and its user namespace, from JSON."""

import sys
from typing import Any

from fleet.k8s.pods import USUAL_NETWORK, PodNetworkSpec


def pod_network(spec: dict[str, Any]) -> PodNetworkSpec:
    """Return what a pod's spec says about its host name, /etc/resolv.conf and /proc/sys."""
    sysctls = (spec.get("securityContext") or {}).get("sysctls") or ()
    policy, config = spec.get("dnsPolicy", "ClusterFirst"), spec.get("dnsConfig") or {}
    found = PodNetworkSpec(
        sys.intern(policy),
        tuple(config.get("nameservers") or ()),
        tuple(config.get("searches") or ()),
        tuple(
            (each.get("name", ""), each.get("value") or "") for each in config.get("options", ())
        ),
        tuple((_with_dots(each["name"]), each.get("value", "")) for each in sysctls),
        sys.intern(spec.get("subdomain") or ""),
        spec.get("hostnameOverride") or "",
        is_fqdn=bool(spec.get("setHostnameAsFQDN")),
        own_users=spec.get("hostUsers") is False,
    )
    return USUAL_NETWORK if found == USUAL_NETWORK else found


def _with_dots(name: str) -> str:
    """Source: component-helpers/node/util/sysctl, NormalizeName."""
    first = name.find("/")
    if first < 0 or "." in name[:first]:
        return name
    return name.translate(str.maketrans("./", "/."))
