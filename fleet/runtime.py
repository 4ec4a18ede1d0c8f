"""The simulated container runtime of one node: sandboxes, containers, pod addresses.

A container that exits by itself knows when it will; nothing ticks. `advance` moves a pod to an
instant, and what would be seen there is what a CRI would answer. Times of the API (`_s`) are wall
seconds, stamped when they happen; decisions use monotonic nanoseconds.

    CREATED -> RUNNING --exit_ns passes--> EXITED        sandbox: ready --last kill--> not ready

Source: pkg/kubelet/kuberuntime/kuberuntime_manager.go, kuberuntime_container.go;
k8s.io/client-go/util/flowcontrol/backoff.go.
Differs: the last two containers of a name are kept, as the kubelet's garbage collector does.
"""

import enum
import hashlib
import zlib
from collections.abc import Iterator

from fleet.clock import NS_PER_MS, NS_PER_S, Draws
from fleet.container_usage import OOM_EXIT_CODE, OOM_REASON, oom_kill_ns
from fleet.image_reference import digest_name, parse_image
from fleet.objects import (
    ContainerSpec,
    ContainerStatus,
    Pod,
    PodUid,
    RunningState,
    TerminatedState,
)
from fleet.pod_behavior import PodBehavior

NEVER = 1 << 62
BACKOFF_FIRST_NS = 10 * NS_PER_S
BACKOFF_FORGET_NS = 600 * NS_PER_S
STOP_MIN_NS = 20 * NS_PER_MS
"""A container that heeds SIGTERM is gone within 20 to 50 ms."""
STOP_SPREAD_NS = 30 * NS_PER_MS
KILLED_EXIT_CODE = 137
ID_PREFIX = "containerd://"
ADDRESS_FIRST = 2
_STREAM_OUTCOME = 0x0C0E
_STREAM_AFTER = 0xAF7E
_STREAM_START = 0x57A7
_STREAM_STOP = 0x5709
_STREAM_SANDBOX = 0x5A4D


class RunState(enum.IntEnum):
    """Source: pkg/kubelet/container/runtime.go, State."""

    CREATED = 0
    RUNNING = 1
    EXITED = 2


class Container:
    """One container of a pod; a restart makes a new one."""

    __slots__ = (
        "attempt",
        "exit_code",
        "exit_ns",
        "finished_s",
        "id",
        "last",
        "name",
        "reason",
        "started_s",
        "state",
    )

    def __init__(self, name: str, attempt: int, container_id: str) -> None:
        self.name = name
        self.attempt = attempt
        self.id = container_id
        self.state = RunState.CREATED
        self.started_s = 0
        self.exit_ns = NEVER  # when it ends; once exited, when it did
        self.exit_code = 0
        self.reason = ""
        self.finished_s = 0
        self.last: TerminatedState | None = None  # the container before this one

    def oom_kill(self, at_ns: int) -> None:
        """Let the kernel kill it at an instant, for want of memory."""
        self.exit_ns = at_ns
        self.exit_code = OOM_EXIT_CODE
        self.reason = OOM_REASON

    def terminated(self) -> TerminatedState:
        """Return the state that the API shows of an exited container."""
        assert self.state is RunState.EXITED, self.name
        return TerminatedState(
            self.exit_code, self.reason, "", self.started_s, self.finished_s, self.id
        )


class Sandbox:
    """A pod in the runtime. `containers` has the latest of each name, oldest first."""

    __slots__ = ("containers", "ip", "ready")

    def __init__(self, ip: str) -> None:
        self.ip = ip
        self.ready = True
        self.containers: tuple[Container, ...] = ()

    def find(self, name: str) -> Container | None:
        """Return the latest container of a name."""
        for container in self.containers:
            if container.name == name:
                return container
        return None

    def is_running(self) -> bool:
        """Return whether any container runs."""
        return any(each.state is RunState.RUNNING for each in self.containers)

    def next_exit_ns(self) -> int:
        """Return when the next running container ends, NEVER when none does."""
        return min(
            (each.exit_ns for each in self.containers if each.state is RunState.RUNNING),
            default=NEVER,
        )


class AddressPool:
    """The pod addresses of one node, given out in rotation as host-local IPAM does."""

    __slots__ = ("_base", "_last", "_size", "_used", "cidr")

    def __init__(self, cidr: str) -> None:
        self.cidr = cidr
        address, _, bits = cidr.partition("/")
        octets = [int(part) for part in address.split(".")]
        assert len(octets) == 4, cidr
        self._base = int.from_bytes(bytes(octets), "big")
        self._size = 1 << (32 - int(bits))
        self._used = 0
        self._last = ADDRESS_FIRST - 1

    def take(self) -> str:
        """Return a free address, "" when there is none. The last one is the broadcast's."""
        usable = (1 << self._size - 1) - (1 << ADDRESS_FIRST)
        free = usable & ~self._used
        above = free >> self._last + 1 << self._last + 1
        free = above or free
        if not free:
            return ""
        self._last = (free & -free).bit_length() - 1
        self._used |= free & -free
        return ".".join(str(part) for part in (self._base + self._last).to_bytes(4, "big"))

    def claim(self, ip: str) -> None:
        """Mark an address that a pod already has, if it is one of ours."""
        number = self._number(ip)
        if number >= ADDRESS_FIRST:
            self._used |= 1 << number

    def free(self, ip: str) -> None:
        """Return an address to the pool, if it is one of ours."""
        number = self._number(ip)
        if number >= ADDRESS_FIRST:
            self._used &= ~(1 << number)

    def _number(self, ip: str) -> int:
        octets = ip.split(".")
        if len(octets) != 4:
            return -1
        number = int.from_bytes(bytes(int(part) for part in octets), "big") - self._base
        return number if number < self._size else -1


class Runtime:
    """All sandboxes of one node."""

    __slots__ = ("_draws", "_host_ip", "_node", "_pool", "_sandboxes")

    def __init__(self, node: int, host_ip: str, pod_cidr: str, draws: Draws) -> None:
        self._node = node
        self._host_ip = host_ip
        self._draws = draws
        self._sandboxes: dict[PodUid, Sandbox] = {}
        self._pool = AddressPool(pod_cidr)

    def use_cidr(self, pod_cidr: str) -> None:
        """Give addresses out of another range from now on."""
        if pod_cidr != self._pool.cidr:
            self._pool = AddressPool(pod_cidr)

    def sandbox(self, uid: PodUid) -> Sandbox | None:
        """Return the sandbox of a pod."""
        return self._sandboxes.get(uid)

    def __iter__(self) -> Iterator[tuple[PodUid, Sandbox]]:
        return iter(self._sandboxes.items())

    def sandbox_delay_ns(self, pod: Pod, behavior: PodBehavior) -> int:
        """Return how long creating the sandbox of a pod takes."""
        u = self._uniform(_STREAM_SANDBOX, pod.uid, "", 0)
        return behavior.sandbox_delay.sample(u)

    def start_delay_ns(self, pod: Pod, spec: ContainerSpec, behavior: PodBehavior) -> int:
        """Return how long creating and starting the next container takes."""
        attempt = self._next_attempt(pod.uid, spec.name)
        u = self._uniform(_STREAM_START, pod.uid, spec.name, attempt)
        return behavior.container(spec.name).start_delay.sample(u)

    def create_sandbox(self, pod: Pod) -> Sandbox | None:
        """Create the sandbox of a pod, or another one; None when no address is free."""
        old = self._sandboxes.pop(pod.uid, None)
        if pod.host_network:
            sandbox = Sandbox(self._host_ip)
        else:
            ip = self._pool.take()
            if not ip:
                return None
            sandbox = Sandbox(ip)
        if old is not None:
            sandbox.containers = old.containers
        self._sandboxes[pod.uid] = sandbox
        return sandbox

    def start_container(
        self, pod: Pod, spec: ContainerSpec, behavior: PodBehavior, now_ns: int, wall_s: int
    ) -> Container:
        """Create and start a container; it runs until its behaviour ends it."""
        sandbox = self._sandboxes[pod.uid]
        attempt = self._next_attempt(pod.uid, spec.name)
        container = Container(spec.name, attempt, _container_id(pod.uid, spec.name, attempt))
        before = sandbox.find(spec.name)
        if before is not None:
            container.last = before.terminated()
        container.state = RunState.RUNNING
        container.started_s = wall_s
        sandbox.containers = (
            *(each for each in sandbox.containers if each is not before),
            container,
        )
        self._plan_exit(pod, spec, container, behavior, now_ns)
        return container

    def advance(self, uid: PodUid, now_ns: int, wall_offset_ns: int) -> None:
        """Let the containers of a pod end whose time has come."""
        for container in self._sandboxes[uid].containers:
            if container.state is RunState.RUNNING and container.exit_ns <= now_ns:
                container.state = RunState.EXITED
                container.finished_s = (container.exit_ns + wall_offset_ns) // NS_PER_S

    def stop_pod(self, uid: PodUid, order: tuple[str, ...], grace_ns: int, now_ns: int) -> int:
        """Send SIGTERM to what runs; return when the last container will have ended.

        `order` names the sidecars, which end one by one after the others, last started first.
        A shorter grace period only brings the end nearer.
        """
        sandbox = self._sandboxes[uid]
        kill_ns = now_ns + grace_ns
        end_ns = now_ns
        for container in sandbox.containers:
            if container.state is RunState.RUNNING and container.name not in order:
                end_ns = max(end_ns, self._stop(uid, container, now_ns, kill_ns))
        for name in order:
            sidecar = sandbox.find(name)
            if sidecar is not None and sidecar.state is RunState.RUNNING:
                end_ns = self._stop(uid, sidecar, end_ns, kill_ns)
        return end_ns

    def stop_sandbox(self, uid: PodUid) -> None:
        """Stop the sandbox; its address is free again."""
        sandbox = self._sandboxes[uid]
        if sandbox.ready:
            sandbox.ready = False
            self._pool.free(sandbox.ip)

    def remove(self, uid: PodUid) -> None:
        """Forget a pod."""
        sandbox = self._sandboxes.pop(uid, None)
        if sandbox is not None and sandbox.ready:
            self._pool.free(sandbox.ip)

    def adopt(self, pod: Pod, behavior: PodBehavior, now_ns: int, wall_offset_ns: int) -> bool:
        """Find the containers of a pod that a kubelet before us started, as its status has them.

        Differs: a real runtime outlives the kubelet; ours is rebuilt from the API.
        """
        status = pod.status
        known = (*status.init_containers, *status.containers, *status.ephemeral_containers)
        found = [each for each in known if each.container_id]
        if not found:
            return False
        self._pool.claim(status.pod_ip)
        sandbox = self._sandboxes[pod.uid] = Sandbox(status.pod_ip)
        specs = {
            spec.name: spec
            for spec in (*pod.init_containers, *pod.containers, *pod.ephemeral_containers)
        }
        containers = []
        for each in found:
            container = _adopted(each, wall_offset_ns)
            containers.append(container)
            if container.state is RunState.RUNNING and each.name in specs:
                started_ns = container.started_s * NS_PER_S - wall_offset_ns
                self._plan_exit(pod, specs[each.name], container, behavior, started_ns)
                container.exit_ns = max(container.exit_ns, now_ns)
        sandbox.containers = tuple(containers)
        if not sandbox.is_running() and status.phase in {"Succeeded", "Failed"}:
            self.stop_sandbox(pod.uid)
        return True

    def _plan_exit(
        self,
        pod: Pod,
        spec: ContainerSpec,
        container: Container,
        behavior: PodBehavior,
        started_ns: int,
    ) -> None:
        u = self._uniform(_STREAM_OUTCOME, pod.uid, spec.name, container.attempt)
        outcome = behavior.outcome(spec.name, spec.command, spec.args, u)
        if outcome is not None:
            u = self._uniform(_STREAM_AFTER, pod.uid, spec.name, container.attempt)
            container.exit_ns = started_ns + outcome.after.sample(u)
            container.exit_code = outcome.exit_code
            container.reason = outcome.reason_shown
        memory = behavior.container(spec.name).usage.memory
        oom_ns = oom_kill_ns(spec.resources_json, memory, started_ns)
        if oom_ns < container.exit_ns:
            container.oom_kill(oom_ns)

    def _stop(self, uid: PodUid, container: Container, at_ns: int, kill_ns: int) -> int:
        """Plan the end of one container that was asked to stop, and return it."""
        u = self._uniform(_STREAM_STOP, uid, container.name, container.attempt)
        end_ns = at_ns + STOP_MIN_NS + int(STOP_SPREAD_NS * u)
        if end_ns < container.exit_ns:
            container.exit_ns = end_ns
            container.exit_code = 0
            container.reason = "Completed"
        if kill_ns < container.exit_ns:
            container.exit_ns = kill_ns
            container.exit_code = KILLED_EXIT_CODE
            container.reason = "Error"
        return container.exit_ns

    def _next_attempt(self, uid: PodUid, name: str) -> int:
        sandbox = self._sandboxes.get(uid)
        before = sandbox.find(name) if sandbox is not None else None
        return before.attempt + 1 if before is not None else 0

    def _uniform(self, stream: int, uid: PodUid, name: str, attempt: int) -> float:
        """Draw for one container: the same after a restart of fleet."""
        key = zlib.crc32(name.encode(), zlib.crc32(uid.encode()))
        return self._draws.uniform(self._node, stream << 32 | key, attempt)


class BackOff:
    """How long a failing container must wait: 10 s, doubling to 300 s or what is configured.

    An entry is (delay, time of the last bump); one that saw no exit for 600 s starts anew.
    Source: flowcontrol/backoff.go, Next, IsInBackOffSince; kuberuntime_manager.go, doBackOff.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[tuple[PodUid, str], tuple[int, int]] = {}

    def wait_ns(self, uid: PodUid, name: str, finished_ns: int, now_ns: int) -> int:
        """Return the whole delay that is still being waited for, 0 when it may start now."""
        delay_ns, bumped_ns = self._entries.get((uid, name), (0, 0))
        if finished_ns - bumped_ns > BACKOFF_FORGET_NS:
            return 0
        return delay_ns if now_ns - finished_ns < delay_ns else 0

    def next(self, uid: PodUid, name: str, finished_ns: int, now_ns: int, max_ns: int) -> None:
        """Count one more start after an exit; `max_ns` is maxContainerRestartPeriod."""
        entry = self._entries.get((uid, name))
        if entry is None or finished_ns - entry[1] > BACKOFF_FORGET_NS:
            delay_ns = min(BACKOFF_FIRST_NS, max_ns)
        else:
            delay_ns = min(entry[0] * 2, max_ns)
        self._entries[uid, name] = (delay_ns, now_ns)

    def forget(self, uid: PodUid) -> None:
        """Drop the entries of a pod."""
        for key in [key for key in self._entries if key[0] == uid]:
            del self._entries[key]


def _adopted(status: ContainerStatus, wall_offset_ns: int) -> Container:
    """Rebuild a container from its status."""
    container = Container(status.name, status.restart_count, status.container_id)
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


def _container_id(uid: PodUid, name: str, attempt: int) -> str:
    """Return an id as containerd's: 64 hex digits, the same for the same start."""
    digest = hashlib.blake2b(f"{uid}/{name}/{attempt}".encode(), digest_size=32)
    return ID_PREFIX + digest.hexdigest()


def image_name(image: str) -> str:
    """Return how containerd spells an image: registry, library and tag written out."""
    found = parse_image(image)
    return image if found.error else found.full_name


def image_id(image: str) -> str:
    """Return the digest reference of an image, the same on every node."""
    return digest_name(image_name(image))
