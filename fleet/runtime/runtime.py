"""The simulated container runtime of one node: sandboxes, containers, pod addresses.

A container that exits by itself knows when it will; nothing ticks. `advance` moves a pod to an
instant, and what would be seen there is what a CRI would answer. Times of the API (`_s`) are wall
seconds, stamped when they happen; decisions use monotonic nanoseconds.

Source: pkg/kubelet/kuberuntime/kuberuntime_manager.go, kuberuntime_container.go;
k8s.io/client-go/util/flowcontrol/backoff.go.
Differs: the last two containers of a name are kept, as the kubelet's garbage collector does.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping

from fleet.clock import NS_PER_MS, NS_PER_S, Draws
from fleet.k8s.pods import ContainerSpec, Pod, PodUid, VolumeSpec
from fleet.k8s.well_known import START_ERROR
from fleet.profile.container_behavior import Stop
from fleet.profile.machine import real_path
from fleet.profile.pod_behavior import USUAL_RUN_TIMES, PodBehavior, RunTimes
from fleet.runtime.container_log import Lines, log_lines
from fleet.runtime.container_usage import (
    NOTHING_SPENT,
    ContainerUsage,
    container_usage,
    oom_kill_ns,
)
from fleet.runtime.containers import (
    MESSAGES_MAX,
    NEVER,
    Container,
    RunState,
    Sandbox,
    SandboxState,
    adopted,
    container_id,
    last_words,
)
from fleet.runtime.files import DIRECTORY, HOST, NodeFiles, layer_of, writer_of
from fleet.runtime.host_paths import OR_CREATE, HostPaths
from fleet.runtime.pod_addresses import no_address, pool_of, set_up_failed
from fleet.runtime.program import (
    NO_SOURCES,
    TERM_EXIT_CODE,
    End,
    Process,
    Program,
    Run,
    Sources,
    heeds_term,
    is_killed_by_term,
    natural_end,
    term_exit_code,
)
from fleet.runtime.programs import program_of, record

STOP_MIN_NS = 20 * NS_PER_MS  # a container that heeds SIGTERM is gone within 20 to 50 ms
STOP_SPREAD_NS = 30 * NS_PER_MS
KILLED_EXIT_CODE = 137
START_EXIT_CODE = 128
OVER_BUDGET = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
    "runc create failed: unable to start container process: error during container init: "
    "the command costs more than fleet spends on a container: %s"
)
"""containerd's words around what a machine would say: it would freeze, or kill the process."""
UNKNOWN_EXIT_CODE = 255
UNKNOWN_REASON = "Unknown"
_STREAM_LOG = 0x106
_STREAM_RANDOM = 0x9A4D
_STREAM_OUTCOME = 0x0C0E
_STREAM_AFTER = 0xAF7E
_STREAM_START = 0x57A7
_STREAM_STOP = 0x5709
_STREAM_SANDBOX = 0x5A4D


class Runtime:
    """All sandboxes of one node."""

    __slots__ = (
        *("_draws", "_files", "_host_ips", "_node", "_pool", "_run_times"),
        *("_sandboxes", "spent"),
    )

    def __init__(
        self,
        node: int,
        host_ips: str,
        pod_cidrs: str,
        draws: Draws,
        run_times: RunTimes = USUAL_RUN_TIMES,
    ) -> None:
        self._node = node
        self._host_ips = host_ips
        self._draws = draws
        self._run_times = run_times
        self._sandboxes: dict[PodUid, Sandbox] = {}
        self._pool = pool_of(pod_cidrs)
        self._files: NodeFiles | None = None  # made when a script needs it
        self.spent = NOTHING_SPENT  # by containers that were removed

    def use_cidrs(self, pod_cidrs: str) -> None:
        """Give addresses out of other ranges from now on."""
        if pod_cidrs != self._pool.cidrs:
            self._pool = pool_of(pod_cidrs)
            for sandbox in self._sandboxes.values():
                if sandbox.holds_address:
                    self._pool.claim(sandbox.ips)

    def sandbox(self, uid: PodUid) -> Sandbox | None:
        """Return the sandbox of a pod."""
        return self._sandboxes.get(uid)

    def __iter__(self) -> Iterator[tuple[PodUid, Sandbox]]:
        return iter(self._sandboxes.items())

    def sandbox_delay_ns(self, pod: Pod, behavior: PodBehavior) -> int:
        """Return how long creating the sandbox of a pod takes."""
        return behavior.sandbox_delay.sample(self.uniform(_STREAM_SANDBOX, pod.uid, "", 0))

    def start_delay_ns(self, pod: Pod, spec: ContainerSpec, behavior: PodBehavior) -> int:
        """Return how long creating and starting the next container takes."""
        attempt = self.attempt(pod, spec)
        u = self.uniform(_STREAM_START, pod.uid, spec.name, attempt)
        return behavior.container(spec.name).start_delay.sample(u)

    def attempt(self, pod: Pod, spec: ContainerSpec) -> int:
        """Return the number of the next container of a name, from 0."""
        sandbox = self._sandboxes.get(pod.uid)
        if sandbox is None:
            return 0
        before = sandbox.find(spec.name)
        if before is None:
            return (sandbox.attempts or {}).get(spec.name, -1) + 1
        return before.attempt + 1

    def make_sandbox(self, pod: Pod, network_error: str, now_ns: int) -> str:
        """Create the sandbox of a pod, or another one; return why that cannot be, else ""."""
        if network_error and not pod.spec.host_network:
            return f"{set_up_failed(pod.uid, now_ns)}: {network_error}"
        is_new = pod.uid not in self._sandboxes
        if self.create_sandbox(pod) is None:
            return self.address_error(pod.uid, now_ns)
        if not is_new and pod.spec.init_containers:
            self._purge_init_containers(pod)
        return ""

    def _purge_init_containers(self, pod: Pod) -> None:
        """Remove them, but not their counts: a new sandbox begins with the first one.

        Source: kuberuntime_container.go, purgeInitContainers.
        """
        sandbox = self._sandboxes[pod.uid]
        names = {spec.name for spec in pod.spec.init_containers}
        gone = {each.name: each.attempt for each in sandbox.containers if each.name in names}
        sandbox.containers = tuple(each for each in sandbox.containers if each.name not in names)
        sandbox.attempts = {**(sandbox.attempts or {}), **gone}

    def create_sandbox(self, pod: Pod) -> Sandbox | None:
        """Create the sandbox of a pod, or another one; None when no address is free."""
        ips = self._host_ips if pod.spec.host_network else self._pool.take()
        if not ips:
            return None
        old, sandbox = self._sandboxes.pop(pod.uid, None), Sandbox(ips)
        if old is not None:
            sandbox.containers = sandbox.older = old.containers
            sandbox.attempts = old.attempts
            if old.holds_address:
                self._pool.free(old.ips)
        self._sandboxes[pod.uid] = sandbox
        return sandbox

    def address_error(self, uid: PodUid, now_ns: int) -> str:
        """Return how the runtime says that no address is free."""
        return no_address(uid, now_ns, self._pool.shortage)

    def start_container(
        self,
        pod: Pod,
        spec: ContainerSpec,
        behavior: PodBehavior,
        now_ns: int,
        wall_s: int,
        sources: Sources = NO_SOURCES,
    ) -> Container:
        """Create and start a container; it runs until its behaviour ends it.

        One whose command is over its budget has exited at once, as one that cannot be started.
        """
        container = self._create_container(pod, spec)
        container.state = RunState.RUNNING
        container.started_s = wall_s
        container.usage = _usage(spec, behavior)
        error = self._plan_exit(pod, spec, container, behavior, now_ns, sources)
        if error:
            container.usage = None
            container.started_s = 0
            _fail(container, OVER_BUDGET % error, now_ns, wall_s)
        return container

    def fail_container(
        self, pod: Pod, spec: ContainerSpec, message: str, now_ns: int, wall_s: int
    ) -> Container:
        """Create a container that cannot be started, as containerd shows one: it has exited."""
        container = self._create_container(pod, spec)
        _fail(container, message, now_ns, wall_s)
        return container

    def _create_container(self, pod: Pod, spec: ContainerSpec) -> Container:
        sandbox = self._sandboxes[pod.uid]
        attempt = self.attempt(pod, spec)
        made = container_id(pod.uid, spec.name, attempt)
        container = Container(spec.name, attempt, made, spec.image)
        before = sandbox.find(spec.name)
        if before is not None:
            container.last = before.terminated()
            container.last_begun_ns = before.begun_ns
            container.spent = before.spent
        sandbox.containers = (
            *(each for each in sandbox.containers if each is not before),
            container,
        )
        return container

    def remove_containers(self, pod: Pod) -> None:
        """Remove what a pod has run, but not the count: the logs are kept.

        Ephemeral containers stay. Source: kuberuntime_manager.go, getContainersToReset.
        """
        sandbox = self._sandboxes[pod.uid]
        kept = {spec.name for spec in pod.spec.ephemeral_containers}
        removed = [each for each in sandbox.containers if each.name not in kept]
        self._count_spent(removed)
        attempts = {each.name: each.attempt for each in removed}
        sandbox.attempts = {**(sandbox.attempts or {}), **attempts}
        sandbox.containers = tuple(each for each in sandbox.containers if each.name in kept)

    def advance(self, uid: PodUid, now_ns: int, wall_offset_ns: int) -> None:
        """Let the containers of a pod end whose time has come."""
        for container in self._sandboxes[uid].containers:
            if container.state is RunState.RUNNING and container.exit_ns <= now_ns:
                container.state = RunState.EXITED
                container.finished_s = (container.exit_ns + wall_offset_ns) // NS_PER_S
                start_ns = container.started_s * NS_PER_S - wall_offset_ns
                container.spent = container.spent_at(container.exit_ns, start_ns)
                container.usage = None

    def stop_container(
        self,
        pod: Pod,
        container: Container,
        behavior: PodBehavior,
        at_ns: int,
        grace_ns: int,
        wall_offset_ns: int,
    ) -> int:
        """Send SIGTERM at an instant, and SIGKILL a grace period later; return when it ends.

        What ends earlier by itself is left alone, and a second call can only end it earlier.
        """
        life = behavior.container(container.name).life
        before_ns = container.exit_ns
        spec = pod.find(container.name)
        start_ns = container.begun_ns or container.started_s * NS_PER_S - wall_offset_ns
        if spec is not None:
            container.term_ns = container.term_ns or at_ns
            end = self._end_on_term(pod, spec, container, life.stop, at_ns, start_ns)
            if end is not None and start_ns + end.after_ns < container.exit_ns:
                container.end(start_ns + end.after_ns, end.exit_code)
        if at_ns + grace_ns < container.exit_ns:
            container.end(at_ns + grace_ns, KILLED_EXIT_CODE)
        if container.exit_ns != before_ns and spec is not None:
            process = self.process(pod, spec, container, start_ns)
            run = program_of(pod, spec).run(process, container.term_ns - start_ns)
            self._note_end(pod, spec, container, run, start_ns, life.termination_message)
        return container.exit_ns

    def _note_end(
        self, pod: Pod, spec: ContainerSpec, container: Container, run: Run, at_ns: int, said: str
    ) -> None:
        """Note what a container will have said; undo what it would have written later.

        Source: status_manager.go, normalizeStatus: the containers of a pod share the room.
        """
        ran_ns = container.exit_ns - at_ns
        message = last_words(spec, run, said, container.exit_code, ran_ns)
        container.message = message[: MESSAGES_MAX // max(len(pod.spec.all_containers), 1)]
        if self._files is not None:
            self._files.undo(layer_of(pod.uid, spec.name), container.exit_ns)

    def _end_on_term(
        self,
        pod: Pod,
        spec: ContainerSpec,
        container: Container,
        stop: Stop,
        at_ns: int,
        start_ns: int,
    ) -> End | None:
        """Return how SIGTERM at an instant ends a container; None: only SIGKILL does."""
        if stop.ignored:
            return None
        u = self.uniform(_STREAM_STOP, pod.uid, container.name, container.attempt)
        takes_ns = STOP_MIN_NS + int(STOP_SPREAD_NS * u)
        if stop.delay is not None:
            takes_ns = stop.delay.sample(u)
        program = program_of(pod, spec)
        code = term_exit_code(pod, spec, program) if stop.exit_code is None else stop.exit_code
        heeded = End(at_ns + takes_ns - start_ns, code)
        if stop.delay is not None or stop.exit_code is not None:
            return heeded
        after_ns = max(container.term_ns - start_ns, 0)
        process = self.process(pod, spec, container, start_ns)
        run = program.run(process)
        if run.traps:
            run = program.run(process, after_ns)
            if run.run_ns is not None and run.run_ns >= after_ns:
                return End(max(run.run_ns, at_ns - start_ns), run.exit_code)
        if heeds_term(pod, spec, program, run, after_ns):
            return heeded
        is_killed = is_killed_by_term(pod, run)
        return heeded._replace(exit_code=TERM_EXIT_CODE) if is_killed else None

    def stop_sandbox(self, uid: PodUid) -> None:
        """Stop the sandbox; its address is free again."""
        sandbox = self._sandboxes[uid]
        if sandbox.holds_address:
            self._pool.free(sandbox.ips)
        sandbox.state = SandboxState.STOPPED

    def hold_sandbox(self, uid: PodUid) -> None:
        """Stop the sandbox, but not its network: the address is not free again."""
        self._sandboxes[uid].state = SandboxState.HELD

    def kill_all(self, now_ns: int) -> None:
        """Let the process of each container that runs be killed; what sees it is a relist."""
        for _, sandbox in self:
            for container in sandbox.containers:
                if container.state is RunState.RUNNING and container.exit_ns > now_ns:
                    container.end(now_ns, KILLED_EXIT_CODE)

    def boot(self, down_ns: int, now_ns: int, wall_offset_ns: int) -> None:
        """Start on a machine that had lost its power at an instant: nothing runs any more.

        Source: containerd, internal/cri/server/restart.go, loadContainer, loadSandbox: what it
        finds without a process has ended now, with 255 and Unknown.
        """
        for uid, sandbox in self:
            self.advance(uid, down_ns, wall_offset_ns)
            for container in sandbox.containers:
                if container.state is RunState.RUNNING:
                    container.end(now_ns, UNKNOWN_EXIT_CODE, UNKNOWN_REASON)
                    container.message = ""
            self.advance(uid, now_ns, wall_offset_ns)
            self.stop_sandbox(uid)

    def remove(self, uid: PodUid) -> None:
        """Forget a pod."""
        if self._files is not None:
            self._files.forget(uid)
        sandbox = self._sandboxes.pop(uid, None)
        if sandbox is not None:
            self._count_spent(sandbox.containers)
            if sandbox.holds_address:
                self._pool.free(sandbox.ips)

    def _count_spent(self, containers: Iterable[Container]) -> None:
        """Keep what ended containers used up that are forgotten: a node's counters never fall."""
        for container in containers:
            self.spent = self.spent.plus(container.spent)

    def adopt(self, pod: Pod, behavior: PodBehavior, now_ns: int, wall_offset_ns: int) -> bool:
        """Find the containers of a pod that a kubelet before us started; False if there are none.

        Differs: a real runtime outlives the kubelet, and so does ours when one kubelet restarts;
        after a restart of fleet it is rebuilt from the statuses.
        """
        survivor = self._sandboxes.get(pod.uid)
        if survivor is not None:
            return bool(survivor.containers)
        status = pod.status
        known = (*status.init_containers, *status.containers, *status.ephemeral_containers)
        found = [each for each in known if each.container_id]
        if not found:
            return False
        self._pool.claim(status.pod_ips)
        sandbox = self._sandboxes[pod.uid] = Sandbox(status.pod_ips)
        specs = {spec.name: spec for spec in pod.spec.all_containers}
        containers = []
        for each in found:
            container = adopted(each, specs.get(each.name), wall_offset_ns)
            containers.append(container)
            if each.name in specs:
                container.usage = _usage(specs[each.name], behavior)
            if container.state is RunState.RUNNING and each.name in specs:
                started_ns = container.started_s * NS_PER_S - wall_offset_ns
                self._plan_exit(pod, specs[each.name], container, behavior, started_ns)
                container.exit_ns = max(container.exit_ns, now_ns)
        sandbox.containers = tuple(containers)
        if not sandbox.is_running() and status.phase in {"Succeeded", "Failed"}:
            self.stop_sandbox(pod.uid)
        return True

    @property
    def files(self) -> NodeFiles:
        """The files of the node, made on first use."""
        if self._files is None:
            self._files = NodeFiles()
        return self._files

    @property
    def has_files(self) -> bool:
        """Whether a file is left that somebody wrote; those of hosts and claims outlive pods."""
        return self._files is not None and bool(self._files.changes)

    def set_up_host_path(
        self, volume: VolumeSpec, machine: Mapping[str, str], now_ns: int, *, names_type: bool
    ) -> str:
        """Look at the path of a hostPath volume, and make it if the volume may; return an error.

        `machine` has what the node has from its profile.
        """
        path, kind = volume.host_path, volume.host_type
        host = HostPaths(self._files, machine, now_ns)
        error = host.problem(path, kind, names_type=names_type)
        is_made = not kind or kind.endswith(OR_CREATE)
        if is_made and not error and not host.type_of(path):
            text = "" if kind.startswith("File") else DIRECTORY
            self.files.write(HOST, real_path(path), text, now_ns, "kubelet")
        return error

    def replan(
        self,
        pod: Pod,
        container: Container,
        behavior: PodBehavior,
        now_ns: int,
        sources: Sources = NO_SOURCES,
    ) -> bool:
        """Have a container's script see what somebody else wrote; tell whether its end moves."""
        spec = pod.find(container.name)
        declared = behavior.container(container.name).outcomes
        if spec is None or declared or container.exit_ns <= now_ns:
            return False
        program = program_of(pod, spec)
        if not program.reads_files:
            return False
        start_ns = container.begun_ns
        process = self.process(pod, spec, container, start_ns, sources)
        self.files.undo(layer_of(pod.uid, spec.name), now_ns)
        run = program.run(process)
        if run.error:
            return False
        self._record(process, run)
        end = self._natural_end(process, program, run)
        end_ns = NEVER if end is None else start_ns + end.after_ns
        if end_ns == container.exit_ns or end_ns < now_ns:
            return False
        container.end(end_ns, 0 if end is None else end.exit_code)
        return True

    def _natural_end(self, process: Process, program: Program, run: Run) -> End | None:
        pod, spec = process.pod, process.spec
        u = self.uniform(_STREAM_AFTER, pod.uid, spec.name, process.attempt)
        return natural_end(pod, spec, program, run, self._run_times, u)

    def _record(self, process: Process, run: Run) -> None:
        """Have others see the files that a container's own program changes, or will."""
        if run.changes:
            process = process._replace(files=self.files)
            record(process, run.changes, writer_of(layer_of(process.pod.uid, process.spec.name)))

    def process(
        self,
        pod: Pod,
        spec: ContainerSpec,
        container: Container,
        start_ns: int,
        sources: Sources = NO_SOURCES,
    ) -> Process:
        """Return the process that a container runs since an instant."""
        wall_ns = container.started_s * NS_PER_S
        return self.process_at(pod, spec, container.attempt, start_ns, wall_ns, sources)

    def log(
        self,
        pod: Pod,
        spec: ContainerSpec,
        behavior: PodBehavior,
        attempt: int,
        started_s: int,
        start_ns: int,
        sources: Sources = NO_SOURCES,
    ) -> Lines:
        """Return the lines of one run of a container, of which it found the files at an instant."""
        sandbox = self._sandboxes.get(pod.uid)
        container = None if sandbox is None else sandbox.find(spec.name)
        term_ns: int | None = None
        if container is not None and container.attempt == attempt and container.term_ns:
            term_ns = container.term_ns - start_ns
        process = self.process_at(pod, spec, attempt, start_ns, started_s * NS_PER_S, sources)
        seed = int(self.uniform(_STREAM_LOG, pod.uid, spec.name, attempt) * 2**53)
        return log_lines(process, behavior, seed, term_ns)

    def process_at(
        self,
        pod: Pod,
        spec: ContainerSpec,
        attempt: int,
        start_ns: int,
        wall_ns: int,
        sources: Sources = NO_SOURCES,
    ) -> Process:
        """Return a process of a container that starts at an instant."""
        u = self.uniform(_STREAM_RANDOM, pod.uid, spec.name, attempt)
        sandbox = self._sandboxes.get(pod.uid)
        pod_ips = pod.status.pod_ips if sandbox is None else sandbox.ips
        at = (attempt, start_ns, wall_ns)
        return Process(pod, spec, *at, pod_ips, self._host_ips, u, sources, self._files)

    def _plan_exit(
        self,
        pod: Pod,
        spec: ContainerSpec,
        container: Container,
        behavior: PodBehavior,
        started_ns: int,
        sources: Sources = NO_SOURCES,
    ) -> str:
        """Plan when and how a container ends; return why its command cannot be run, else ""."""
        if self._files is not None:
            self._files.changes.pop(layer_of(pod.uid, spec.name), None)
        chosen = behavior.container(spec.name)
        u = self.uniform(_STREAM_OUTCOME, pod.uid, spec.name, container.attempt)
        program = program_of(pod, spec)
        if program.reads_files:
            container.begun_ns = started_ns
        process = self.process(pod, spec, container, started_ns, sources)
        run = program.run(process)
        outcome = chosen.outcome(u, container.attempt)
        if run.error and outcome is None:
            return run.error
        self._record(process, run)
        if outcome is not None:
            u = self.uniform(_STREAM_AFTER, pod.uid, spec.name, container.attempt)
            after_ns = outcome.after.sample(u)
            container.end(started_ns + after_ns, outcome.exit_code, outcome.reason)
        elif (end := self._natural_end(process, program, run)) is not None:
            container.end(started_ns + end.after_ns, end.exit_code)
        oom_ns = oom_kill_ns(spec.resources_json, chosen.usage.memory, started_ns, started_ns)
        if oom_ns < container.exit_ns:
            container.oom_kill(oom_ns)
        if container.exit_ns != NEVER:
            declared = chosen.life.termination_message
            self._note_end(pod, spec, container, run, started_ns, declared)
        return ""

    def uniform(self, stream: int, uid: PodUid, name: str, attempt: int) -> float:
        """Draw for one container: the same after a restart of fleet."""
        key = zlib.crc32(name.encode(), zlib.crc32(uid.encode()))
        return self._draws.uniform(self._node, stream << 32 | key, attempt)


def _fail(container: Container, message: str, now_ns: int, wall_s: int) -> None:
    """Have a container be one that could not be started. Source: containerd shows it as exited."""
    container.state = RunState.EXITED
    container.end(now_ns, START_EXIT_CODE, START_ERROR)
    container.finished_s = wall_s
    container.message = message


def _usage(spec: ContainerSpec, behavior: PodBehavior) -> ContainerUsage:
    return container_usage(spec.resources_json, behavior.container(spec.name).usage)
