"""DeviceManager: capacity, allocatable and assignment of the devices that plugins offer.

    not registered --registration delay--> registered --outage--> gone --5 min--> removed
                                               ^------------------------------------+ back

What is healthy and which plugin is there follows from the profile's schedule, from faults, and from
the time; only what pods have been given is kept.
Source: pkg/kubelet/cm/devicemanager/manager.go, GetCapacity, Allocate, devicesToAllocate,
genericDeviceUpdateCallback, UpdateAllocatedResourcesStatus; endpoint.go, stopGracePeriodExpired.
Differs: plugins have no preferred allocation: the first free devices are given out, those of the
topology manager's NUMA nodes first. No checkpoint: a pod that runs when its kubelet starts has what
its status shows.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import orjson

from fleet.clock import NS_PER_S
from fleet.k8s.admission import DeviceRequest
from fleet.k8s.pods import ContainerStatus, Pod, PodStatus, PodUid
from fleet.kubelet.devices import container_manager
from fleet.kubelet.devices.container_manager import MESSAGE as TOPOLOGY_ERROR
from fleet.kubelet.turn import Turn
from fleet.profile.machine import DeviceModel, outage_begin_ns, registers_after_ns

STOP_GRACE_NS = 300 * NS_PER_S
"""Source: pkg/kubelet/cm/devicemanager/types.go, endpointStopGracePeriod."""
UNREGISTERED = (-1, -1)  # capacity and allocatable of a resource whose plugin has not come yet
KNOWN = (0, 0)
"""The same of one that was there before the kubelet restarted. Source: readCheckpoint."""
EVERYWHERE = container_manager.Hint(-1, is_preferred=True)
_REGISTER_STREAM = 0xDE71CE


class Grant(NamedTuple):
    """What one container was given of one resource."""

    container: str
    resource: str
    devices: tuple[int, ...]
    reusable: bool = False  # by the containers after it: it is an init container that ends


class DeviceManager:
    """The extended resources of one node, as its device plugins report them."""

    __slots__ = ("_devices", "_grants", "_registered_ns", "_start_ns", "_told")

    def __init__(self, turn: Turn) -> None:
        self._start_ns = turn.now_ns
        self._devices = turn.env.model.devices
        uniform = turn.env.draws.uniform
        self._registered_ns = tuple(
            turn.now_ns
            + registers_after_ns(
                each.registration_delay,
                uniform(turn.node, _REGISTER_STREAM, index),
                runs=turn.finds_plugins,
            )
            for index, each in enumerate(self._devices)
        )
        self._grants: dict[PodUid, tuple[Grant, ...]] = {}
        self._told: tuple[frozenset[int], ...] = ()  # the unhealthy ones that pods know

    # ---- capacity ----

    def resources(self, turn: Turn) -> tuple[tuple[str, int, int], ...]:
        """Return capacity and allocatable of each resource. Source: GetCapacity."""
        return tuple(
            (device.resource, *self._amounts(device, registered_ns, turn))
            for device, registered_ns in zip(self._devices, self._registered_ns, strict=True)
        )

    def _amounts(self, device: DeviceModel, registered_ns: int, turn: Turn) -> tuple[int, int]:
        if turn.now_ns < registered_ns:
            return UNREGISTERED if turn.facts.last_boot < 0 else KNOWN
        gone_ns = outage_begin_ns(device.plugin_outages, self._start_ns, turn.now_ns)
        if gone_ns < 0:
            return device.total, device.total - len(self._unhealthy(device, turn))
        return (device.total, 0) if turn.now_ns - gone_ns < STOP_GRACE_NS else (0, 0)

    def next_change_ns(self, turn: Turn) -> int:
        """Return when anything differs next by itself, 0 for never."""
        return min((due_ns for due_ns in self._changes() if due_ns > turn.now_ns), default=0)

    def _changes(self) -> Iterator[int]:
        yield from self._registered_ns
        for device in self._devices:
            yield from (self._start_ns + change.after_ns for change in device.health)
            for outage in device.plugin_outages:
                begin_ns = self._start_ns + outage.after_ns
                yield from (begin_ns, begin_ns + STOP_GRACE_NS)
                if outage.duration_ns:
                    yield begin_ns + outage.duration_ns

    def take_affected(self, turn: Turn) -> list[PodUid]:
        """Return the pods of whose devices the health changed since this was asked last."""
        unhealthy = tuple(self._unhealthy(device, turn) for device in self._devices)
        before = self._told or tuple(frozenset[int]() for _ in unhealthy)
        self._told = unhealthy
        changed = {
            device.resource: old ^ new
            for device, old, new in zip(self._devices, before, unhealthy, strict=True)
        }
        return [
            uid
            for uid, grants in self._grants.items()
            if any(not changed[each.resource].isdisjoint(each.devices) for each in grants)
        ]

    def _unhealthy(self, device: DeviceModel, turn: Turn) -> frozenset[int]:
        bad: set[int] = set()
        for change in device.health:
            if turn.now_ns < self._start_ns + change.after_ns:
                break
            which = change.devices or range(device.total)
            is_healthy = change.state == "Healthy"
            bad = bad.difference(which) if is_healthy else bad.union(which)
        for resource, count in turn.env.model.broken.devices:
            if resource in {"", device.resource}:
                bad.update(range(min(count, device.total) or device.total))
        return frozenset(bad)

    def _healthy(self, resource: str, turn: Turn) -> set[int] | None:
        """Return what can be given out, None while no plugin stands behind the resource."""
        device = self._device(resource)
        registered_ns = self._registered_ns[self._devices.index(device)]
        capacity, _ = self._amounts(device, registered_ns, turn)
        if capacity <= 0:
            return None
        if outage_begin_ns(device.plugin_outages, self._start_ns, turn.now_ns) >= 0:
            return set()
        return set(range(device.total)) - self._unhealthy(device, turn)

    # ---- pods ----

    def allocate(self, pod: Pod, turn: Turn) -> str:
        """Give a pod its devices; return why that cannot be, "" when it could.

        Source: Allocate, allocateContainerResources, devicesToAllocate.
        """
        reusable: dict[str, set[int]] = {}
        for container, requests in groupby(pod.spec.admission.devices, attrgetter("container")):
            wanted = [each for each in requests if self._is_offered(each.resource, turn)]
            given = {
                each.resource: self._given(pod.uid, container, each.resource) for each in wanted
            }
            is_new = any(each is None for each in given.values())
            hint = self._hint(wanted, reusable, turn) if is_new else EVERYWHERE
            if hint is None:
                return TOPOLOGY_ERROR
            for request in wanted:
                reuse = reusable.setdefault(request.resource, set())
                had = given[request.resource]
                error, chosen = self._choose(request, had, reuse, hint, turn)
                if error:
                    return error
                reuse.update(chosen) if request.reusable else reuse.difference_update(chosen)
                if chosen and had is None:
                    grant = Grant(container, request.resource, chosen, request.reusable)
                    self._grants[pod.uid] = (*self._grants.get(pod.uid, ()), grant)
        return ""

    def _is_offered(self, resource: str, turn: Turn) -> bool:
        """Return whether a plugin stands behind a resource. Source: isDevicePluginResource."""
        if all(device.resource != resource for device in self._devices):
            return False
        return self._healthy(resource, turn) is not None or resource in self.allocated()

    def _hint(
        self, requests: list[DeviceRequest], reusable: dict[str, set[int]], turn: Turn
    ) -> container_manager.Hint | None:
        """Return the NUMA nodes of a container's devices, None if the topology manager refuses."""
        policy = turn.env.model.kubelet.topology_manager_policy
        nodes = max((device.numa_nodes for device in self._devices), default=0)
        if policy not in container_manager.ALIGNING_POLICIES or not nodes:
            return EVERYWHERE
        supplies = []
        for request in requests:
            device = self._device(request.resource)
            free = (self._healthy(request.resource, turn) or set()) - self._in_use(device.resource)
            free |= reusable.get(request.resource, set())
            if device.numa_nodes:
                all_of = Counter(map(device.numa_node, range(device.total)))
                free_of = Counter(map(device.numa_node, free))
                supplies.append(
                    container_manager.Supply(
                        request.amount,
                        tuple(all_of[node] for node in range(nodes)),
                        tuple(free_of[node] for node in range(nodes)),
                    )
                )
        return container_manager.best_hint(supplies, policy) if supplies else EVERYWHERE

    def _device(self, resource: str) -> DeviceModel:
        return next(each for each in self._devices if each.resource == resource)

    def _choose(
        self,
        request: DeviceRequest,
        given: tuple[int, ...] | None,
        reuse: set[int],
        hint: container_manager.Hint,
        turn: Turn,
    ) -> tuple[str, tuple[int, ...]]:
        """Return an error, or the devices of one container. Source: devicesToAllocate."""
        resource = request.resource
        device = self._device(resource)
        healthy = self._healthy(resource, turn)
        if healthy is None:
            return f"cannot allocate unregistered device {resource}", ()
        if not healthy:
            text = "no healthy devices present; cannot allocate unhealthy devices"
            return f"{text} {resource}", ()
        if given is not None:
            if healthy.issuperset(given):
                return "", given
            text = "previously allocated devices are no longer healthy"
            return f"{text}; cannot allocate unhealthy devices {resource}", ()
        chosen = sorted(reuse)[: request.amount]
        needed = request.amount - len(chosen)

        def rank(index: int) -> tuple[bool, int]:
            return not hint.nodes >> device.numa_node(index) & 1, index

        free = sorted(healthy - self._in_use(resource), key=rank)
        if len(free) < needed:
            text = f"requested number of devices unavailable for {resource}"
            return f"{text}. Requested: {needed}, Available: {len(free)}", ()
        return "", (*chosen, *free[:needed])

    def _given(self, uid: PodUid, container: str, resource: str) -> tuple[int, ...] | None:
        wanted, grants = (container, resource), self._grants.get(uid, ())
        return next((each.devices for each in grants if each[:2] == wanted), None)

    def _in_use(self, resource: str) -> set[int]:
        return {
            index
            for grants in self._grants.values()
            for grant in grants
            if grant.resource == resource
            for index in grant.devices
        }

    def allocated(self) -> Mapping[str, int]:
        """Return how many devices of each resource pods have."""
        resources = {grant.resource for grants in self._grants.values() for grant in grants}
        return {resource: len(self._in_use(resource)) for resource in sorted(resources)}

    def adopt(self, pod: Pod, turn: Turn) -> None:
        """Take note of the devices of a pod that ran before this kubelet did: its status has them.

        Source: readCheckpoint.
        """
        grants = [
            Grant(status.name, resource, indices)
            for status in pod.status.containers
            for resource, indices in self._devices_in(status, turn)
        ]
        if grants:
            self._grants[pod.uid] = tuple(grants)

    def _devices_in(
        self, status: ContainerStatus, turn: Turn
    ) -> Iterator[tuple[str, tuple[int, ...]]]:
        for each in orjson.loads(status.devices_json or b"[]"):
            for device in self._devices:
                if device.resource == each["name"]:
                    ids = (item["resourceID"] for item in each.get("resources", ()))
                    found = (device.index_of(turn.facts.name, device_id) for device_id in ids)
                    yield device.resource, tuple(index for index in found if index >= 0)

    def keep(self, uids: set[PodUid]) -> None:
        """Take back what pods had that are no more. Source: UpdateAllocatedDevices."""
        for uid in [uid for uid in self._grants if uid not in uids]:
            del self._grants[uid]

    def free(self, uid: PodUid) -> None:
        """Take back what a pod had."""
        self._grants.pop(uid, None)

    def with_health(self, pod: Pod, status: PodStatus, turn: Turn) -> PodStatus:
        """Return a status that names the devices of each container and their health.

        Source: UpdateAllocatedResourcesStatus, for regular containers.
        """
        grants = self._grants.get(pod.uid)
        if grants is None or not turn.env.model.release.shows_device_health:
            return status
        containers = tuple(
            each._replace(devices_json=self._render(each.name, grants, turn))
            for each in status.containers
        )
        return status._replace(containers=containers)

    def _render(self, container: str, grants: tuple[Grant, ...], turn: Turn) -> bytes:
        shown = []
        for grant in grants:
            if grant.container != container:
                continue
            device = self._device(grant.resource)
            unhealthy = self._unhealthy(device, turn)
            resources = [
                {
                    "health": "Unhealthy" if index in unhealthy else "Healthy",
                    "resourceID": device.device_id(turn.facts.name, index),
                }
                for index in grant.devices
            ]
            shown.append({"name": grant.resource, "resources": resources})
        return orjson.dumps(shown, option=orjson.OPT_SORT_KEYS) if shown else b""
