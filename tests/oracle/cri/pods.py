"""Sandboxes and containers as CRI has them, played by `fleet.runtime` in real time.

    sandbox:   run --stop, or its last container is gone--> not ready --remove--> forgotten
    container: create --start--> running --its behaviour, or stop--> exited --remove--> forgotten

fleet's runtime has one sandbox of a pod and the last two containers of a name; CRI has all that was
not removed, and gives each its identity.
Source: containerd's CRI plug-in, internal/cri/server.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from fleet.clock import NS_PER_S
from fleet.k8s.pods import ContainerSpec, Pod, PodSpec, PodUid, ScriptSpec, Variable
from fleet.profile.container_behavior import CREATE_ERROR, RUN_ERROR
from fleet.profile.pod_behavior import PodBehavior
from fleet.runtime.containers import NEVER, RunState, SandboxState
from fleet.runtime.pod_addresses import no_runtime
from fleet.runtime.runtime import Runtime
from fleet.wire.api.decode_pod import decode_pod
from oracle.cri.applications import Application, Lookup, application
from oracle.cri.errors import CriError, not_found, printed, unknown
from oracle.cri.images import Images
from oracle.cri.leavings import begin_log, write_leavings
from oracle.cri.machine import Machine
from oracle.cri.messages import message_class
from oracle.cri.records import CriContainer, Message, PodSandbox

CREATED, STARTED, STOPPED, DELETED = range(4)
"""Source: api.proto, ContainerEventType."""
OnEvent = Callable[[str, PodSandbox, int], None]
OnRunning = Callable[[CriContainer, PodSandbox], None]


class Pods:
    """All sandboxes and containers of the node."""

    def __init__(self, machine: Machine, images: Images, look_up: Lookup) -> None:
        self.sandboxes: dict[str, PodSandbox] = {}
        self.containers: dict[str, CriContainer] = {}
        self.on_event: list[OnEvent] = []
        self.on_started: list[OnRunning] = []
        self.on_stopped: list[OnRunning] = []
        self._machine = machine
        self._images = images
        self._look_up = look_up
        self._runtime = Runtime(
            machine.node,
            machine.host_ip,
            machine.pod_cidr,
            machine.draws,
            run_times=machine.model.run_times,
        )
        self._alarm: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        for each in self.containers.values():
            if each.state is RunState.RUNNING:
                self._stopped(each)

    # ---- sandboxes ----

    async def run_sandbox(self, config: Message, handler: str) -> PodSandbox:
        """Create and start a sandbox. Raises CriError when no address is free."""
        pod = await self._pod(config)
        if handler and handler not in {each.name for each in self._machine.model.runtime_handlers}:
            raise printed(no_runtime(handler, pod.uid, self._machine.now_ns()))
        self._images.expect(pod)
        delay_ns = self._runtime.sandbox_delay_ns(pod, self._behavior(pod))
        await asyncio.sleep(delay_ns / NS_PER_S)
        now_ns = self._machine.now_ns()
        self._settle(now_ns)
        sandbox = self._runtime.create_sandbox(pod)
        if sandbox is None:
            raise printed(self._runtime.address_error(pod.uid, now_ns))
        text = f"{pod.uid}/{config.metadata.attempt}/{now_ns}"
        sandbox_id = hashlib.sha256(text.encode()).hexdigest()
        wall_ns = self._machine.wall_ns(now_ns)
        made = PodSandbox(sandbox_id, config, handler, pod, sandbox, wall_ns)
        self.sandboxes[sandbox_id] = made
        self._tell(sandbox_id, made, CREATED)
        self._tell(sandbox_id, made, STARTED)
        return made

    def sandbox(self, sandbox_id: str) -> PodSandbox:
        """Return a sandbox as it is now. Raises CriError if there is none of this ID."""
        self._settle(self._machine.now_ns())
        found = self.sandboxes.get(sandbox_id)
        if found is None:
            raise not_found(f'an error occurred when try to find sandbox "{sandbox_id}": not found')
        return found

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox and all that runs in it; one that is gone is no error."""
        found = self.sandboxes.get(sandbox_id)
        if found is None:
            return
        for each in self.containers_of(found):
            await self._stop(each, 0)
        if found.sandbox.ready and self._is_current(found):
            self._runtime.stop_sandbox(PodUid(found.uid))
        found.sandbox.state = SandboxState.STOPPED
        self._tell(sandbox_id, found, STOPPED)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Forget a sandbox and its containers."""
        await self.stop_sandbox(sandbox_id)
        found = self.sandboxes.get(sandbox_id)
        if found is None:
            return
        for each in list(self.containers_of(found)):
            await self.remove(each.id)
        del self.sandboxes[sandbox_id]
        if not any(each.uid == found.uid for each in self.sandboxes.values()):
            self._runtime.remove(PodUid(found.uid))
        self._tell(sandbox_id, found, DELETED)

    def containers_of(self, sandbox: PodSandbox) -> list[CriContainer]:
        return [each for each in self.containers.values() if each.sandbox_id == sandbox.id]

    # ---- containers ----

    async def create(self, sandbox_id: str, config: Message) -> CriContainer:
        """Create a container. Raises CriError as its behaviour declares."""
        sandbox = self.sandbox(sandbox_id)
        found = await self._application(sandbox, config)
        pod = sandbox.pod if found is None else found.pod
        spec = _spec(config, found)
        behavior = self._behavior(pod)
        image = self._images.find(config.image.image)
        self._images.taken(pod, spec.name)
        if image is None:
            raise not_found(f'failed to resolve image "{config.image.image}": not found')
        delay_ns = self._runtime.start_delay_ns(pod, spec, behavior)
        await asyncio.sleep(delay_ns / NS_PER_S)
        attempt = self._runtime.attempt(pod, spec)
        failure = behavior.container(spec.name).life.failure(attempt)
        if failure is not None and failure.reason == CREATE_ERROR:
            raise unknown(failure.text)
        now_ns = self._machine.now_ns()
        text = f"{pod.uid}/{spec.name}/{config.metadata.attempt}/{now_ns}"
        made = CriContainer(
            id=hashlib.sha256(text.encode()).hexdigest(),
            sandbox_id=sandbox_id,
            config=config,
            pod=pod,
            spec=spec,
            application=found,
            behavior=behavior,
            image_id=image.id,
            image_ref=next((each for each in image.names if "@" in each), image.id),
            image_name=next((each for each in image.names if "@" not in each), image.names[0]),
            created_wall_ns=self._machine.wall_ns(now_ns),
            resources=config.linux.resources,
            log_path=_log_path(sandbox.config.log_directory, config.log_path),
        )
        self.containers[made.id] = made
        self._tell(made.id, sandbox, CREATED)
        return made

    async def start(self, container_id: str) -> None:
        """Start a container that was created. Raises CriError as its behaviour declares."""
        made = self.find(container_id)
        sandbox = self.sandboxes[made.sandbox_id]
        now_ns = self._machine.now_ns()
        self._settle(now_ns)
        wall_ns = self._machine.wall_ns(now_ns)
        wall_s = wall_ns // NS_PER_S
        attempt = self._runtime.attempt(made.pod, made.spec)
        failure = made.declared.life.failure(attempt)
        made.started_wall_ns = wall_ns
        if failure is not None and failure.reason == RUN_ERROR:
            made.start_error = failure.text
            made.container = self._runtime.fail_container(
                made.pod, made.spec, failure.text, now_ns, wall_s
            )
            made.started_wall_ns = 0
            made.finished_wall_ns = wall_ns
            made.is_settled = True
            raise unknown(failure.text)
        made.container = self._runtime.start_container(
            made.pod, made.spec, made.behavior, now_ns, wall_s
        )
        begin_log(made)
        self._tell(container_id, sandbox, STARTED)
        for each in self.on_started:
            each(made, sandbox)
        self._arm()

    def find(self, container_id: str) -> CriContainer:
        """Return a container as it is now. Raises CriError if there is none of this ID."""
        self._settle(self._machine.now_ns())
        found = self.containers.get(container_id)
        if found is None:
            raise not_found(
                f'an error occurred when try to find container "{container_id}": not found'
            )
        return found

    async def stop(self, container_id: str, grace_s: int) -> None:
        """Send SIGTERM, after the grace period SIGKILL; return when it has exited."""
        found = self.containers.get(container_id)
        if found is not None:
            await self._stop(found, grace_s)

    async def _stop(self, found: CriContainer, grace_s: int) -> None:
        now_ns = self._machine.now_ns()
        self._settle(now_ns)
        if found.container is None or found.state is not RunState.RUNNING:
            return
        self._runtime.stop_container(
            found.pod,
            found.container,
            found.behavior,
            now_ns,
            max(grace_s, 0) * NS_PER_S,
            self._machine.wall_offset_ns,
        )
        self._arm()
        await self.ended(found)

    async def ended(self, found: CriContainer) -> None:
        """Wait until a container does not run any more."""
        while found.state is RunState.RUNNING:
            waiter = asyncio.get_running_loop().create_future()
            found.waiters.append(waiter)
            await waiter

    async def remove(self, container_id: str) -> None:
        """Forget a container; one that runs is killed."""
        found = self.containers.get(container_id)
        if found is None:
            return
        await self._stop(found, 0)
        self.containers.pop(container_id, None)
        self._tell(container_id, self.sandboxes[found.sandbox_id], DELETED)

    def update(self, container_id: str, resources: Message) -> None:
        """Take other resources. Raises CriError as the behaviour of the container declares."""
        found = self.find(container_id)
        error = found.declared.life.resize_error
        if error:
            raise unknown(error)
        merged = message_class("LinuxContainerResources")()
        merged.CopyFrom(found.resources)
        merged.MergeFrom(resources)
        found.resources = merged

    # ---- time ----

    def _settle(self, now_ns: int) -> None:
        """Let containers end whose time has come."""
        for each in list(self.containers.values()):
            container = each.container
            if container is None or each.is_settled:
                continue
            if container.state is RunState.RUNNING and container.exit_ns <= now_ns:
                self._runtime.advance(PodUid(each.pod.uid), now_ns, self._machine.wall_offset_ns)
            if container.state is RunState.EXITED:
                self._exited(each)

    def _exited(self, each: CriContainer) -> None:
        container = each.container
        assert container is not None, each.id
        each.is_settled = True
        each.finished_wall_ns = self._machine.wall_ns(container.exit_ns)
        write_leavings(each)
        self._stopped(each)
        self._tell(each.id, self.sandboxes[each.sandbox_id], STOPPED)

    def _stopped(self, each: CriContainer) -> None:
        for told in self.on_stopped:
            told(each, self.sandboxes[each.sandbox_id])
        waiters, each.waiters = each.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _arm(self) -> None:
        """Look again when the next container ends."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        running = (each.container for each in self.containers.values() if not each.is_settled)
        due_ns = min((one.exit_ns for one in running if one is not None), default=NEVER)
        if due_ns < NEVER:
            wait_s = max(due_ns - self._machine.now_ns(), 0) / NS_PER_S
            self._alarm = asyncio.get_running_loop().call_later(wait_s, self._on_alarm)

    def _on_alarm(self) -> None:
        self._settle(self._machine.now_ns())
        self._arm()

    # ---- who they are ----

    def _is_current(self, found: PodSandbox) -> bool:
        return self._runtime.sandbox(PodUid(found.uid)) is found.sandbox

    def _behavior(self, pod: Pod) -> PodBehavior:
        return self._machine.model.behavior_of(pod)

    async def _pod(self, config: Message) -> Pod:
        found = await self._look_up(config.metadata.uid)
        return pod_of_config(config) if found is None else _record(found)

    async def _application(self, sandbox: PodSandbox, config: Message) -> Application | None:
        found = await self._look_up(sandbox.uid)
        return None if found is None else application(found, config.metadata.name)

    def _tell(self, subject: str, sandbox: PodSandbox, kind: int) -> None:
        for each in self.on_event:
            each(subject, sandbox, kind)

    def __iter__(self) -> Iterator[CriContainer]:
        self._settle(self._machine.now_ns())
        return iter(list(self.containers.values()))


def pod_of_config(config: Message) -> Pod:
    """Return what CRI itself says of a pod."""
    metadata = config.metadata
    is_on_host = config.linux.security_context.namespace_options.network == 2  # NODE
    return Pod(
        metadata.namespace,
        metadata.name,
        PodUid(metadata.uid),
        labels=tuple(sorted(config.labels.items())),
        annotations=tuple(sorted(config.annotations.items())),
        spec=PodSpec(host_network=is_on_host),
    )


def _record(found: dict[str, object]) -> Pod:
    return decode_pod({"metadata": found["metadata"], "spec": found["spec"]})


def _log_path(directory: str, name: str) -> str:
    return str(Path(directory, name)) if directory and name else ""


def _spec(config: Message, found: Application | None) -> ContainerSpec:
    """Return a container as its pod has it, with the image and command that CRI asks for."""
    image = config.image.user_specified_image or config.image.image
    command, args = tuple(config.command), tuple(config.args)
    if found is not None:
        script = _script(config, found.spec)
        return found.spec._replace(image=image, command=command, args=args, script=script)
    memory = config.linux.resources.memory_limit_in_bytes
    resources = b'{"limits":{"memory":"%d"}}' % memory if memory else b"{}"
    name = config.metadata.name
    return ContainerSpec(name, image, "IfNotPresent", command, args, "", b"", resources, b"")


def _script(config: Message, spec: ContainerSpec) -> ScriptSpec | None:
    """Return what a command may look at, with the variables as CRI says them."""
    if spec.script is None:
        return None
    known = (Variable(each.key, each.value.decode().replace("$", "$$")) for each in config.envs)
    return spec.script._replace(variables=tuple(known), env_from=())


def user_of(found: CriContainer) -> tuple[int, int, tuple[int, ...]]:
    """Return uid, gid and supplemental groups of a container.

    Source: containerd's toCRIContainerUser.
    """
    context = found.config.linux.security_context
    uid = context.run_as_user.value if context.HasField("run_as_user") else 0
    is_images = found.spec.user.uid is None
    gid = uid if is_images else 0  # as the image's /etc/passwd has it; of any other user nothing
    if context.HasField("run_as_group"):
        gid = context.run_as_group.value
    return uid, gid, tuple(dict.fromkeys((gid, *context.supplemental_groups)))


__all__ = ["CriError", "Pods", "pod_of_config", "user_of"]
