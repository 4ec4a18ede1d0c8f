"""Services from JSON, as far as they make variables; the same bytes come to every node."""

from functools import lru_cache
from typing import Any

import orjson

from fleet.objects.services import ServicePort, ServiceView

SERVICES_MAX = 4096  # of one version; each comes to every node, and is parsed for the first


def decode_service(body: bytes | dict[str, Any]) -> ServiceView:
    """Return what kubelets read of a Service."""
    return _service_of(body) if isinstance(body, bytes) else service_view(body)


@lru_cache(maxsize=SERVICES_MAX)
def _service_of(body: bytes) -> ServiceView:
    return service_view(orjson.loads(body))


def service_view(obj: dict[str, Any]) -> ServiceView:
    """Return the record of a Service."""
    meta, spec = obj["metadata"], obj.get("spec") or {}
    return ServiceView(
        meta.get("namespace", ""),
        meta["name"],
        meta.get("resourceVersion", ""),
        spec.get("clusterIP", ""),
        tuple(
            ServicePort(each.get("port", 0), each.get("name", ""), each.get("protocol", "TCP"))
            for each in spec.get("ports") or ()
        ),
    )
