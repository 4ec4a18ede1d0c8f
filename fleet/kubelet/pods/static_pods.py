"""StaticPodSync: static pods and mirrors between the sources, the pod workers and the API.

    sources -> PodManager.take -> ADD or REMOVE to the workers
    pods watch -> mirror -> PodManager -> POST or DELETE; the static pod's status goes to it
    worker done -> housekeeping -> orphaned mirror goes; a namesake starts at its next look

Until every source was read once nothing is removed or cleaned up: SourcesReady.
Source: pkg/kubelet/kubelet.go, HandlePodAdditions, HandlePodRemoves, deletePod;
pkg/kubelet/config/sources.go; kubelet_pods.go, HandlePodCleanups.
"""

from collections.abc import Callable

from fleet.k8s.effects import ApiCall, Reply, Timer
from fleet.k8s.pods import Pod, PodUid
from fleet.k8s.static_pods import StaticPod, with_uid
from fleet.kubelet.environment import Environment
from fleet.kubelet.pod_worker import Happened, PodWorker, Workers, WorkerState
from fleet.kubelet.pods.pod_config import PodOp, PodUpdate
from fleet.kubelet.pods.pod_manager import is_mirror_of
from fleet.kubelet.pods.pod_sync import PodSyncer
from fleet.kubelet.turn import Turn

_STREAM_LOOK = 0x57A71C
_NO_MIRROR = PodUid("")
_CAME_OR_WENT = (PodOp.ADD, PodOp.REMOVE)
_CHANGED = (*_CAME_OR_WENT, PodOp.UPDATE, PodOp.DELETE)

Update = Callable[[PodUpdate], None]


class StaticPodSync:
    """The static side of one node's pods."""

    __slots__ = ("_api_listed", "_held", "_syncer", "_workers", "is_ready", "manager")

    def __init__(self, workers: Workers, syncer: PodSyncer) -> None:
        self.manager = syncer.mirrors
        self._workers = workers
        self._syncer = syncer
        self.is_ready = True  # every source was read once; not so when the kubelet starts
        self._api_listed = False
        self._held: tuple[PodUid, ...] = ()  # removed before all sources were ready

    def is_idle(self) -> bool:
        """Return whether there is nothing static on this node, and will not be unasked."""
        return self.is_ready and self.manager.is_empty() and not self._held

    def on_synced(self, env: Environment) -> None:
        """Learn that the pods watch has listed all pods."""
        self._api_listed = True
        self._look_ready(env)

    def _look_ready(self, env: Environment) -> None:
        """Source: SeenAllSources. A source that was read once stays ready."""
        is_read = env.static is not None or not env.model.kubelet.static_pod_path
        self.is_ready = self.is_ready or (self._api_listed and is_read)

    def take(self, update: Update, turn: Turn) -> None:
        """Take what the files say now."""
        env, manager = turn.env, self.manager
        self._look_ready(env)
        gone, added = manager.take(env.static or (), turn)
        for pod in gone:
            if pod.uid in self._workers:
                update(PodUpdate(PodOp.REMOVE, pod))
        for pod in added:
            if manager.add(pod, turn, may_start=self._is_free(pod.full_name)):
                self._start(pod, update)
        if gone:
            manager.arm(turn)

    def on_mirror(self, update: PodUpdate, turn: Turn) -> None:
        """Take a mirror pod as the watch shows it.

        Source: kubelet.go, HandlePodUpdates: it skips what was not admitted since 1.37.
        """
        mirror, is_gone = update.pod, update.op is PodOp.REMOVE
        statuses = self._syncer.statuses
        self.manager.on_mirror(mirror, turn, gone=is_gone)
        static = self.manager.static_of(mirror)
        if static is None:
            return
        worker = self._workers.get(static.uid)
        heeded = _CHANGED if turn.env.model.release.heeds_unadmitted else _CAME_OR_WENT
        if worker is not None and update.op in heeded and self.manager.ask_about(static, mirror):
            self._syncer.advance(worker, Happened.ASKED, turn)
        if not is_mirror_of(mirror, static):
            return
        if is_gone:
            statuses.set_mirror(static.uid, _NO_MIRROR)  # a GET on its way may show the next
        elif statuses.mirrors.get(static.uid) != mirror.uid:
            statuses.set_mirror(static.uid, mirror.uid)
            statuses.send_again(static.uid, turn)
        else:
            statuses.on_pod(with_uid(mirror, static.uid), turn)

    def on_reply(self, call: ApiCall, reply: Reply, turn: Turn) -> None:
        """Take the answer to a call about a mirror; go on with what was asked for since."""
        pod = self.manager.on_reply(call, reply, turn)
        worker = None if pod is None else self._workers.get(pod.uid)
        if worker is not None:
            self._syncer.advance(worker, Happened.ASKED, turn)

    def api_pod(self, worker: PodWorker) -> Pod | None:
        """Return what the API shows of a static pod: its mirror, under the static pod's uid.

        A pod that came back under its old uid may find its mirror still there. The mirror of one
        whose name another has taken counts as that one's: it is read, and left alone.
        Source: status_manager.go, syncPod, TranslatePodUID.
        """
        if self.manager.is_superseded(worker.pod):
            shown = self.manager.shown_of(worker.pod)
            self._syncer.statuses.set_mirror(worker.pod.uid, worker.pod.uid)
            return None if shown is None else with_uid(shown, worker.pod.uid)
        mirror = self.manager.mirror_of(worker.pod)
        if mirror is None:
            return None
        self._syncer.statuses.set_mirror(worker.pod.uid, mirror.uid)
        return with_uid(mirror, worker.pod.uid)

    def holds_removal(self, worker: PodWorker, turn: Turn) -> bool:
        """Keep a removed pod running while not all sources are ready. Source: deletePod."""
        if self.is_ready:
            return False
        self._held = (*self._held, worker.pod.uid)
        self.manager.arm(turn)
        return True

    def on_retry(self, name: str, update: Update, turn: Turn) -> None:
        """Start a pod that waited for its namesake; try again what failed of a mirror."""
        successor = self.manager.waits_no_more(name, turn, is_free=self._is_free(name))
        if successor is not None:
            self._start(successor, update)
        pod = self.manager.on_retry(name, turn)
        worker = None if pod is None else self._workers.get(pod.uid)
        if worker is not None:
            self._syncer.sync(worker, turn)

    def _start(self, pod: StaticPod, update: Update) -> None:
        shown = self.manager.shown_of(pod)
        if shown is not None:
            self._syncer.statuses.inherit(pod.uid, shown.status)
        update(PodUpdate(PodOp.ADD, pod))

    def _is_free(self, name: str) -> bool:
        """Return whether no pod of a name is left to end. Source: allowStaticPodStart."""
        return all(
            each.pod.full_name != name or each.state is WorkerState.FINISHED
            for each in self._workers.values()
        )

    def clean_up(self, update: Update, turn: Turn) -> bool:
        """Do the housekeeping that is due; return whether it is. Source: HandlePodCleanups."""
        if not self.manager.is_due(turn.now_ns):
            return False
        if not self.is_ready:
            self.manager.arm(turn)
            return False
        held, self._held = self._held, ()
        for uid in held:
            if uid in self._workers:
                update(PodUpdate(PodOp.REMOVE, self._workers[uid].pod))
        for uid, worker in list(self._workers.items()):
            if is_over(worker):
                del self._workers[uid]
                self._syncer.statuses.forget(uid)
                self._syncer.statuses.mirrors.pop(uid, None)
        names = {
            worker.pod.full_name
            for worker in self._workers.values()
            if isinstance(worker.pod, StaticPod) and worker.removed
        }
        self.manager.clean_up(names, turn)
        return True


def arm_look(turn: Turn) -> None:
    """Set the timer of a node's next look at what changed: each has a phase of its own."""
    period_ns = turn.env.model.kubelet.file_check_frequency_ns
    phase_ns = int(period_ns * turn.env.draws.uniform(turn.node, _STREAM_LOOK, 0))
    due_ns = turn.now_ns + (phase_ns - turn.now_ns) % period_ns if period_ns else turn.now_ns
    turn.arm(due_ns, Timer.STATIC_PODS)


def is_over(worker: PodWorker) -> bool:
    """Return whether nothing is left of a static pod that is no longer wanted."""
    return (
        isinstance(worker.pod, StaticPod)
        and worker.removed
        and worker.state is WorkerState.FINISHED
    )
