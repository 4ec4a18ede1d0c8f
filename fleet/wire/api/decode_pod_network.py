"""How a pod resolves names, and its sysctls, from JSON."""

import sys
from typing import Any

from fleet.objects.pod_network import USUAL_NETWORK, PodNetworkSpec


def pod_network(spec: dict[str, Any]) -> PodNetworkSpec:
    """Return what a pod's spec says about its /etc/resolv.conf and /proc/sys."""
    sysctls = (spec.get("securityContext") or {}).get("sysctls") or ()
    policy, config = spec.get("dnsPolicy", "ClusterFirst"), spec.get("dnsConfig") or {}
    if policy == "ClusterFirst" and not config and not sysctls:
        return USUAL_NETWORK
    return PodNetworkSpec(
        sys.intern(policy),
        tuple(config.get("nameservers") or ()),
        tuple(config.get("searches") or ()),
        tuple(
            (each.get("name", ""), each.get("value") or "") for each in config.get("options", ())
        ),
        tuple((_with_dots(each["name"]), each.get("value", "")) for each in sysctls),
    )


def _with_dots(name: str) -> str:
    """Source: component-helpers/node/util/sysctl, NormalizeName."""
    first = name.find("/")
    if first < 0 or "." in name[:first]:
        return name
    return name.translate(str.maketrans("./", "/."))
