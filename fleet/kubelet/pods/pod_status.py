"""The status of a pod as its worker reports it: what all managers know of it, put together.

Source: pkg/kubelet/kubelet_pods.go, generateAPIPodStatus; status_manager.go, SetPodStatus.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.k8s.pods import PodStatus, WaitingState
from fleet.kubelet.containers.allocation_manager import AllocationManager
from fleet.kubelet.containers.kuberuntime_sandbox import mounts_recursively
from fleet.kubelet.containers.pod_actions import could_restart_all, should_restart_all
from fleet.kubelet.containers.probe_manager import ProbeManager
from fleet.kubelet.devices.device_manager import DeviceManager
from fleet.kubelet.devices.dra import DRAManager
from fleet.kubelet.events import Reason
from fleet.kubelet.pod_worker import (
    PENDING_HOLD_NS,
    STARTED_PHASES,
    TERMINAL_PHASES,
    PodWorker,
    WorkerState,
)
from fleet.kubelet.pods import status_generate
from fleet.kubelet.pods.status_manager import StatusManager
from fleet.kubelet.turn import Turn
from fleet.runtime.runtime import Runtime

_NO_REASONS: Mapping[str, WaitingState] = {}


@dataclass(slots=True, eq=False)
class StatusGenerator:
    """Generates the statuses of one node's pods, and hands them to the status manager."""

    _statuses: StatusManager
    _runtime: Runtime
    _probes: ProbeManager
    _allocations: AllocationManager
    _dra: DRAManager
    _devices: DeviceManager | None  # only if the node has any

    def generate(self, worker: PodWorker, turn: Turn, *, is_terminal: bool = False) -> PodStatus:
        """Return the status of a pod now; `is_terminal`: nothing runs any more, or will."""
        pod = worker.pod
        env = turn.env
        sandbox = self._runtime.sandbox(pod.uid)
        if sandbox is not None and (
            worker.state is not WorkerState.SYNC or not env.fidelity.waits_for_relist
        ):
            # A SyncPod knows what the last relist saw, and nothing newer.
            self._runtime.advance(pod.uid, turn.now_ns, env.wall_offset_ns)
        old = self._statuses.last_status(pod)
        is_new = self._statuses.status(pod.uid) is None and env.fidelity.waits_for_relist
        if worker.state is WorkerState.TERMINATED and is_new:
            # It was over before this kubelet started; only the pod cache of the one before knew
            # the address then: pleg/generic.go, getPodIPs.
            old = old._replace(pod_ips="")
        killed = worker.killed
        if killed is not None and is_terminal and old.phase not in TERMINAL_PHASES:
            old = killed.applied(old)  # as reported when the kill began; light reports it once
        past = status_generate.is_past_deadline(pod, old, turn.now_ns, env.wall_offset_ns)
        if past:
            turn.event(pod, Reason.DEADLINE_EXCEEDED, status_generate.DEADLINE_MESSAGE)
        resizes = self._allocations
        inputs = status_generate.PodInputs(
            old=old,
            resize=() if is_terminal else resizes.conditions(pod.uid),
            actuated=resizes.had(pod.uid),
            in_cgroup=resizes.in_cgroup(pod),
            restarting=could_restart_all(pod) and should_restart_all(pod, sandbox, old),
            past_deadline=past,
            host_ips=turn.facts.host_ips,
            reasons=worker.reasons or _NO_REASONS,
            is_terminal=is_terminal,
            untolerated=status_generate.untolerated_key(pod, env.tolerate_key),
            probed=self._probes.update_pod_status(pod, sandbox, old, turn),
            pod_resources=env.model.release.resizes_whole_pods,
            keeps_memory=env.model.release.keeps_memory,
            explains_sandbox=env.model.release.explains_sandbox,
            # The last look at a pod is as old as the one at which its containers were stopped.
            keeps_last=env.model.release.restarts_all_containers
            or worker.state is WorkerState.TERMINATED,
            keeps_initialized=env.model.release.restarts_all_containers,
            shows_user=not env.model.is_windows,
            shown_image=env.images.shown,
            recursive=mounts_recursively(pod, env),
        )
        status = status_generate.generate_pod_status(pod, sandbox, inputs)
        if worker.state is WorkerState.TERMINATED and not old.pod_ips:
            status = status._replace(pod_ips=status.host_ips if pod.spec.host_network else "")
        if self._devices is not None:
            status = self._devices.with_health(pod, status, turn)
        status = self._dra.with_health(pod, status, turn)
        if killed is None:
            return status
        return killed.noted(status) if is_terminal else killed.applied(status)

    def set_unless_starting(self, worker: PodWorker, status: PodStatus, turn: Turn) -> None:
        """`light`: hold a Pending status back while the pod may still start within the second."""
        held_until_ns = worker.seen_ns + PENDING_HOLD_NS
        if status.phase != "Pending" or turn.now_ns >= held_until_ns:
            self.set_status(worker, status, turn)
        elif worker.pod.spec.init_containers:
            turn.enqueue(worker, held_until_ns)

    def set_status(
        self,
        worker: PodWorker,
        status: PodStatus,
        turn: Turn,
        *,
        finished: bool = False,
        begins: bool = True,
    ) -> None:
        """Hand a status to the status manager; `finished`: the object may go.

        Without `begins` a status that follows in this turn takes its place.

        From the first one that says a pod runs, its start waits for nothing but the requests of
        all statuses of the node, one after the other: `api_ns` grows as those do.
        """
        env = turn.env
        if not status.start_time_s:  # a pod starts when it is first seen
            started_ns = worker.seen_ns if worker.seen_ns >= 0 else turn.now_ns
            status = status._replace(start_time_s=env.wall_s(started_ns))
        wall_s = env.wall_s(turn.now_ns)
        old = self._statuses.last_status(worker.pod)
        if status.phase in STARTED_PHASES and old.phase not in STARTED_PHASES:
            worker.api_ns -= self._statuses.under_way_until(turn.now_ns)
        self._statuses.set_pod_status(
            worker.pod,
            status,
            wall_s,
            finished=finished,
            known=not env.fidelity.reads_before_patch,
            begins=begins,
        )
        self._probes.on_status(worker.pod, self._statuses.last_status(worker.pod), turn)
