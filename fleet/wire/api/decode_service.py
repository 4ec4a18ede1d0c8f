"""Services from JSON: the variables that they make, and where they lead to.

The same bytes come to every node.
"""

from typing import Any

from fleet.k8s.objects import ServicePort, ServiceView
from fleet.wire.api.decode_once import decoded_once

SERVICES_MAX = 4096  # of one version; each comes to every node, and is parsed for the first


@decoded_once(SERVICES_MAX)
def decode_service(obj: dict[str, Any]) -> ServiceView:
    """Return what kubelets read of a Service."""
    meta, spec = obj["metadata"], obj.get("spec") or {}
    return ServiceView(
        meta.get("namespace", ""),
        meta["name"],
        meta.get("resourceVersion", ""),
        spec.get("clusterIP", ""),
        tuple(
            ServicePort(
                each.get("port", 0),
                each.get("name", ""),
                each.get("protocol", "TCP"),
                each.get("targetPort", 0),
                each.get("nodePort", 0),
            )
            for each in spec.get("ports") or ()
        ),
        tuple(sorted((spec.get("selector") or {}).items())),
        tuple(spec.get("externalIPs") or ()),
        spec.get("externalName", ""),
        spec.get("sessionAffinity") == "ClientIP",
        spec.get("publishNotReadyAddresses", False),
    )
