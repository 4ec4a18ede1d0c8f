"""ProbeManager: a worker per probe of a container, and the results that syncs act on.

    add_pod -> tick -> attempt -> counters -> result -> ProbeUpdate
                 ^ each period since the worker began, or since a readiness probe was triggered

One timer per pod waits for the earliest tick that matters to any of its workers: a container whose
probes keep succeeding costs nothing.
Source: pkg/kubelet/prober/prober_manager.go, manager; worker.go, doProbe.
Differs: a container that stopped is not marked as failed, since its status says so itself; where a
triggered attempt and the status that called for it race upstream, the status comes first. In
`light` a readiness probe that is answered at once is run before the status is generated, so that
one patch says it all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from fleet.clock import NS_PER_S
from fleet.k8s.effects import Timer
from fleet.k8s.pods import ContainerSpec, ContainerStatus, Pod, PodStatus, PodUid, RunningState
from fleet.kubelet.containers.pod_actions import is_sidecar
from fleet.kubelet.containers.probe_worker import (
    NEVER,
    NOT_PROBED,
    Probed,
    ProbeResult,
    ProbeUpdate,
    ProbeWorker,
    View,
    was_started_before,
)
from fleet.kubelet.containers.prober import CANCELLED, behavior_of, probe_event
from fleet.kubelet.pod_worker import TERMINAL_PHASES, KillReason
from fleet.kubelet.turn import Turn
from fleet.profile.container_behavior import ALWAYS_GOOD, ProbeKind
from fleet.runtime.containers import Container, RunState, Sandbox
from fleet.runtime.program import Process
from fleet.runtime.programs import probe_in_files, program_of
from fleet.runtime.runtime import Runtime

ProcessAt = Callable[[ContainerSpec, int, int], Process]
"""Return what a probe runs in a container that started at an instant, by its age."""


@dataclass(slots=True, eq=False)
class _Probes:
    """The workers of one pod, startup probes first."""

    workers: tuple[ProbeWorker, ...]
    armed_ns: int = NEVER
    annotations: tuple[tuple[str, str], ...] | None = None  # that the workers follow

    def find(self, kind: ProbeKind, name: str) -> ProbeWorker | None:
        found = (each for each in self.workers if each.kind is kind and each.spec.name == name)
        return next(found, None)


@dataclass(slots=True, eq=False)
class ProbeManager:
    """The probes of one node's pods; a pod without any leaves nothing here."""

    _runtime: Runtime
    _pods: dict[PodUid, _Probes] = field(default_factory=dict)

    def add_pod(self, pod: Pod, status: PodStatus, turn: Turn) -> None:
        """Make a worker for every probe of a pod, once; follow its annotations.

        Source: AddPod.
        """
        probes = self._pods.get(pod.uid)
        if probes is None:
            workers = tuple(
                ProbeWorker(kind, spec, probe)
                for kind in ProbeKind
                for spec in _probed_containers(pod)
                if (probe := (spec.startup_probe, spec.readiness_probe, spec.liveness_probe)[kind])
            )
            if not workers:
                return
            probes = self._pods[pod.uid] = _Probes(workers)
            for worker in workers:
                worker.begin(pod.uid, turn.facts.started_ns, turn)
        if probes.annotations != pod.annotations:
            probes.annotations = pod.annotations
            behavior = turn.behavior(pod)
            for worker in probes.workers:
                chosen = behavior.container(worker.spec.name)
                found = behavior_of(pod, worker.spec, worker.probe, worker.kind, chosen)
                worker.usual = None
                worker.follow(pod.uid, found, turn)
            self._plan(pod, probes, status, turn)

    def on_files_changed(
        self, pod: Pod, status: PodStatus, process_at: ProcessAt, turn: Turn
    ) -> None:
        """Have probes find what somebody wrote into the containers of a pod.

        A probe of which a behaviour is declared stays so.
        """
        probes = self._pods.get(pod.uid)
        if probes is None:
            return
        behavior = turn.behavior(pod)
        for worker in probes.workers:
            probe, spec = worker.probe, worker.spec
            view = self._view(worker, pod, status, turn)
            if (
                probe.handler not in {"exec", "httpGet"}
                or view is None
                or view.container_id != worker.container_id
                or behavior.container(spec.name).probes.of(worker.kind) is not ALWAYS_GOOD
                or worker.behavior is CANCELLED
            ):
                continue
            start_ns = view.started_s * NS_PER_S - turn.env.wall_offset_ns
            find, age_ns = partial(process_at, spec, start_ns), turn.now_ns - start_ns
            chosen, program = behavior.container(spec.name), program_of(pod, spec)
            found = probe_in_files(find, probe, worker.behavior, age_ns, program, chosen)
            usual = worker.usual or worker.behavior
            worker.follow(pod.uid, found, turn)
            worker.usual = usual
        self._plan(pod, probes, status, turn)

    def stop_liveness_and_startup(self, pod: Pod, status: PodStatus, turn: Turn) -> None:
        """Stop what could kill a container that is being stopped anyway.

        The probes of sidecars go on, as upstream. Workers of 1.35 and 1.36 have the context of the
        pod's syncs, which is cancelled when the pod begins to end: no command is run any more.
        Workers of a pod that is over by its status end: an eviction or a deadline says so at once.
        Source: StopLivenessAndStartup; AddPod (WithoutCancel); worker.go, doProbe; pod_workers.go,
        UpdatePod, cancelFn; prober.go, newExecInContainer.
        """
        probes = self._pods.get(pod.uid)
        if probes is None or status.phase in TERMINAL_PHASES:
            self.remove_pod(pod.uid)
            return
        regular = {spec.name for spec in pod.spec.containers}
        probes.workers = tuple(
            worker
            for worker in probes.workers
            if worker.kind is ProbeKind.READINESS or worker.spec.name not in regular
        )
        for worker in probes.workers if turn.env.model.release.cancels_probes else ():
            if worker.probe.handler == "exec":
                worker.follow(pod.uid, CANCELLED, turn)
        self._plan(pod, probes, status, turn)

    def remove_pod(self, uid: PodUid) -> None:
        """Stop all probes of a pod, and forget their results."""
        self._pods.pop(uid, None)

    def failed_probe(self, uid: PodUid, container: Container) -> KillReason | None:
        """Return which probe wants a running container killed. Source: computePodActions."""
        probes = self._pods.get(uid)
        if probes is not None:
            for kind, reason in (
                (ProbeKind.LIVENESS, KillReason.LIVENESS_PROBE),
                (ProbeKind.STARTUP, KillReason.STARTUP_PROBE),
            ):
                if _result(probes.find(kind, container.name), container) is ProbeResult.FAILURE:
                    return reason
        return None

    def is_started(self, uid: PodUid, spec: ContainerSpec, container: Container) -> bool:
        """Return whether a sidecar has started: its startup probe, if any, has succeeded.

        Source: computeInitContainerActions.
        """
        if spec.startup_probe is None:
            return True
        probes = self._pods.get(uid)
        worker = probes.find(ProbeKind.STARTUP, spec.name) if probes is not None else None
        return _result(worker, container) is ProbeResult.SUCCESS

    def is_resynced(self, uid: PodUid) -> bool:
        """Return whether the next resync of a pod would find something to do.

        That is so while a container has started and is not ready: its probe is triggered then.
        """
        probes = self._pods.get(uid)
        return probes is not None and any(
            worker.kind is ProbeKind.READINESS
            and worker.is_live
            and not worker.is_new
            and worker.result is not ProbeResult.SUCCESS
            for worker in probes.workers
        )

    def update_pod_status(
        self, pod: Pod, sandbox: Sandbox | None, old: PodStatus, turn: Turn
    ) -> Mapping[str, Probed]:
        """Return what probes say of the containers that have some, for the next status.

        A container that has started and is not known to be ready has its readiness probe run at
        once. Source: UpdatePodStatus, isContainerStarted, setReadyStateOnKubeletRestart.
        """
        specs = [
            spec
            for spec in _probed_containers(pod)
            if spec.readiness_probe or spec.liveness_probe or spec.startup_probe
        ]
        if not specs:
            return NOT_PROBED
        probes = self._pods.get(pod.uid)
        found = {}
        for spec in specs:
            container = sandbox.find(spec.name) if sandbox is not None else None
            if container is None or container.state is not RunState.RUNNING:
                found[spec.name] = Probed(started=False, ready=False)
            else:
                before = _status_of(old, spec.name)
                keeps = turn.env.model.release.keeps_started
                started = _is_started(probes, container, before if keeps else None)
                ready = started and self._is_ready(pod, spec, container, probes, turn)
                found[spec.name] = Probed(started, ready)
        return found

    def on_status(self, pod: Pod, status: PodStatus, turn: Turn) -> None:
        """Look at a status that was just set: containers may have come, gone, or started."""
        probes = self._pods.get(pod.uid)
        if probes is not None:
            self._plan(pod, probes, status, turn)

    def on_timer(self, pod: Pod, status: PodStatus, turn: Turn) -> list[ProbeUpdate]:
        """Run the attempts that end now; return the results that changed."""
        probes = self._pods.get(pod.uid)
        updates: list[ProbeUpdate] = []
        if probes is None or turn.now_ns < probes.armed_ns:
            return updates
        probes.armed_ns = NEVER
        for worker in probes.workers:
            if worker.due_ns <= turn.now_ns:
                view = self._view(worker, pod, status, turn)
                updates += self._end_attempt(worker, pod, view, status.pod_ip, turn)
        self._plan(pod, probes, status, turn)
        return updates

    def _is_ready(
        self,
        pod: Pod,
        spec: ContainerSpec,
        container: Container,
        probes: _Probes | None,
        turn: Turn,
    ) -> bool:
        """Return whether a container that has started is ready."""
        worker = probes.find(ProbeKind.READINESS, spec.name) if probes is not None else None
        if _result(worker, container) is ProbeResult.SUCCESS:
            return True
        if worker is not None:
            worker.triggered = True
            is_early = not turn.env.fidelity.probes_on_ticks
            if is_early and self._probe_at_once(worker, pod, container, turn):
                return True
        ready = worker is None
        if was_started_before(container.started_s, turn.facts.started_ns, turn):
            ready = ready or _result(worker, container) is None
            was_ready = any(
                each.type == "Ready" and each.status == "True" for each in pod.status.conditions
            )
            ready = ready and (spec.readiness_probe is None or was_ready)
        return ready

    def _probe_at_once(
        self, worker: ProbeWorker, pod: Pod, container: Container, turn: Turn
    ) -> bool:
        """`light`: run a readiness probe that is answered at once; return whether it passed."""
        now_ns = turn.now_ns
        if now_ns < worker.anchor_ns or worker.is_under_way(now_ns):
            return False
        view = View(container.id, container.started_s, started=True)
        if worker.container_id != view.container_id:
            worker.attach(view)
        if worker.attempt(pod.uid, now_ns, turn).took_ns:
            return False
        worker.skip_to(pod.uid, now_ns - 1, turn)
        worker.anchor_ns = worker.tick_ns = now_ns
        worker.triggered = False
        self._end_attempt(worker, pod, view, "", turn)
        return worker.result is ProbeResult.SUCCESS

    def _plan(self, pod: Pod, probes: _Probes, status: PodStatus, turn: Turn) -> None:
        """Find the next tick of each worker that matters, and set the timer for the earliest."""
        due_ns = NEVER
        for worker in probes.workers:
            worker.plan(pod.uid, self._view(worker, pod, status, turn), turn)
            due_ns = min(due_ns, worker.due_ns)
        if due_ns != probes.armed_ns:
            probes.armed_ns = due_ns
            if due_ns != NEVER:
                turn.arm(due_ns, Timer.PROBES, pod.uid)

    def _view(self, worker: ProbeWorker, pod: Pod, status: PodStatus, turn: Turn) -> View | None:
        """Return what a worker reads of a container: None unless it runs, in a pod that goes on."""
        name = worker.spec.name
        found, sandbox = _status_of(status, name), self._runtime.sandbox(pod.uid)
        if (
            found is None
            or not isinstance(found.state, RunningState)
            or status.phase in TERMINAL_PHASES
        ):
            return None
        end_ns, container = NEVER, sandbox.find(name) if sandbox is not None else None
        if container is not None and turn.env.fidelity.records_events:
            # After a restart the port is that of the new one.
            end_ns = worker.end_ns if worker.probe.handler == "exec" else NEVER
            if container.id == found.container_id:
                end_ns = container.exit_ns
        return View(found.container_id, found.state.started_s, found.started, end_ns)

    def _end_attempt(
        self, worker: ProbeWorker, pod: Pod, view: View | None, pod_ip: str, turn: Turn
    ) -> list[ProbeUpdate]:
        """End the planned attempt: its event, its counters, its result. Source: doProbe."""
        tick_ns = worker.tick_ns
        worker.skip_to(pod.uid, tick_ns - 1, turn)
        worker.seen_ns = max(turn.now_ns, tick_ns)
        worker.kept_ns = 0
        if worker.due_ns != NEVER and worker.after(tick_ns, worker.due_ns) == worker.due_ns:
            worker.kept_ns = turn.now_ns  # a tick fell into the attempt
            worker.seen_ns = turn.now_ns - 1
        worker.due_ns = NEVER
        worker.forced = False
        updates: list[ProbeUpdate] = []
        if view is None or view.container_id != worker.container_id:
            return updates
        worker.end_ns = view.end_ns
        if worker.is_new:
            worker.begin_container(view, turn.facts.started_ns, turn)
            if worker.result is not None and worker.kind is not ProbeKind.LIVENESS:
                updates.append(_update(worker, worker.result))
        is_unwanted = view.started is (worker.kind is ProbeKind.STARTUP)
        if is_unwanted or worker.is_delayed(tick_ns, turn):
            return updates
        attempt = worker.attempt(pod.uid, tick_ns, turn)
        event = probe_event(worker.kind, worker.probe, attempt, pod_ip, turn.env.model.release)
        if event is not None:
            turn.event(pod, *event, pod.find(worker.spec.name) or worker.spec)
        if worker.take(attempt) and worker.result is not None:
            updates.append(_update(worker, worker.result))
        return updates


def _update(worker: ProbeWorker, result: ProbeResult) -> ProbeUpdate:
    return ProbeUpdate(worker.kind, worker.spec.name, result)


def _result(worker: ProbeWorker | None, container: Container) -> ProbeResult | None:
    """Return the result of a container. Source: results.Manager.Get."""
    if worker is None or worker.container_id != container.id:
        return None
    return worker.result


def _is_started(
    probes: _Probes | None, container: Container, before: ContainerStatus | None
) -> bool:
    """Source: isContainerStarted; what the last status said is kept until a tick says more."""
    worker = probes.find(ProbeKind.STARTUP, container.name) if probes is not None else None
    result = _result(worker, container)
    if result is not None:
        return result is ProbeResult.SUCCESS
    if before is not None and before.started:
        return True
    return worker is None


def _probed_containers(pod: Pod) -> tuple[ContainerSpec, ...]:
    """Return the containers that may have probes: the regular ones and the sidecars."""
    if not pod.spec.init_containers:
        return pod.spec.containers
    return (*pod.spec.containers, *(spec for spec in pod.spec.init_containers if is_sidecar(spec)))


def _status_of(status: PodStatus, name: str) -> ContainerStatus | None:
    statuses = (*status.containers, *status.init_containers)
    return next((each for each in statuses if each.name == name), None)
