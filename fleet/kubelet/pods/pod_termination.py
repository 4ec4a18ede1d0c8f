"""The end of a pod: its containers and its sandbox are stopped, its volumes are unmounted.

    sync_terminating: status -> stop containers and sandbox -> status
                                |some survive: FailedKillPod, and another try
    sync_terminated:  status -> volumes are unmounted -> last status
                                |some are not: it waits for them, without an event

Until the last status is sent the object stays, with its deletionTimestamp.
Source: pkg/kubelet/kubelet.go, SyncTerminatingPod, SyncTerminatedPod; kubelet_volumes.go,
podVolumesExist: what could not be unmounted counts as mounted, and is waited for without an end.
Differs: in `light` there are no volumes, and a pod that is deleted goes without a last status
unless a finalizer or an owner waits for one.
"""

import enum

from fleet.k8s.effects import Milestone
from fleet.kubelet.containers.container_kill import kill_containers, outcome, sandbox_problem
from fleet.kubelet.containers.probe_manager import ProbeManager
from fleet.kubelet.counts import UNMOUNTED
from fleet.kubelet.events import Reason
from fleet.kubelet.pod_worker import PodWorker, SyncStage
from fleet.kubelet.pods.pod_status import StatusGenerator
from fleet.kubelet.pods.status_generate import terminate_pod_status
from fleet.kubelet.pods.status_manager import StatusManager
from fleet.kubelet.turn import Turn
from fleet.kubelet.volumes.pod_mount import MOUNT_POLL_NS
from fleet.kubelet.volumes.unmounts import Unmounts
from fleet.kubelet.volumes.volume_manager import LOOP_NS, VolumeManager
from fleet.runtime.runtime import Runtime

EXIST_POLL_NS = LOOP_NS
"""How often a pod looks whether what could not be unmounted is: kubelet.go, SyncTerminatedPod."""
_STREAM_REQUEUE = 0x5E90


class EndStep(enum.IntEnum):
    """How far a sync came that ends a pod."""

    WAITS = 0  # a timer of the worker is set
    DONE = 1
    FAILED = 2  # it is to be tried again


class PodTermination:
    """Ends the pods of one node."""

    __slots__ = ("_probes", "_reports", "_runtime", "_statuses", "_unmounts", "_volumes")

    def __init__(
        self,
        runtime: Runtime,
        volumes: VolumeManager,
        probes: ProbeManager,
        statuses: StatusManager,
        reports: StatusGenerator,
    ) -> None:
        self._runtime = runtime
        self._volumes = volumes
        self._probes = probes
        self._statuses = statuses
        self._reports = reports
        self._unmounts = Unmounts()

    def sync_terminating(self, worker: PodWorker, turn: Turn) -> EndStep:
        """Begin to stop what runs of a pod; each try tells Killing again of what still runs."""
        pod = worker.pod
        if turn.env.fidelity.reports_each_step:
            self._reports.set_status(worker, self._reports.generate(worker, turn), turn)
        self._probes.stop_liveness_and_startup(pod)
        sandbox = self._runtime.sandbox(pod.uid)
        if sandbox is not None and sandbox.is_running():
            worker.stage = SyncStage.STOP
            kill_containers(self._runtime, worker, sandbox, turn)
            return EndStep.WAITS
        if sandbox_problem(self._runtime, pod, turn):
            worker.stage = SyncStage.STOP
            return self.on_stop_due(worker, turn)
        return self._on_stopped(worker, turn)

    def on_stop_due(self, worker: PodWorker, turn: Turn) -> EndStep:
        """Go on once what is stopped has ended; else tell why it cannot be."""
        error = outcome(self._runtime, worker, turn)
        if error is None:
            return EndStep.WAITS
        if error:
            turn.event(worker.pod, Reason.FAILED_KILL_POD, f"error killing pod: {error}")
            return EndStep.FAILED
        return self._on_stopped(worker, turn)

    def _on_stopped(self, worker: PodWorker, turn: Turn) -> EndStep:
        """Report how the containers ended; the pod is now terminated."""
        pod = worker.pod
        env = turn.env
        self._probes.remove_pod(pod.uid)
        sandbox = self._runtime.sandbox(pod.uid)
        if sandbox is not None:
            self._runtime.advance(pod.uid, turn.now_ns, env.wall_offset_ns)
            assert not sandbox.is_running(), pod.uid
            self._runtime.stop_sandbox(pod.uid)
        if _tells_end(worker, turn):
            status = self._reports.generate(worker, turn, is_terminal=True)
            self._reports.set_status(worker, status, turn)
        worker.complete_terminating()
        worker.end_sync(turn.now_ns, relisted=False)
        share = turn.draw(_STREAM_REQUEUE)
        worker.due_ns = turn.now_ns + LOOP_NS + int(LOOP_NS * share)  # volumes are unmounted then
        return EndStep.DONE

    def sync_terminated(self, worker: PodWorker, turn: Turn) -> EndStep:
        """Begin to wait until the volumes of a pod are unmounted."""
        mounted = worker.volumes_ready and turn.now_ns < worker.due_ns
        if not turn.env.fidelity.mounts_volumes:
            return self._finish(worker, turn)
        status = self._reports.generate(worker, turn, is_terminal=True)
        self._reports.set_status(worker, status, turn)
        worker.stage = SyncStage.UNMOUNT
        if mounted:
            turn.wait(worker, turn.now_ns + MOUNT_POLL_NS)
            return EndStep.WAITS
        return self.on_unmount_due(worker, turn)

    def on_unmount_due(self, worker: PodWorker, turn: Turn) -> EndStep:
        """Try what is mounted, and finish once nothing is."""
        due_ns = self._unmounts.attempt(worker.pod, turn) if worker.volumes_ready else 0
        if due_ns:
            turn.wait(worker, due_ns + int(EXIST_POLL_NS * turn.draw(_STREAM_REQUEUE)))
            return EndStep.WAITS
        return self._finish(worker, turn)

    def _finish(self, worker: PodWorker, turn: Turn) -> EndStep:
        """Let everything of the pod go but its status. Source: SyncTerminatedPod, TerminatePod."""
        pod = worker.pod
        if worker.registered:
            worker.registered = False
            self._volumes.unregister_pod(pod, turn)
        if worker.volumes_ready:
            turn.facts.counts().on_volumes(pod.spec.volumes, UNMOUNTED)
        status = self._statuses.last_status(pod)
        if _tells_end(worker, turn):
            status = terminate_pod_status(pod, status, worker.told or pod.status)
        self._reports.set_status(worker, status, turn, finished=True)
        worker.end_sync(turn.now_ns, relisted=False)
        worker.complete_terminated()
        if status.phase == "Failed" and not pod.deleting and not worker.removed:
            turn.report(Milestone.POD_FAILED)
        return EndStep.DONE


def _tells_end(worker: PodWorker, turn: Turn) -> bool:
    """Return whether the last status of a pod is reported before its object goes."""
    if turn.env.fidelity.reports_each_step:
        return True
    return worker.pod.end_matters if worker.pod.deleting else not worker.removed
