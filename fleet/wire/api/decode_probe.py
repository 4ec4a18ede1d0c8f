"""Probes of containers from JSON: the record that a prober needs, with its port as a number."""

import sys
from typing import Any

from fleet.k8s.pods import ProbeSpec

HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
PORT_MAX = 65535  # Source: apimachinery/pkg/util/validation, IsValidPortNum


def decode_probe(container: dict[str, Any], field: str) -> ProbeSpec | None:
    """Return one probe of a container, None when it has none.

    Source: core/v1 Probe; pkg/apis/core/v1/defaults.go, SetDefaults_Probe.
    """
    obj = container.get(field)
    if obj is None:
        return None
    handler = next((each for each in HANDLERS if each in obj), "")
    action = obj.get(handler) or {}
    port, error = 0, ""
    if not handler:
        error = "missing probe handler"
    elif handler == "grpc":
        port = action.get("port", 0)
    elif handler != "exec":
        port, error = number_of_port(action.get("port", 0), container)
    return ProbeSpec(
        handler=handler,
        scheme=sys.intern(action.get("scheme", "HTTP").lower()) if handler == "httpGet" else "",
        host=action.get("host", ""),
        port=port,
        path=sys.intern(action.get("path", "/")) if handler == "httpGet" else "",
        command=tuple(action.get("command", ())),
        error=error,
        initial_delay_s=obj.get("initialDelaySeconds", 0),
        timeout_s=obj.get("timeoutSeconds") or 1,
        period_s=obj.get("periodSeconds") or 10,
        success_threshold=obj.get("successThreshold") or 1,
        failure_threshold=obj.get("failureThreshold") or 3,
        termination_grace_s=obj.get("terminationGracePeriodSeconds"),
    )


def number_of_port(port: int | str, container: dict[str, Any]) -> tuple[int, str]:
    """Return a port, or why it has none. Source: pkg/probe/util.go, ResolveContainerPort."""
    if isinstance(port, str):
        for each in container.get("ports", ()):
            if each.get("name") == port:
                port = int(each["containerPort"])
                break
        else:
            if not port.isdecimal():
                return 0, f'strconv.Atoi: parsing "{port}": invalid syntax'
            port = int(port)
    if 0 < port <= PORT_MAX:
        return port, ""
    return 0, f"invalid port number: {port}"
