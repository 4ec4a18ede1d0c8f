"""Pods that a kubelet before this one has left: taken over, refused anew, ended, forgotten.

    found -> it runs, and is admitted anew -> it goes on as it is
                                           -> refused -> ORPHAN: housekeeping ends what runs of it
          -> it is being deleted: its end goes on
          -> it was over: only its cleanup is left

A process knows nothing of the one before: what it finds are the statuses of the API and what the
runtime still has. Source: pkg/kubelet/kubelet.go, HandlePodAdditions; kubelet_pods.go,
HandlePodCleanups.
Differs: of pods that went meanwhile what runs ends at once, without an event.
"""

from collections.abc import Mapping

from fleet.k8s.pods import PodUid
from fleet.kubelet.containers.image_manager import adopt_images
from fleet.kubelet.pod_worker import (
    TERMINAL_PHASES,
    PodWorker,
    Rejection,
    SyncStage,
    WorkerState,
)
from fleet.kubelet.pods.pod_sync import PodSyncer
from fleet.kubelet.turn import Turn


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


def end(syncer: PodSyncer, worker: PodWorker, turn: Turn) -> None:
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


def _mount_again(syncer: PodSyncer, worker: PodWorker, turn: Turn) -> None:
    """Have the volumes of a pod that runs mounted, though it shall not run.

    Source: desired_state_of_world_populator.go, findAndAddNewPods: when pods are looked at for the
    first time, those that are terminating are not left out.
    """
    worker.registered = True
    syncer.volumes.register_pod(worker.pod, turn)
    if worker.pod.spec.volumes:
        syncer.volumes.begin(worker.pod, turn)
