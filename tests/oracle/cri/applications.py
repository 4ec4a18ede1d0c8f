"""What runs in the pods: their containers, probes and hooks, as their specs have them.

CRI says what to run, not what it is asked later: which request is whose probe only the spec of a
pod says. So it is read from the kubelet itself, whose read-only port shows its static pods, too.
What CRI says (image, command, resources) wins over the spec.
"""

import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiohttp

from fleet.k8s.pods import ContainerSpec, Pod
from fleet.profile.container_behavior import ProbeKind
from fleet.wire.api.decode_pod import decode_pod

Json = dict[str, Any]
Lookup = Callable[[str], Awaitable[Json | None]]
"""Return the Pod of a UID, None if nobody knows it."""

CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
"""By `ProbeKind`."""
HOOKS = ("postStart", "preStop")
EXEC, HTTP, TCP, GRPC = "exec", "httpGet", "tcpSocket", "grpc"
TIMEOUT_S = 5.0


class Asked(NamedTuple):
    """Something that a kubelet asks of a container: by a probe, or by a hook."""

    kind: ProbeKind | str
    """Which probe, or the name of the hook."""
    handler: str
    command: tuple[str, ...] = ()
    port: int = 0
    path: str = ""
    host: str = ""
    service: str = ""
    is_tls: bool = False


@dataclass(frozen=True, slots=True)
class Application:
    """One container of a pod as its spec has it."""

    pod: Pod
    spec: ContainerSpec
    asked: tuple[Asked, ...]
    ports: tuple[int, ...]
    """Those that the spec declares, of TCP, and those that are asked."""


def application(pod: Json, name: str) -> Application | None:
    """Return what a container of a Pod is, None if it has no such container."""
    record = decode_pod(json.dumps({key: pod[key] for key in ("metadata", "spec")}).encode())
    spec = record.find(name)
    if spec is None:
        return None
    container = next(each for each in all_containers(pod) if each["name"] == name)
    asked = tuple(_asked(container))
    declared = [
        each["containerPort"]
        for each in container.get("ports", ())
        if each.get("protocol", "TCP") == "TCP"
    ]
    ports = dict.fromkeys((*declared, *(each.port for each in asked if each.port)))
    return Application(record, spec, asked, tuple(ports))


def all_containers(pod: Json) -> Iterator[Json]:
    for kind in CONTAINERS:
        yield from pod["spec"].get(kind) or ()


def _asked(container: Json) -> Iterator[Asked]:
    for kind, field in zip(ProbeKind, PROBES, strict=True):
        if found := container.get(field):
            yield from _handler(kind, found, container)
    hooks = container.get("lifecycle") or {}
    for name in HOOKS:
        if found := hooks.get(name):
            yield from _handler(name, found, container)


def _handler(kind: ProbeKind | str, found: Json, container: Json) -> Iterator[Asked]:
    for handler in (EXEC, HTTP, TCP, GRPC):
        if handler not in found:
            continue
        what = found[handler] or {}
        yield Asked(
            kind,
            handler,
            tuple(what.get("command", ())),
            _port(what.get("port", 0), container),
            "/" + what.get("path", "").removeprefix("/") if handler == HTTP else "",
            what.get("host", ""),
            what.get("service", ""),
            what.get("scheme") == "HTTPS",
        )


def _port(port: int | str, container: Json) -> int:
    """Return the number of a port, 0 if its name is nobody's."""
    if isinstance(port, str) and not port.isdigit():
        named = {each.get("name"): each["containerPort"] for each in container.get("ports", ())}
        return int(named.get(port, 0))
    return int(port)


def from_kubelet(url: str) -> Lookup:
    """Ask a kubelet on its read-only port for its pods. Source: server.go, getPods."""

    async def look_up(uid: str) -> Json | None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(f"{url}/pods") as answer,
            ):
                found: Json = json.loads(await answer.read())
        except (aiohttp.ClientError, TimeoutError):
            return None  # it is being started or stopped: what CRI says must do
        pods = found.get("items") or ()
        return next((each for each in pods if each["metadata"]["uid"] == uid), None)

    return look_up


def from_pods(*pods: Json) -> Lookup:
    """Know some pods."""
    known = {each["metadata"]["uid"]: each for each in pods}

    async def look_up(uid: str) -> Json | None:
        return known.get(uid)

    return look_up
