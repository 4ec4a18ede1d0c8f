"""PodAdmission: what happens to a pod that is new on a node, until it is admitted or refused.

    new --handlers--> admitted | refused
         |only its node affinity fails: the Node is read again, once--> admitted | refused
         |critical, and the node is full: others are killed, one after another--> admitted
         |another pod waits for its Node, or for those that are killed--> looked at afterwards

    left by a kubelet before us: it runs, and is admitted again -> it goes on as it is
                                                                -> refused: ORPHAN
                                 it is being deleted: its end goes on
                                 it was over: only its cleanup is left

A process knows nothing of the one before: what it finds are the statuses of the API and what the
runtime still has. It exists while the node has pods.
Source: pkg/kubelet/kubelet.go, HandlePodAdditions; allocation/allocation_manager.go, AddPod;
preemption/preemption.go, evictPodsToFreeRequests; kubelet_pods.go, HandlePodCleanups.
Differs: a kubelet's whole sync loop waits for the Node and for the pods it kills. Here the pod
does, and those that come after it; what happens to other pods goes on. Of pods that went while no
kubelet looked what runs ends at once, without an event.
"""

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from fleet.clock import NS_PER_MS
from fleet.k8s.admission import NodeState
from fleet.k8s.effects import ApiCall, Op, Reply
from fleet.k8s.pods import NodeView, Pod, PodUid
from fleet.kubelet.containers.allocation_manager import INFEASIBLE, asks_other, has_other_resources
from fleet.kubelet.containers.image_manager import adopt_images
from fleet.kubelet.devices.device_manager import DeviceManager
from fleet.kubelet.events import OpenReason
from fleet.kubelet.node.node_shutdown import NodeShutdown
from fleet.kubelet.pod_worker import (
    TERMINAL_PHASES,
    PodKill,
    PodWorker,
    Rejection,
    SyncStage,
    Workers,
    WorkerState,
    disruption_target,
)
from fleet.kubelet.pods.admission import AdmissionInputs, Devices, Verdict, admit, counted_requests
from fleet.kubelet.pods.pod_sync import PodSyncer
from fleet.kubelet.pods.resource_monitor import ResourceMonitor
from fleet.kubelet.pressure import preemption
from fleet.kubelet.pressure.eviction_manager import admits_under_pressure
from fleet.kubelet.turn import Turn
from fleet.profile.distribution import Distribution, Shape

_NODE: tuple[PodUid, ...] = (PodUid(""),)  # what a pod waits for that waits for its Node
_TURN: tuple[PodUid, ...] = (PodUid("-"),)
"""What a pod waits for that came while another one waited."""


@dataclass(slots=True, eq=False)
class PodAdmission:
    """The admission of one node's pods."""

    _workers: Workers
    _syncer: PodSyncer
    _monitor: ResourceMonitor
    _devices: DeviceManager | None  # only if the profile has any
    _state: NodeState | None = None  # of a Node read since the informer showed it
    _held: dict[PodUid, tuple[PodUid, ...]] | None = None  # whom a pod waits for, in turn
    shutdown: NodeShutdown | None = None  # since the machine is shutting down

    @property
    def is_holding(self) -> bool:
        """Return whether any pod waits to be admitted."""
        return self._held is not None

    def on_addition(self, worker: PodWorker, turn: Turn) -> None:
        """Admit or refuse a pod that is new on this node, or to the process of its kubelet.

        A pod that runs already keeps its devices: their manager has a checkpoint of them.
        Source: kubelet.go, HandlePodAdditions. Differs: `light` takes what runs as it is.
        """
        assert worker.state is WorkerState.SYNC, worker.state
        is_taken = _runs(worker) and not turn.env.fidelity.admits_again
        if _runs(worker):  # also if it has to wait: once all pods are known, it is too late
            self._syncer.allocations.restore(worker, turn)
        if self._is_waiting and not is_taken:
            self._hold(worker, _TURN)
            return
        if _runs(worker) and self._devices is not None:
            self._devices.adopt(worker.pod, turn)
        if is_taken:
            self._syncer.sync(worker, turn)
            return
        verdict = self._admit(worker, turn)
        rereads = turn.env.fidelity.reads_objects and turn.env.model.release.rereads_node
        if verdict.asks_node and rereads:
            self._hold(worker, _NODE)
            turn.call(Op.GET_NODE_ADMISSION, worker.pod.uid)
            return
        self._decide(worker, verdict, turn)

    def on_node(self, call: ApiCall, reply: Reply, turn: Turn) -> None:
        """Look again at the pod that only its node affinity kept out. Source: generalFilter."""
        worker = self._workers.get(PodUid(call.key))
        if worker is None or not self._release(worker.pod.uid):
            return
        if worker.state is not WorkerState.SYNC:  # it is to end by now
            return
        if reply.ok:
            assert isinstance(reply.record, NodeView), reply
            self._state = reply.record.state
        self._decide(worker, self._admit(worker, turn), turn)

    def on_facts(self) -> None:
        """Learn that the informer showed the Node: what was read before counts no more."""
        self._state = None

    def holds(self, worker: PodWorker) -> bool:
        """Return whether a pod still waits to be admitted; one that is to end waits no more."""
        if self._held is None or worker.pod.uid not in self._held:
            return False
        if worker.state is WorkerState.SYNC:
            return True
        self._release(worker.pod.uid)
        return False

    def release_ready(self, turn: Turn) -> None:
        """Kill the next pod for a critical one, or start it once all have made room.

        Then the pods that came since are looked at.
        """
        for uid, victims in tuple((self._held or {}).items()):
            if victims not in (_NODE, _TURN) and not self._still_runs(victims):
                self._kill_first(uid, victims[1:], turn)
        for uid, waits_for in tuple((self._held or {}).items()):
            if waits_for is _TURN and not self._is_waiting:
                self._release(uid)
                worker = self._workers.get(uid)
                if worker is not None and worker.state is WorkerState.SYNC:
                    self.on_addition(worker, turn)
                self.retry_resizes(turn)

    def give_up(self, victim: PodUid, turn: Turn) -> None:
        """Wait no longer for a pod that cannot be killed: the next one is killed all the same.

        Source: preemption.go, evictPodsToFreeRequests, which goes on after killPodFunc failed.
        """
        for uid, victims in tuple((self._held or {}).items()):
            if victims[:1] == (victim,):
                self._kill_first(uid, victims[1:], turn)

    @property
    def _is_waiting(self) -> bool:
        """Return whether a pod waits that others have to wait for."""
        held = self._held.values() if self._held is not None else ()
        return any(each is not _TURN for each in held)

    def _still_runs(self, victims: tuple[PodUid, ...]) -> bool:
        """Return whether the pod that is being killed now still counts. Source: isPodInactive."""
        victim = self._workers.get(victims[0]) if victims else None
        return victim is not None and victim.state < WorkerState.TERMINATED

    def _kill_first(self, uid: PodUid, victims: tuple[PodUid, ...], turn: Turn) -> None:
        """Kill the first of the pods that a critical pod waits for; without one it starts.

        Source: preemption.go, evictPodsToFreeRequests.
        """
        worker = self._workers.get(uid)
        victims = tuple(each for each in victims if self._still_runs((each,)))
        if worker is None or not victims:
            self._release(uid)
            if worker is not None:
                self._syncer.sync(worker, turn)
            return
        self._hold(worker, victims)
        victim = self._workers[victims[0]]
        turn.event(victim.pod, OpenReason(preemption.REASON), preemption.MESSAGE)
        condition = disruption_target(victim.pod, preemption.CONDITION_MESSAGE)
        kill = PodKill(preemption.REASON, preemption.MESSAGE, condition=condition)
        self._syncer.kill_pod(victim, kill, turn)

    def forget(self, uid: PodUid) -> None:
        """Let go of what a pod had that is gone."""
        self._release(uid)
        if self._devices is not None:
            self._devices.free(uid)

    def _admit(self, worker: PodWorker, turn: Turn) -> Verdict:
        others = self._others(worker)
        allocate = partial(self._allocate, others=others, turn=turn)
        return admit(worker.pod, others, self._inputs(worker.pod, turn), allocate)

    def _inputs(self, pod: Pod, turn: Turn) -> AdmissionInputs:
        return AdmissionInputs(
            name=turn.facts.name,
            model=turn.env.model,
            state=turn.facts.state if self._state is None else self._state,
            pressure=admits_under_pressure(pod, self._monitor.pressures),
            is_shutting_down=self.shutdown is not None,
        )

    def take_version(self, worker: PodWorker, pod: Pod, turn: Turn) -> Pod:
        """Return a new version of a pod with the resources that it is given."""
        check = partial(self._check_resize, turn=turn)
        return self._syncer.allocations.take(worker, pod, check, turn)

    def on_version(self, old: Pod, new: Pod, turn: Turn) -> None:
        """Try deferred resizes again if a pod was given others, by its status has less, or ended.

        Source: kubelet.go, HandlePodUpdates, HandlePodReconcile.
        """
        over = new.status.phase in TERMINAL_PHASES and old.status.phase not in TERMINAL_PHASES
        if not self._syncer.allocations.has_deferred():
            return
        had, has = (dict(counted_requests(each, turn.env.model.release)) for each in (old, new))
        shrank = any(has.get(name, 0) < had.get(name, 0) for name in ("cpu", "memory"))
        if over or shrank or has_other_resources(old, new, whole=True):
            self.retry_resizes(turn)

    def retry_resizes(self, turn: Turn) -> None:
        """Try deferred resizes again, but not while a pod has not been looked at.

        Source: allocation_manager.go, RetryPendingResizes; kubelet.go, HandlePodAdditions.
        """
        allocations, held = self._syncer.allocations, self._held or {}
        if allocations.has_deferred() and _TURN not in held.values():
            check = partial(self._check_resize, turn=turn)
            for worker in allocations.retry(self._workers, check, turn):
                if not self.holds(worker):
                    self._syncer.sync(worker, turn)

    def _check_resize(self, worker: PodWorker, pod: Pod, turn: Turn) -> Rejection | None:
        """Return why a pod cannot have the resources of its new version, as a new one could not.

        A critical pod has others killed for it, and goes on when they are gone.
        Source: canAdmitPod; allocation/handlers.go, podResizesAdmitHandler.Admit.
        """
        if pod.spec.qos_class == "Guaranteed":
            for manager, policy in turn.env.model.kubelet.static_policies:
                if asks_other(worker.pod, pod, manager.lower()):
                    text = f'alongside {manager} Manager policy "{policy}"'
                    text = f"Resize is infeasible for Guaranteed Pods {text}"
                    return Rejection(INFEASIBLE, text)
        has = Devices() if self._devices is None else Devices("", self._devices.allocated())
        others = self._others(worker)
        verdict = admit(pod, others, self._inputs(pod, turn), lambda _: has)
        rejection = verdict.rejection
        if rejection is None and verdict.shortages:
            rejection = self._preempt(worker, verdict, turn)
        return rejection

    def _allocate(self, pod: Pod, others: list[Pod], turn: Turn) -> Devices:
        if self._devices is None:
            return Devices()
        worker = self._workers.get(pod.uid)
        if worker is not None and _runs(worker):
            return Devices("", self._devices.allocated())
        self._devices.keep({pod.uid, *(other.uid for other in others)})
        error = self._devices.allocate(pod, turn)
        return Devices(error, self._devices.allocated())

    def _decide(self, worker: PodWorker, verdict: Verdict, turn: Turn) -> None:
        rejection = verdict.rejection
        if rejection is None and verdict.shortages:
            rejection = self._preempt(worker, verdict, turn)
        if rejection is not None:
            self.forget(worker.pod.uid)
            reject(self._syncer, worker, rejection, turn)
            return
        if not self.holds(worker):
            if _runs(worker) or not turn.env.fidelity.delays_first_sync:
                self._syncer.sync(worker, turn)
            else:
                turn.enqueue(worker, first_sync_ns(worker.pod.uid, turn))

    def _preempt(self, worker: PodWorker, verdict: Verdict, turn: Turn) -> Rejection | None:
        """Kill what must go for a critical pod, in turn; it starts when they are gone."""
        others = self._others(worker)
        needs = [preemption.Need(each.resource, each.missing) for each in verdict.shortages]
        found = preemption.pods_to_preempt(worker.pod, others, needs)
        if found.error:
            text = "Unexpected error while attempting to recover from admission failure"
            return Rejection("UnexpectedAdmissionError", f"{text}: {found.error}")
        self._kill_first(worker.pod.uid, tuple(pod.uid for pod in found.pods), turn)
        return None

    def _others(self, worker: PodWorker) -> list[Pod]:
        """Return the other pods that count; a full node asks this for each pod that comes.

        Those that nobody has looked at yet do not, nor those whose objects are gone, though their
        containers may still run. Source: GetActivePods.
        """
        over, held = WorkerState.TERMINATED, self._held or {}
        found = (each for each in self._workers.values() if each.state < over and not each.removed)
        return [
            each.pod for each in found if each is not worker and held.get(each.pod.uid) is not _TURN
        ]

    def _hold(self, worker: PodWorker, waits_for: tuple[PodUid, ...]) -> None:
        if self._held is None:
            self._held = {}
        self._held[worker.pod.uid] = waits_for

    def _release(self, uid: PodUid) -> bool:
        if self._held is None or self._held.pop(uid, None) is None:
            return False
        self._held = self._held or None
        return True


def _runs(worker: PodWorker) -> bool:
    """Return whether a kubelet before us has started a pod."""
    return worker.seen_ns < 0


def adopt(syncer: PodSyncer, worker: PodWorker, turn: Turn) -> None:
    """Take over what a kubelet before us left running.

    A pod that had ended only has its cleanup left. Source: UpdatePod, first sync of a pod.
    """
    pod, env = worker.pod, turn.env
    survives = syncer.runtime.sandbox(pod.uid) is not None
    if survives and (pod.deleting or pod.status.phase in TERMINAL_PHASES):
        worker.volumes_ready = True  # the kubelet before us had not unmounted them yet
    if syncer.runtime.adopt(pod, turn.behavior(pod), turn.now_ns, env.wall_offset_ns):
        sandbox = syncer.runtime.sandbox(pod.uid)
        assert sandbox is not None, pod.uid
        syncer.pleg.relist(pod.uid, sandbox)
        adopt_images(pod, sandbox, turn)
        worker.seen_ns = -1
    sandbox = syncer.runtime.sandbox(pod.uid)
    if pod.status.phase in TERMINAL_PHASES and (sandbox is None or not sandbox.is_running()):
        worker.state = WorkerState.TERMINATED
        worker.seen_ns = -1


def end_adopted(syncer: PodSyncer, worker: PodWorker, turn: Turn) -> None:
    """Go on with the end of a pod that is being deleted, or clean up after one that was over."""
    sandbox = syncer.runtime.sandbox(worker.pod.uid)
    if sandbox is not None and sandbox.is_running() and turn.env.fidelity.mounts_volumes:
        _mount_again(syncer, worker, turn)
    syncer.sync(worker, turn)


def reject(syncer: PodSyncer, worker: PodWorker, rejection: Rejection, turn: Turn) -> None:
    """Refuse a pod; what runs of it, housekeeping finds and ends. Source: rejectPod."""
    syncer.reject(worker, rejection, turn)
    if worker.stage is SyncStage.ORPHAN:
        _mount_again(syncer, worker, turn)


def drop_orphans(syncer: PodSyncer, workers: Mapping[PodUid, PodWorker]) -> None:
    """End what runs of pods that went while no kubelet looked. Source: HandlePodCleanups."""
    for uid in [uid for uid, _ in syncer.runtime if uid not in workers]:
        syncer.runtime.remove(uid)
    syncer.dra.keep(workers)
    if syncer.volumes.claims is not None:
        is_left = [each.pod.uid for each in workers.values() if each.state < WorkerState.TERMINATED]
        syncer.volumes.claims.keep(is_left)


def _mount_again(syncer: PodSyncer, worker: PodWorker, turn: Turn) -> None:
    """Have the volumes of a pod that runs mounted, though it shall not run.

    Source: desired_state_of_world_populator.go, findAndAddNewPods: when pods are looked at for the
    first time, those that are terminating are not left out.
    """
    worker.registered = True
    syncer.volumes.register_pod(worker.pod, turn)
    if worker.pod.spec.volumes:
        syncer.volumes.begin(worker.pod, turn)


FIRST_SYNC = Distribution(Shape.LOG_NORMAL, math.log(3 * NS_PER_MS), 0.36)
"""Median 3 ms, p99 7 ms: what a hollow kubelet takes longer than fleet would without it.

From the answer to POST pods to the first request about the pod, 80 pods one after another, audit
log, 2 cores; p10, p50, p90, p99 in ms: fleet without it 1.0, 2.5, 5.8, 12.9; a hollow kubelet 3.0,
5.4, 9.9, 19.5, and 4.9, 7.7, 19.8, 31.2 in the minute in which fleet took 5.8, 13.3, 22.7, 25.9.
"""
_STREAM_FIRST = 0xF125


def first_sync_ns(uid: PodUid, turn: Turn) -> int:
    """Return when a pod that arrives now is synced first.

    On the way lie the reflector's store, the merge of PodConfig, two channels, the admission with
    the checkpoint of what was allocated, and the start of the goroutines of worker and watches. A
    kubelet that skipped them would often ask for a pod before the node authorizer has heard of it.
    Source: pkg/kubelet/config/config.go; pkg/kubelet/kubelet.go, HandlePodAdditions;
    pkg/kubelet/allocation/allocation_manager.go, AddPod; pkg/kubelet/pod_workers.go, UpdatePod.
    Differs: pods that arrive together do not wait for one another; the reactor looks at timers each
    20 ms if nothing else happens. A pod that an earlier kubelet left running is synced at once.
    """
    draw = turn.env.draws.uniform(turn.node, _STREAM_FIRST, zlib.crc32(uid.encode()))
    return turn.now_ns + FIRST_SYNC.sample(draw)
