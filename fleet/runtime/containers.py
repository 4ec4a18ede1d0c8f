"""The records of a simulated container runtime: a pod's sandbox, and the containers in it.

    CREATED -> RUNNING --exit_ns passes--> EXITED     sandbox: READY --last kill--> STOPPED or HELD

They change nothing but themselves; `Runtime` makes, starts and ends them.
Source: k8s.io/cri-api/pkg/apis/runtime/v1, PodSandbox, Container; containerd's names of them.
"""

import enum
import hashlib
from dataclasses import dataclass, field
from functools import lru_cache

from fleet.clock import NS_PER_S
from fleet.k8s.pods import ContainerSpec, ContainerStatus, PodUid, RunningState, TerminatedState
from fleet.profile.image_behavior import digest_name, parse_image
from fleet.profile.pod_behavior import OOM_EXIT_CODE, OOM_REASON
from fleet.runtime.container_usage import NOTHING_SPENT, ContainerUsage, Spent, spent
from fleet.runtime.program import Run

NEVER = 1 << 62
BACKOFF_FIRST_NS = 10 * NS_PER_S
BACKOFF_FORGET_NS = 600 * NS_PER_S
MESSAGE_MAX, MESSAGE_LOG_MAX, MESSAGE_LINES_MAX = 4096, 2048, 80
MESSAGES_MAX = 12 << 10  # of a pod, MaxPodTerminationMessageLogLength
ID_PREFIX = "containerd://"


class RunState(enum.IntEnum):
    """Source: pkg/kubelet/container/runtime.go, State."""

    CREATED = 0
    RUNNING = 1
    EXITED = 2


@dataclass(slots=True, eq=False)
class Container:
    """One container of a pod; a restart makes a new one."""

    name: str
    attempt: int
    id: str
    image: str = ""  # as the spec had it when this one was created
    state: RunState = RunState.CREATED
    started_s: int = 0
    begun_ns: int = 0  # the very instant, of which its command finds the files; 0 if unknown
    last_begun_ns: int = 0  # of the container before
    term_ns: int = 0  # when SIGTERM came first; 0: it did not yet
    exit_ns: int = NEVER  # when it ends; once exited, when it did
    exit_code: int = 0
    reason: str = ""
    message: str = ""  # its last words
    finished_s: int = 0
    last: TerminatedState | None = None  # the container before this one
    usage: ContainerUsage | None = None  # its curves while it runs
    spent: Spent = NOTHING_SPENT  # by those of this name before it; by it, too, once it ended

    def spent_at(self, now_ns: int, start_ns: int) -> Spent:
        """Return what the containers of this name have used up at an instant."""
        if self.usage is None:
            return self.spent
        return self.spent.plus(spent(self.usage, min(now_ns, self.exit_ns) - start_ns))

    def end(self, at_ns: int, exit_code: int, reason: str = "") -> None:
        """Plan its end; its reason is the usual one of the code unless another is given.

        Source: pkg/kubelet/kuberuntime/kuberuntime_container.go, of the terminated state.
        """
        self.exit_ns = at_ns
        self.exit_code = exit_code
        self.reason = reason or ("Error" if exit_code else "Completed")

    def oom_kill(self, at_ns: int) -> None:
        """Let the kernel kill it at an instant, for want of memory."""
        self.end(at_ns, OOM_EXIT_CODE, OOM_REASON)

    def terminated(self) -> TerminatedState:
        """Return the state that the API shows of an exited container."""
        assert self.state is RunState.EXITED, self.name
        return TerminatedState(
            self.exit_code, self.reason, self.message, self.started_s, self.finished_s, self.id
        )


class SandboxState(enum.IntEnum):
    """Whether it is ready, and whether its address is free again."""

    READY = 0
    HELD = 1  # not ready, and its network could not be taken down
    STOPPED = 2


@dataclass(slots=True, eq=False)
class Sandbox:
    """A pod in the runtime. `containers` has the latest of each name, oldest first."""

    ips: str  # v4 before v6, as containerd has them; see fleet.k8s.addresses
    state: SandboxState = SandboxState.READY
    attempts: dict[str, int] | None = None  # of containers that were removed
    containers: tuple[Container, ...] = ()
    older: tuple[Container, ...] = ()  # of a sandbox before this one

    @property
    def ready(self) -> bool:
        """Return whether containers can run in it."""
        return self.state is SandboxState.READY

    @property
    def holds_address(self) -> bool:
        """Return whether its address is not free yet."""
        return self.state is not SandboxState.STOPPED

    def find(self, name: str) -> Container | None:
        """Return the latest container of a name."""
        for container in self.containers:
            if container.name == name:
                return container
        return None

    def has_begun(self, specs: tuple[ContainerSpec, ...]) -> bool:
        """Return whether one was made in this sandbox. Source: HasAnyActiveRegularContainerStarted.

        Of a sandbox that is not ready no container counts: GetPodStatus, activePodSandboxID.
        """
        found = (self.find(spec.name) for spec in specs)
        return self.ready and any(each and each not in self.older for each in found)

    def is_running(self) -> bool:
        """Return whether any container runs."""
        return any(each.state is RunState.RUNNING for each in self.containers)

    def next_exit_ns(self) -> int:
        """Return when the next running container ends, NEVER when none does."""
        return min(
            (each.exit_ns for each in self.containers if each.state is RunState.RUNNING),
            default=NEVER,
        )


def adopted(status: ContainerStatus, spec: ContainerSpec | None, wall_offset_ns: int) -> Container:
    """Rebuild a container from its status, which has the runtime's name of its image."""
    image = status.image
    if spec is not None and full_name(spec.image) in (image, status.image_id):
        image = spec.image
    container = Container(status.name, status.restart_count, status.container_id, image)
    container.last = status.last_state
    state = status.state
    if not isinstance(state, (RunningState, TerminatedState)):
        state = status.last_state or TerminatedState(0, "", "", 0, 0, status.container_id)
        container.last = None
    container.started_s = state.started_s
    if isinstance(state, RunningState):
        container.state = RunState.RUNNING
        return container
    container.state = RunState.EXITED
    container.exit_code = state.exit_code
    container.reason = state.reason
    container.finished_s = state.finished_s
    container.exit_ns = state.finished_s * NS_PER_S - wall_offset_ns
    return container


def last_words(spec: ContainerSpec, run: Run, declared: str, exit_code: int, ran_ns: int) -> str:
    """Return the termination message of a container that ran for a while.

    Source: kuberuntime_container.go, getTerminationMessage, readLastStringFromContainerLogs.
    """
    life = spec.life
    message = declared or run.text(life.message_path, ran_ns)
    if not message and life.message_from_logs and exit_code:
        lines = run.text("", ran_ns).splitlines(keepends=True)[-MESSAGE_LINES_MAX:]
        return "".join(lines)[-MESSAGE_LOG_MAX:]
    return message[-MESSAGE_MAX:]


def container_id(uid: PodUid, name: str, attempt: int) -> str:
    """Return an id as containerd's: 64 hex digits, the same for the same start."""
    digest = hashlib.blake2b(f"{uid}/{name}/{attempt}".encode(), digest_size=32)
    return ID_PREFIX + digest.hexdigest()


@lru_cache(maxsize=4096)
def full_name(image: str) -> str:
    """Return how containerd spells an image: registry, library and tag written out."""
    found = parse_image(image)
    return image if found.error else found.full_name


def image_name(image: str) -> str:
    """Return how containerd shows the image of a container: by its tag, else by its ID.

    Source: internal/cri/server/container_status.go, ContainerStatus.
    """
    name = full_name(image)
    return f"sha256:{hashlib.sha256(name.encode()).hexdigest()}" if "@" in name else name


@lru_cache(maxsize=4096)
def shown_image(image: str) -> tuple[str, str]:
    """Return the image and the imageID of a container, the same on every node."""
    return image_name(image), digest_name(full_name(image))


@dataclass(slots=True, eq=False)
class BackOff:
    """How long what failed must wait: 10 s, doubling to 300 s or what is configured.

    An entry is (delay, time of the last bump, why); one that saw no failure for 600 s starts again.
    Source: flowcontrol/backoff.go, Next, IsInBackOffSince; kuberuntime_manager.go, doBackOff.
    """

    _entries: dict[tuple[PodUid, str], tuple[int, int, str]] = field(default_factory=dict)

    def wait_ns(self, uid: PodUid, name: str, finished_ns: int, now_ns: int) -> int:
        """Return the whole delay that is still being waited for, 0 when it may start now."""
        delay_ns, bumped_ns, _ = self._entries.get((uid, name), (0, 0, ""))
        if finished_ns - bumped_ns > BACKOFF_FORGET_NS:
            return 0
        return delay_ns if now_ns - finished_ns < delay_ns else 0

    def reason(self, uid: PodUid, name: str, now_ns: int) -> str:
        """Return why to wait since the last bump, "" if it is over: IsInBackOffSinceUpdate."""
        delay_ns, bumped_ns, why = self._entries.get((uid, name), (0, 0, ""))
        return why if now_ns - bumped_ns < delay_ns else ""

    def next(
        self, uid: PodUid, name: str, finished_ns: int, now_ns: int, max_ns: int, why: str = ""
    ) -> None:
        """Count one more start after an exit; `max_ns` is maxContainerRestartPeriod."""
        entry = self._entries.get((uid, name))
        if entry is None or finished_ns - entry[1] > BACKOFF_FORGET_NS:
            delay_ns = min(BACKOFF_FIRST_NS, max_ns)
        else:
            delay_ns = min(entry[0] * 2, max_ns)
        self._entries[uid, name] = (delay_ns, now_ns, why)

    def forget(self, uid: PodUid) -> None:
        """Drop the entries of a pod."""
        for key in [key for key in self._entries if key[0] == uid]:
            del self._entries[key]
