"""What every step of one input needs, and the three things that a step asks of the outside.

The kubelet makes one `Turn` for an input that concerns pods; whatever knows pods takes it, last.
What knows only the Node takes `env, now_ns, out`: a renewal of a Lease makes no `Turn`.
"""

from typing import NamedTuple

from fleet.kubelet.environment import Environment
from fleet.kubelet.events import AnyReason, EventRecorder
from fleet.kubelet.pods.pod_events import pod_ref
from fleet.kubelet.pods.pod_workers import RUNTIME_STAGES, PodWorker
from fleet.objects.effects import NodeId, Outbox, SetTimer, Timer
from fleet.objects.pods import ContainerSpec, Pod
from fleet.profile.pod_behavior import PodBehavior


class Turn(NamedTuple):
    """One input of a node's pod side: when it came, and where its effects go."""

    node: NodeId
    env: Environment
    recorder: EventRecorder
    now_ns: int
    out: Outbox

    @property
    def wall_s(self) -> int:
        """Return the wall time in whole seconds."""
        return self.env.wall_s(self.now_ns)

    def behavior(self, pod: Pod) -> PodBehavior:
        """Return how the containers of a pod behave."""
        return self.env.model.behavior_for(pod.labels, pod.namespace, pod.annotations)

    def event(
        self,
        pod: Pod,
        reason: AnyReason,
        message: str,
        spec: ContainerSpec | None = None,
        annotations: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Record an event about a pod, or about one of its containers; `light` has none."""
        if not self.env.light:
            about = pod_ref(pod, spec)
            self.recorder.event(
                about, reason, message, self.env, self.now_ns, self.out, annotations
            )

    def wait(self, worker: PodWorker, due_ns: int) -> None:
        """Wait for the runtime: the stage of the worker is over at `due_ns`.

        What the simulated machine takes is no result: a pod's start is told with and without it.
        """
        worker.due_ns = due_ns
        if worker.seen_ns >= 0 and worker.stage in RUNTIME_STAGES:
            worker.simulated_ns += max(0, due_ns - self.now_ns)
        self.out.append(SetTimer(self.node, due_ns, Timer.RUNTIME, worker.pod.uid))

    def enqueue(self, worker: PodWorker, due_ns: int) -> None:
        """Put a pod into the work queue: it is synced at `due_ns`."""
        worker.sync_ns = due_ns
        self.out.append(SetTimer(self.node, due_ns, Timer.POD_SYNC, worker.pod.uid))
