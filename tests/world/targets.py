"""What a path of the simulated API server leads to, and what a selector finds there."""

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import parse_qs

from world.strategic_merge import Object

Key = tuple[str, str, str]
"""Resource, namespace, name."""


class Target(NamedTuple):
    """What a path leads to; "" for what it does not have."""

    resource: str
    namespace: str
    name: str
    sub: str


def target_of(path: str) -> Target:
    """Read a path without its query."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    resource, name, sub = (*parts, "", "")[:3]
    return Target(resource, namespace, name, sub)


def selectors_of(key: Key, obj: Object | None) -> Iterator[tuple[str, str, str]]:
    """Yield every selector that kubelets use and that an object satisfies."""
    if obj is None:
        return
    resource, namespace, name = key
    if resource == "pods":
        node = obj["spec"].get("nodeName")
        if node:
            yield resource, "", f"spec.nodeName={node}"
            yield resource, "", "spec.nodeName!="
    elif resource == "nodes":
        yield resource, "", f"metadata.name={name}"
        for label, value in obj["metadata"].get("labels", {}).items():
            yield resource, "", f"{label}={value}"
    elif resource == "services":
        yield resource, "", "spec.clusterIP!=None"
    elif resource == "resourceslices":
        node, driver = obj["spec"]["nodeName"], obj["spec"]["driver"]
        yield resource, "", f"spec.nodeName={node}"
        yield resource, "", f"spec.nodeName={node},spec.driver={driver}"
    elif resource in {"configmaps", "secrets", "certificatesigningrequests"}:
        yield resource, namespace, f"metadata.name={name}"
    yield resource, "", ""


def selector_of(target: Target, query: str) -> tuple[str, str, str]:
    """Return what a list or a watch asks for."""
    options = parse_qs(query)
    text = options.get("fieldSelector") or options.get("labelSelector") or [""]
    return target.resource, target.namespace, text[0]
