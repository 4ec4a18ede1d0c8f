"""DRAManager: the ResourceClaims of pods, and the ResourceSlice of each driver of the node.

    prepare --GET of each claim--> checked --all drivers are there--> prepared
                                      |refused: event, and the next resync tries again

    a driver: away --registers--> WATCH of its slices --synced, none there--> CREATE
                                    |deleted or changed by others: looked at again 30 s later
              away: the kubelet deletes the driver's slices after 30 s

Source: pkg/kubelet/cm/dra/manager.go, PrepareResources, UpdateAllocatedResourcesStatus;
plugin/dra_plugin_manager.go, wipeResourceSlices; dynamic-resource-allocation:
resourceclaim/resourceclaim.go, Name, IsForPod, IsReservedForPod;
resourceslice/resourceslicecontroller.go, syncPool.
Differs: the drivers' own calls always succeed, unless the profile says how they fail; a health
service says at each instant what the profile does; PodGroups do not exist. A driver's requests go
over the kubelet's connection and under its name; one slice holds all devices; `light` has no
watch: slices are replaced once, and not looked after.
"""

import enum
from collections.abc import Container
from dataclasses import dataclass, field

import orjson

from fleet.clock import NS_PER_S
from fleet.k8s import admission, effects
from fleet.k8s.pods import ContainerStatus, EventType, Pod, PodStatus, PodUid
from fleet.kubelet.turn import Turn
from fleet.profile.machine import DraDriver, outage_begin_ns, registers_after_ns

SYNC_DELAY_NS = 30 * NS_PER_S  # Source: resourceslicecontroller.go, DefaultSyncDelay
WIPE_DELAY_NS = 30 * NS_PER_S
"""Source: pkg/kubelet/cm/container_manager_linux.go, the wiping delay of the plugin manager."""
RETRY_NS = 1 * NS_PER_S
SLICES_FIRST_NS = 1 * NS_PER_S
SLICES_LAST_NS = 128 * NS_PER_S  # after 256 s a wait would be over its cap: nobody tries again
SLICES_JITTER = 0.2
_WIPE_STREAM = 0xD2A31E


class PluginState(enum.IntEnum):
    """How far a driver's plugin has come."""

    AWAY = 0
    SYNCING = 1  # its watch has not shown everything yet
    WATCHING = 2


@dataclass(slots=True, eq=False)
class DRAPlugin:
    """The driver of one kind of devices on one node."""

    driver: DraDriver
    state: PluginState = PluginState.AWAY
    # those that are there; True: seen since the last list
    _slices: dict[str, bool] = field(default_factory=dict)
    _due_ns: int = 0  # of the next look at the slices
    _wipe_ns: int = 0  # when the kubelet deletes what a driver left that went away
    _waited_ns: int = 0  # before the last try of that, 0 before the first

    def register(self, turn: Turn) -> None:
        """Begin to look after the slices."""
        assert self.state is PluginState.AWAY, self.state
        self._wipe_ns = 0
        if not turn.env.fidelity.watches_slices:
            self.state = PluginState.WATCHING
            self._wipe(turn)
            self._create(turn)
            return
        self.state = PluginState.SYNCING
        self._slices = {}
        turn.out.append(effects.StartWatch(turn.node, *self._watch()))

    def go_away(self, turn: Turn) -> None:
        """Stop: the kubelet wipes the slices unless the plugin is back in time."""
        self.state = PluginState.AWAY
        self._due_ns = self._waited_ns = 0
        self._wipe_ns = turn.now_ns + WIPE_DELAY_NS
        if turn.env.fidelity.watches_slices:
            turn.out.append(effects.StopWatch(turn.node, *self._watch()))

    def on_slice(
        self, event: EventType, view: admission.ResourceSliceView | None, turn: Turn
    ) -> None:
        """Take an event of the watch on this driver's slices."""
        if event is EventType.SYNCED:
            gone = [name for name, is_seen in self._slices.items() if not is_seen]
            self._slices = {name: False for name, is_seen in self._slices.items() if is_seen}
            if self.state is PluginState.SYNCING:
                self.state = PluginState.WATCHING
                self._sync(turn)
            elif gone:
                self._due_ns = turn.now_ns + SYNC_DELAY_NS
            return
        assert view is not None, event
        if event is EventType.DELETED:
            self._slices.pop(view.name, None)
        else:
            self._slices[view.name] = True
        if self.state is PluginState.WATCHING:
            self._due_ns = turn.now_ns + SYNC_DELAY_NS

    def on_reply(self, call: effects.ApiCall, reply: effects.Reply, turn: Turn) -> None:
        """Take the answer to one of our requests; the watch shows the slice itself."""
        if call.op is effects.Op.DELETE_DRIVER_SLICES:
            self._waited_ns, due_ns = _next_wipe(self._waited_ns, reply, turn)
            self._wipe_ns = due_ns or self._wipe_ns
        elif self.state is PluginState.WATCHING and not reply.ok:
            self._due_ns = turn.now_ns + RETRY_NS

    def next_due_ns(self) -> int:
        """Return when there is something to do, 0 for never."""
        return self._due_ns or self._wipe_ns

    def on_due(self, turn: Turn) -> None:
        """Look at the slices again, or delete them for good."""
        if self._due_ns and turn.now_ns >= self._due_ns:
            self._due_ns = 0
            self._sync(turn)
        if self._wipe_ns and turn.now_ns >= self._wipe_ns:
            self._wipe_ns = 0
            self._wipe(turn)

    def _watch(self) -> tuple[effects.WatchKind, str, str]:
        return effects.WatchKind.RESOURCE_SLICES, "", self.driver.driver

    def _sync(self, turn: Turn) -> None:
        if not self._slices and turn.facts.uid:
            self._create(turn)

    def _create(self, turn: Turn) -> None:
        payload = effects.ResourceSlices(self.driver.driver, turn.facts.uid, generation=1)
        key = self.driver.driver
        turn.call(effects.Op.CREATE_RESOURCE_SLICE, key, payload)

    def _wipe(self, turn: Turn) -> None:
        payload = effects.ResourceSlices(self.driver.driver)
        turn.call(effects.Op.DELETE_DRIVER_SLICES, self.driver.driver, payload)


def wipe_again(call: effects.ApiCall, reply: effects.Reply, turn: Turn) -> None:
    """Wipe all slices of a node again after a failure, of which the key says how long it waited."""
    waited_ns, due_ns = _next_wipe(int(call.key or 0), reply, turn)
    if due_ns:
        turn.arm(due_ns, effects.Timer.RESOURCE_SLICES, str(waited_ns))


def _next_wipe(waited_ns: int, reply: effects.Reply, turn: Turn) -> tuple[int, int]:
    """Return how long to wait, before jitter, and when that is over, 0 for never.

    Source: dra_plugin_manager.go, wipeResourceSlices; wait.ExponentialBackoffWithContext.
    """
    is_done = reply.ok or reply.kind is effects.ReplyKind.NOT_FOUND
    if is_done or waited_ns >= SLICES_LAST_NS:
        return 0, 0
    waited_ns = waited_ns * 2 or SLICES_FIRST_NS
    jitter = SLICES_JITTER * turn.draw(_WIPE_STREAM)
    return waited_ns, turn.now_ns + int(waited_ns * (1 + jitter))


FAILED = "FailedPrepareDynamicResources"
FAILED_TEXT = "Failed to prepare dynamic resources: prepare dynamic resources: %s"
_REGISTER_STREAM = 0xD2A9E6


@dataclass(slots=True, eq=False)
class _Pod:
    """The claims of one pod: what was read so far, and what is still to be read."""

    namespace: str
    left: tuple[admission.PodClaim, ...]
    found: dict[str, admission.ResourceClaimView] = field(
        default_factory=dict
    )  # by the name within the pod


@dataclass(slots=True, eq=False)
class DRAManager:
    """The claims of one node's pods.

    A step of a pod's preparation returns None while an answer is awaited, "" once it is prepared,
    else the error.
    """

    _pods: dict[PodUid, _Pod] = field(default_factory=dict)
    _looked_ns: int = 0  # when the health of devices was compared last

    @classmethod
    def read(cls, checkpoint: dict[PodUid, admission.PreparedClaims]) -> "DRAManager":
        """Return the manager of a kubelet that restarts, with what the one before had prepared."""
        pods = {uid: _Pod(each.namespace, (), each.found) for uid, each in checkpoint.items()}
        return cls(pods)

    def checkpoint(self) -> dict[PodUid, admission.PreparedClaims]:
        """Return what outlives a kubelet. Source: pkg/kubelet/cm/dra/state, GetOrCreate."""
        return {
            uid: admission.PreparedClaims(each.namespace, each.found)
            for uid, each in self._pods.items()
            if not each.left
        }

    def keep(self, uids: Container[PodUid]) -> None:
        """Let the claims go of pods that are no more. Source: HandlePodCleanups."""
        for uid in [uid for uid in self._pods if uid not in uids]:
            del self._pods[uid]

    def prepare(self, pod: Pod, turn: Turn) -> str | None:
        """Begin to read the claims of a pod, one after another."""
        claims = tuple(each for each in pod.spec.admission.claims if not each.is_needless)
        self._pods[pod.uid] = _Pod(pod.namespace, claims)
        return self._next(pod, self._pods[pod.uid], turn)

    def on_reply(
        self, pod: Pod, reply: effects.Reply, registered: tuple[DraDriver, ...], turn: Turn
    ) -> str | None:
        """Take a claim; `registered` are the drivers that are there now."""
        entry = self._pods.get(pod.uid)
        if entry is None or not entry.left:
            return None
        wanted = entry.left[0]
        if not reply.ok:
            return f"fetch ResourceClaim {wanted.claim}: {reply.message}"
        view = reply.record
        assert isinstance(view, admission.ResourceClaimView), reply
        error = _refused(pod, wanted, view, registered)
        if error:
            return error
        entry.found[wanted.name] = view
        entry.left = entry.left[1:]
        return self._next(pod, entry, turn)

    def forget(self, uid: PodUid) -> None:
        """Let the claims of a pod go. Source: UnprepareResources."""
        self._pods.pop(uid, None)

    def _next(self, pod: Pod, entry: _Pod, turn: Turn) -> str | None:
        if not entry.left:
            return ""
        claim = entry.left[0].claim
        if not claim:
            return f'pod "{pod.namespace}/{pod.name}": ResourceClaim not created yet'
        target = effects.PodTarget(pod.namespace, claim)
        turn.call(effects.Op.GET_RESOURCE_CLAIM, pod.uid, target)
        return None

    def with_health(self, pod: Pod, status: PodStatus, turn: Turn) -> PodStatus:
        """Return a status that names the devices of each container's claims.

        Those of a claim that is prepared, for whichever pod: one that has ended shows them for as
        long as another one has the claim. Source: UpdateAllocatedResourcesStatus.
        """
        if not self._pods or not pod.spec.admission.container_claims:
            return status
        if not turn.env.model.release.shows_device_health:
            return status
        prepared = {
            view.name: view
            for entry in self._pods.values()
            if entry.namespace == pod.namespace and not entry.left
            for view in entry.found.values()
        }
        found = {
            each.name: prepared[each.claim]
            for each in pod.spec.admission.claims
            if each.claim in prepared
        }
        containers = tuple(_with_claims(pod, each, found, turn) for each in status.containers)
        return status._replace(containers=containers)

    def take_affected(self, turn: Turn) -> list[PodUid]:
        """Return the pods of whose devices a driver says something else since this was asked last.

        A driver that went says nothing. Source: HandleWatchResourcesStream.
        """
        before_ns, self._looked_ns = self._looked_ns, turn.now_ns
        if not self._pods or not turn.env.model.release.shows_device_health:
            return []
        there = {each.driver for each in registered_drivers(turn)}
        return [
            uid
            for uid, entry in self._pods.items()
            if any(
                device.driver in there
                and _health(device, turn, before_ns) != _health(device, turn, turn.now_ns)
                for view in entry.found.values()
                for device in view.devices or ()
            )
        ]


def _refused(
    pod: Pod,
    wanted: admission.PodClaim,
    view: admission.ResourceClaimView,
    registered: tuple[DraDriver, ...],
) -> str:
    """Return why a claim cannot be prepared, "" when it can."""
    if wanted.generated and view.owner_uid != pod.uid:
        return (
            f"ResourceClaim {pod.namespace}/{view.name} was not created for Pod "
            f"{pod.namespace}/{pod.name} (Pod is not owner)"
        )
    if pod.uid not in view.reserved_for:
        text = f"is not allowed to use ResourceClaim {view.name} ({view.uid})"
        return f"pod {pod.name} ({pod.uid}) {text}"
    if view.devices is None:
        return f"ResourceClaim {view.name}: not allocated"
    drivers = {each.driver: each for each in registered}
    for device in view.devices:
        if device.driver not in drivers:
            return f"DRA driver {device.driver} is not registered"
        error = drivers[device.driver].prepare_error
        if error:
            return f"NodePrepareResources failed for ResourceClaim {view.name}: {error}"
    return ""


def _health(device: admission.ClaimDevice, turn: Turn, at_ns: int) -> tuple[str, str]:
    """Return what a driver says of a device at an instant. Source: healthinfo.go, getHealthInfo."""
    start_ns = turn.facts.started_ns
    for driver in registered_drivers(turn, at_ns):
        if driver.driver == device.driver and device.pool == turn.facts.name:
            return driver.health_at(device.device, at_ns - start_ns)
    return "Unknown", ""


def _resource_health(device: admission.ClaimDevice, turn: Turn) -> dict[str, str]:
    """Source: buildResourceHealth."""
    health, message = _health(device, turn, turn.now_ns)
    shown = {"health": health, "resourceID": f"{device.driver}/{device.pool}/{device.device}"}
    if message and turn.env.model.release.explains_device_health:
        shown["message"] = message
    return shown


def _with_claims(
    pod: Pod, status: ContainerStatus, found: dict[str, admission.ResourceClaimView], turn: Turn
) -> ContainerStatus:
    shown = orjson.loads(status.devices_json or b"[]")
    for claim in pod.spec.admission.container_claims:
        if claim.container != status.name or claim.claim not in found:
            continue
        base = claim.request.partition("/")[0]
        devices = [
            _resource_health(each, turn)
            for each in dict.fromkeys(
                each._replace(request="")
                for each in found[claim.claim].devices or ()
                if not base or each.request.partition("/")[0] == base
            )
        ]
        suffix = f"/{claim.request}" if claim.request else ""
        if devices:
            shown.append({"name": f"claim:{claim.claim}{suffix}", "resources": devices})
    if not shown:
        return status
    return status._replace(devices_json=orjson.dumps(shown, option=orjson.OPT_SORT_KEYS))


def registration_ns(driver: DraDriver, index: int, turn: Turn) -> int:
    """Return when the plugin of a driver registers; `index` is its place in the profile."""
    share = turn.env.draws.uniform(turn.node, _REGISTER_STREAM, index)
    after_ns = registers_after_ns(driver.registration_delay, share, runs=turn.finds_plugins)
    return turn.facts.started_ns + after_ns


def registered_drivers(turn: Turn, at_ns: int | None = None) -> tuple[DraDriver, ...]:
    """Return the drivers whose plugins are there, now if nothing else is said.

    Source: dra_plugin_manager.go, GetPlugin.
    """
    env, start_ns = turn.env, turn.facts.started_ns
    at_ns = turn.now_ns if at_ns is None else at_ns
    return tuple(
        driver
        for index, driver in enumerate(env.model.dra_drivers)
        if at_ns >= registration_ns(driver, index, turn)
        and outage_begin_ns(driver.plugin_outages, start_ns, at_ns) < 0
    )
