"""ResourceMonitor: the eviction manager and the OOM watcher of a node, over its pods.

It watches when usage may cross a threshold: the profile declares what a node uses, a pod's
behaviour declares what it uses, or the defaults could reach a threshold. One timer is set, for the
next instant at which either has something to do.
Source: pkg/kubelet/kubelet.go, initializeRuntimeDependentModules; pkg/kubelet/kubelet_pods.go,
filterOutInactivePods; pkg/kubelet/pod_workers.go, killPodNow.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

from fleet.clock import NS_PER_S
from fleet.k8s.effects import Timer
from fleet.k8s.pods import Pod, PodUid
from fleet.kubelet import pod_worker
from fleet.kubelet.containers.image_gc_manager import (
    arm_image_gc,
    arm_image_list,
    delete_unused_images,
)
from fleet.kubelet.containers.image_manager import images_of
from fleet.kubelet.containers.stats_provider import (
    Measure,
    NodeUse,
    PodTerms,
    node_capacity,
    node_use,
    pod_terms,
    system_usage,
)
from fleet.kubelet.events import Reason
from fleet.kubelet.pods.pod_sync import PodSyncer
from fleet.kubelet.pressure import oom_watcher
from fleet.kubelet.pressure.eviction_manager import (
    EVICTED,
    Eviction,
    EvictionManager,
    is_met,
    observations_of,
    threshold_amount,
    thresholds_of,
)
from fleet.kubelet.turn import Turn
from fleet.profile.node_model import NodeModel
from fleet.profile.pod_behavior import EMPTY_DIR_ANNOTATION, OOM_REASON, PodBehavior
from fleet.profile.usage import UNDECLARED
from fleet.quantity import parse_quantity
from fleet.runtime.container_usage import oom_kill_ns
from fleet.runtime.containers import NEVER, RunState

DISK_SIGNALS = frozenset(("nodefs.available", "imagefs.available"))
POD_MEMORY_MAX = 16 << 20
POD_DISK_MAX = 1 << 20
POD_INODES_MAX = 100
POD_PIDS_MAX = 10  # more than a pod uses of which nothing is declared, and that requests nothing
THRESHOLD_MET = "Attempting to reclaim %s"


@lru_cache(maxsize=256)
def is_always_needed(model: NodeModel) -> bool:
    """Return whether nodes of a profile may come under pressure though no pod declares its usage.

    That is so if the profile says what they use, or if full of default pods they would.
    """
    if model.usage != UNDECLARED:
        return True
    capacity = node_capacity(model)
    system = system_usage(model)
    pods = model.pods_max
    disk = _pods_disk_bytes(model) // 2 + pods * POD_DISK_MAX
    memory = parse_quantity(model.allocatable["memory"]).value // 2 + pods * POD_MEMORY_MAX
    full = NodeUse(
        Measure(capacity.memory, (), system.memory.ceiling() + memory),
        Measure(model.pods_memory_bytes, (), memory),
        Measure(capacity.disk, (), system.ephemeral.ceiling() + disk),
        Measure(capacity.inodes, (), system.inodes.ceiling() + pods * POD_INODES_MAX),
        Measure(model.pids_max, (), system.pids.ceiling() + pods * POD_PIDS_MAX),
    )
    observations = observations_of(full, 0)
    return any(is_met(each, observations) for each in thresholds_of(model))


@lru_cache(maxsize=256)
def _images_free_bytes(model: NodeModel) -> int:
    """Return how large the images of a node may be before the disk may come under pressure."""
    capacity = node_capacity(model).disk
    disk = _pods_disk_bytes(model) // 2
    disk += model.pods_max * POD_DISK_MAX + system_usage(model).ephemeral.ceiling()
    amounts = [
        threshold_amount(each, capacity)
        for each in thresholds_of(model)
        if each.signal in DISK_SIGNALS
    ]
    return capacity - disk - max(amounts) if amounts else capacity


def _pods_disk_bytes(model: NodeModel) -> int:
    shown = model.allocatable.get("ephemeral-storage")
    return parse_quantity(shown).value if shown else node_capacity(model).disk


def images_need_monitor(turn: Turn) -> bool:
    """Return whether a node came under watch by the images that it pulled."""
    return turn.env.images.used_bytes(turn.node) > _images_free_bytes(turn.env.model)


def declares_usage(pod: Pod, behavior: PodBehavior) -> bool:
    """Return whether anything says what the containers or volumes of a pod use."""
    if any(each.usage != UNDECLARED for each in behavior.containers):
        return True
    if any(each.usage is not None for each in behavior.volumes):
        return True
    return any(key == EMPTY_DIR_ANNOTATION for key, _ in pod.annotations)


@dataclass(slots=True, eq=False)
class ResourceMonitor:
    """Watches what is used of one node."""

    _workers: pod_worker.Workers
    _syncer: PodSyncer
    _due_ns: int = 0  # the timer that counts
    _pass_ns: int = NEVER
    _oom_ns: int = NEVER
    _shape: int = 0  # of the pods that the timer was set for
    _evictions: EvictionManager | None = None  # only if usage may cross a threshold
    _is_always_needed: bool = False
    _left: tuple[Eviction, ...] = ()  # of the last pass
    _killing: str = ""  # the uid of the pod that they wait for

    @property
    def is_watching(self) -> bool:
        """Return whether usage may cross a threshold."""
        return self._evictions is not None

    @property
    def is_idle(self) -> bool:
        """Return whether a node without pods need not be watched."""
        evictions = self._evictions
        return evictions is None or (evictions.is_quiet and not self._is_always_needed)

    @property
    def pressures(self) -> tuple[str, ...]:
        """Return the conditions that the node is under."""
        return () if self._evictions is None else self._evictions.conditions

    def watch(self, turn: Turn) -> None:
        """Watch from now on; look at the pods again: one was started, or ended, or went."""
        if self._evictions is None:
            self._evictions = EvictionManager(turn.facts.started_ns)
            self._is_always_needed = is_always_needed(turn.env.model)
            if turn.env.fidelity.pulls_images:
                arm_image_gc(turn, is_watched=True)
        self._on_change(self._evictions, turn)

    def on_machine_changed(self, turn: Turn) -> None:
        """Plan again: the node uses something else outside of its pods."""
        self._shape = 0
        if self.is_watching:
            self._is_always_needed = is_always_needed(turn.env.model)
        if self.is_watching or is_always_needed(turn.env.model):
            self.watch(turn)

    def follow_usage(self, worker: pod_worker.PodWorker, turn: Turn) -> None:
        """Take what annotations, or a resize, changed of a pod's usage and limits."""
        behavior = turn.behavior(worker.pod)
        if self.is_watching or declares_usage(worker.pod, behavior):
            self._plan_oom_kills(worker, behavior, turn)
            self._shape = 0  # plan again, though the same containers run
            self.watch(turn)

    def _plan_oom_kills(
        self, worker: pod_worker.PodWorker, behavior: PodBehavior, turn: Turn
    ) -> None:
        """Compute again when the containers of a pod come above their limits.

        Differs: one that is spared runs on for ever, though its command might have ended it later.
        """
        pod = worker.pod
        sandbox = self._syncer.runtime.sandbox(pod.uid)
        if sandbox is None or worker.state is not pod_worker.WorkerState.SYNC:
            return
        for container in sandbox.containers:
            spec = pod.find(container.name)
            if spec is None or container.state is not RunState.RUNNING:
                continue
            if container.exit_ns <= turn.now_ns:
                continue  # it has ended, and the next relist will see it
            if container.reason == OOM_REASON:
                container.exit_ns, container.exit_code, container.reason = NEVER, 0, ""
            memory = behavior.container(spec.name).usage.memory
            start_ns = container.started_s * NS_PER_S - turn.env.wall_offset_ns
            has = self._syncer.allocations.actuated(pod.uid).get(spec.name, spec.resources_json)
            oom_ns = oom_kill_ns(has, memory, start_ns, turn.now_ns)
            if oom_ns < container.exit_ns:
                container.oom_kill(oom_ns)
        self._syncer.on_runtime_changed(worker, turn)

    def _on_change(self, evictions: EvictionManager, turn: Turn) -> None:
        self._evict_next(evictions, turn)
        if self._shape_of(turn) != self._shape:
            self._plan(evictions, turn)

    def _evict_next(self, evictions: EvictionManager, turn: Turn) -> None:
        """Evict the pods of a pass, each once the one before is killed; then await their cleanup.

        Source: localStorageEviction; evictPod, which waits for killPodNow.
        """
        while self._killing or self._left:
            is_alive = self._is_before(self._killing, pod_worker.WorkerState.TERMINATED)
            if is_alive and not evictions.is_late(turn.now_ns):
                return
            found = next(iter(self._left), None)
            self._left, self._shape = self._left[1:], 0
            self._killing = "" if found is None else found.pod.uid
            evictions.wait(found, turn.now_ns)
            if found is not None and found.pod.uid in self._workers:
                _evict(self._workers[found.pod.uid], found, self._syncer, turn)
        finished = pod_worker.WorkerState.FINISHED
        if evictions.evicted and not any(
            self._is_before(uid, finished) for uid in evictions.evicted
        ):
            evictions.on_cleaned_up(turn.now_ns)
            self._shape = 0

    def _is_before(self, uid: str, state: pod_worker.WorkerState) -> bool:
        worker = self._workers.get(PodUid(uid))
        return worker is not None and worker.state < state

    def _shape_of(self, turn: Turn) -> int:
        """Return what a plan depends on, the curves apart: the containers and the images."""
        states = [
            (container.id, container.state)
            for _, sandbox in self._syncer.runtime
            for container in sandbox.containers
        ]
        return hash((turn.env.images.used_bytes(turn.node), *states))

    def on_timer(self, turn: Turn) -> None:
        """Do what is due."""
        evictions = self._evictions
        if evictions is None or not self._due_ns or turn.now_ns < self._due_ns:
            return
        self._due_ns = 0
        if turn.now_ns >= self._oom_ns:
            self._kill_for_memory(turn)
        self._evict_next(evictions, turn)
        if turn.now_ns >= self._pass_ns and evictions.is_late(turn.now_ns):
            self._synchronize(evictions, turn)
        self._plan(evictions, turn)

    def use(self, turn: Turn) -> NodeUse:
        """Measure the node."""
        return self._use(_terms(self._workers, self._syncer, turn), turn)

    def disk_bytes(self, turn: Turn) -> int | None:
        """Return how much of its disk the node uses; None: pods do not count."""
        if not self.is_watching:
            return None
        disk = self.use(turn).disk
        return min(disk.used(turn.now_ns), disk.capacity)

    def images_in_use(self) -> set[str]:
        """Return the full names of the images that the containers of the node have."""
        return {
            name
            for uid, sandbox in self._syncer.runtime
            if (worker := self._workers.get(uid)) is not None
            for name in images_of(worker.pod, sandbox)
        }

    def _use(self, pods: Mapping[PodUid, PodTerms], turn: Turn) -> NodeUse:
        image_bytes = turn.env.images.used_bytes(turn.node)
        return node_use(turn.env.model, pods.values(), turn.facts.booted_ns, image_bytes)

    def _plan(self, evictions: EvictionManager, turn: Turn) -> None:
        """Set the timer of the next instant that matters."""
        model = turn.env.model
        self._shape = self._shape_of(turn)
        pods = _terms(self._workers, self._syncer, turn)
        found, use = tuple(pods.values()), self._use(pods, turn)
        self._pass_ns = evictions.next_pass_ns(model, use, found, turn.now_ns)
        self._oom_ns = oom_watcher.next_oom_ns(use, found, turn.now_ns)
        due_ns = min(self._pass_ns, self._oom_ns)
        if due_ns not in {NEVER, self._due_ns}:
            self._due_ns = due_ns
            turn.arm(due_ns, Timer.EVICTION)

    def _synchronize(self, evictions: EvictionManager, turn: Turn) -> None:
        pods = _terms(self._workers, self._syncer, turn)
        active = [
            pods.get(uid) or worker.pod
            for uid, worker in self._workers.items()
            if _is_active(worker)
        ]
        use, delete = partial(self._use, pods, turn), partial(self._delete_unused_images, turn)
        found = evictions.synchronize(turn.env.model, active, use, delete, turn.now_ns)
        if found.starved:
            turn.node_event(Reason.EVICTION_THRESHOLD_MET, THRESHOLD_MET % found.starved)
        self._left = found.evictions
        self._evict_next(evictions, turn)

    def _delete_unused_images(self, turn: Turn) -> None:
        """Free what no container needs. Dead containers hold nothing here but their status."""
        if delete_unused_images(self.images_in_use(), turn):
            arm_image_list(turn)

    def _kill_for_memory(self, turn: Turn) -> None:
        """Kill one container after another until there is memory. Source: out_of_memory."""
        now_ns, whole = turn.now_ns, parse_quantity(turn.env.model.capacity["memory"]).value
        while True:
            pods = _terms(self._workers, self._syncer, turn)
            use = self._use(pods, turn)
            is_system_oom = use.memory.is_over(now_ns)
            over = [each for each in pods.values() if oom_watcher.is_over_limit(each, now_ns)][:1]
            candidates = over or tuple(pods.values())
            victim = oom_watcher.choose_victim(candidates, whole, now_ns)
            if victim is None or not (over or is_system_oom or use.pods_memory.is_over(now_ns)):
                return
            worker = self._workers[victim.pod.uid]
            sandbox = self._syncer.runtime.sandbox(victim.pod.uid)
            container = sandbox.find(victim.container) if sandbox is not None else None
            assert container is not None, victim
            container.oom_kill(now_ns)
            self._syncer.on_runtime_changed(worker, turn)
            if not over and is_system_oom:
                message = oom_watcher.system_oom_message(victim.process, container.id)
                turn.node_event(Reason.SYSTEM_OOM, message)


def _terms(workers: pod_worker.Workers, syncer: PodSyncer, turn: Turn) -> dict[PodUid, PodTerms]:
    """Return the curves of the pods that have containers."""
    found = {}
    for uid, sandbox in syncer.runtime:
        worker = workers.get(uid)
        if worker is not None:
            behavior = turn.behavior(worker.pod)
            pod = syncer.allocations.as_in_cgroup(worker.pod)
            terms = pod_terms(pod, sandbox, behavior, turn.now_ns, turn.env.wall_offset_ns)
            if terms is not None:
                found[uid] = terms
    return found


def _is_active(worker: pod_worker.PodWorker) -> bool:
    """Return whether a pod may be evicted: also one that is being ended, while its object is there.

    Source: kubelet_pods.go, GetActivePods, filterOutInactivePods.
    """
    if worker.state is pod_worker.WorkerState.SYNC:
        return worker.pod.status.phase not in pod_worker.TERMINAL_PHASES
    return worker.state is pod_worker.WorkerState.TERMINATING and not worker.removed


def _evict(worker: pod_worker.PodWorker, eviction: Eviction, syncer: PodSyncer, turn: Turn) -> None:
    """Kill a pod and have its status say why. Source: eviction_manager.go, evictPod."""
    pod: Pod = worker.pod
    message = eviction.message
    turn.event(pod, Reason.EVICTED, message, annotations=eviction.annotations)
    condition = pod_worker.disruption_target(pod, message) if eviction.disrupts else None
    syncer.kill_pod(worker, pod_worker.PodKill(EVICTED, message, eviction.grace_s, condition), turn)
