"""What one container uses: its declared curves, and defaults drawn from what it requests.

Source: the numbers that cAdvisor reports to pkg/kubelet/stats; cgroup v2 memory.max.
Differs: nothing is measured. Where nothing is declared a container uses half of what it requests,
for ever, so that no node comes under pressure by itself.
"""

from functools import lru_cache
from typing import NamedTuple

import orjson

from fleet.clock import NS_PER_S
from fleet.profile.usage import NEVER, Curve, Usage, constant_curve, next_crossing
from fleet.quantity import Quantity, parse_quantity

MEMORY_DEFAULT = 4 << 20
CPU_MILLI_DEFAULT = 1
EPHEMERAL_DEFAULT = 32 << 10
INODES_DEFAULT = 8
PIDS_DEFAULT = 1  # of a container that requests nothing: about a pause container's
NOTHING = constant_curve(0)
MILLI = 1000
_NOTHING = Quantity(0)


class Amounts(NamedTuple):
    """Requests or limits of one container; 0 where there is none."""

    cpu_milli: int = 0
    memory: int = 0
    ephemeral: int = 0


class ContainerResources(NamedTuple):
    """What a container may use."""

    requests: Amounts = Amounts()
    limits: Amounts = Amounts()


@lru_cache(maxsize=4096)
def resources_of(resources_json: bytes) -> ContainerResources:
    """Return the amounts of a container's, or a pod's, rendered resources."""
    found = orjson.loads(resources_json) if resources_json else {}
    return ContainerResources(_amounts(found.get("requests")), _amounts(found.get("limits")))


def _amounts(given: dict[str, str] | None) -> Amounts:
    if not given:
        return Amounts()
    amounts = {name: parse_quantity(text) for name, text in given.items()}
    return Amounts(
        amounts.get("cpu", _NOTHING).milli,
        amounts.get("memory", _NOTHING).value,
        amounts.get("ephemeral-storage", _NOTHING).value,
    )


def amount_text(resources_json: bytes, kind: str, resource: str) -> str:
    """Print one amount of `kind` requests or limits as Kubernetes does, "0" when there is none."""
    found = orjson.loads(resources_json) if resources_json else {}
    return str(parse_quantity(found.get(kind, {}).get(resource, "0")))


class ContainerUsage(NamedTuple):
    """The curves of one container, from its start on."""

    memory: Curve
    cpu_milli: Curve
    ephemeral: Curve
    inodes: Curve
    pids: Curve
    swap: Curve = NOTHING
    receive: Curve = NOTHING  # bytes a second
    transmit: Curve = NOTHING


@lru_cache(maxsize=4096)
def container_usage(resources_json: bytes, declared: Usage) -> ContainerUsage:
    """Return what a container uses: as declared, else half of its request."""
    asked, limits = resources_of(resources_json)
    memory = asked.memory // 2 or MEMORY_DEFAULT
    if limits.memory:
        memory = min(memory, limits.memory // 2)
    return ContainerUsage(
        declared.memory or constant_curve(memory),
        declared.cpu_milli or constant_curve(asked.cpu_milli // 2 or CPU_MILLI_DEFAULT),
        declared.ephemeral_storage or constant_curve(asked.ephemeral // 2 or EPHEMERAL_DEFAULT),
        declared.inodes or constant_curve(INODES_DEFAULT),
        declared.pids or constant_curve(PIDS_DEFAULT),
        declared.swap or NOTHING,
        declared.network_receive or NOTHING,
        declared.network_transmit or NOTHING,
    )


class Spent(NamedTuple):
    """What was used up: cpu in core-nanoseconds, network in bytes."""

    cpu_ns: int = 0
    received: int = 0
    sent: int = 0

    def plus(self, other: "Spent") -> "Spent":
        """Return both together."""
        return Spent(
            self.cpu_ns + other.cpu_ns, self.received + other.received, self.sent + other.sent
        )


NOTHING_SPENT = Spent()


def spent(usage: ContainerUsage, age_ns: int) -> Spent:
    """Return what a container has used up at an age."""
    return Spent(
        usage.cpu_milli.area(age_ns) // MILLI,
        usage.receive.area(age_ns) // NS_PER_S,
        usage.transmit.area(age_ns) // NS_PER_S,
    )


def oom_kill_ns(resources_json: bytes, memory: Curve | None, started_ns: int, now_ns: int) -> int:
    """Return when a container comes above its memory limit, from now on; NEVER if it does not.

    The kernel then kills it: the cgroup's limit is enforced at once.
    """
    if memory is None:
        return NEVER
    limit = resources_of(resources_json).limits.memory
    if not limit or memory.ceiling() <= limit:
        return NEVER
    return next_crossing([(memory, started_ns)], 0, limit, now_ns)
