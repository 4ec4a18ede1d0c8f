"""The RuntimeService of CRI. Source: api.proto; containerd's CRI plug-in."""

import asyncio
from collections.abc import AsyncIterator

from fleet.profile.machine import OutageKind
from fleet.runtime.containers import RunState
from oracle.cri.exec_sync import exec_sync
from oracle.cri.machine import Machine
from oracle.cri.messages import message_class, value
from oracle.cri.outages import Outages
from oracle.cri.pods import Pods, user_of
from oracle.cri.records import CriContainer, Message, PodSandbox
from oracle.cri.stats import container_stats, pod_sandbox_stats

API_VERSION = "v1"
CONDITIONS = {
    "RuntimeReady": OutageKind.RUNTIME_NOT_READY,
    "NetworkReady": OutageKind.NETWORK_NOT_READY,
}
CRI_VERSION = "0.1.0"
"""Source: kuberuntime, kubeRuntimeAPIVersion."""


class RuntimeService:
    """One method for each of CRI's; those that are missing answer UNIMPLEMENTED."""

    def __init__(self, machine: Machine, pods: Pods, outages: Outages) -> None:
        self._machine = machine
        self._pods = pods
        self._outages = outages
        self._watchers: set[asyncio.Queue[Message]] = set()
        pods.on_event.append(self._on_event)

    async def version(self, _request: Message) -> Message:
        runtime, _, version = self._machine.model.node_info["containerRuntimeVersion"].partition(
            "://"
        )
        return message_class("VersionResponse")(
            version=CRI_VERSION,
            runtime_name=runtime,
            runtime_version=version,
            runtime_api_version=API_VERSION,
        )

    async def status(self, _request: Message) -> Message:
        model = self._machine.model
        condition = message_class("RuntimeCondition")
        answer = message_class("StatusResponse")()
        for name, kind in CONDITIONS.items():
            found = self._outages.active(kind)
            why = (
                {} if found is None else dict(zip(("reason", "message"), found.shown, strict=True))
            )
            made = condition(type=name, status=found is None, **why)
            answer.status.conditions.append(made)
        for each in model.runtime_handlers:
            handler = answer.runtime_handlers.add(name=each.name)
            handler.features.recursive_read_only_mounts = each.recursive_read_only_mounts
            handler.features.user_namespaces = each.user_namespaces
        answer.features.supplemental_groups_policy = model.supplemental_groups_policy
        return answer

    async def runtime_config(self, _request: Message) -> Message:
        answer = message_class("RuntimeConfigResponse")()
        answer.linux.cgroup_driver = value("CGROUPFS")
        return answer

    async def update_runtime_config(self, _request: Message) -> Message:
        """Take the node's podCIDR. Differs: addresses stay those of the loopback interface."""
        return message_class("UpdateRuntimeConfigResponse")()

    # ---- sandboxes ----

    async def run_pod_sandbox(self, request: Message) -> Message:
        made = await self._pods.run_sandbox(request.config, request.runtime_handler)
        return message_class("RunPodSandboxResponse")(pod_sandbox_id=made.id)

    async def stop_pod_sandbox(self, request: Message) -> Message:
        await self._pods.stop_sandbox(request.pod_sandbox_id)
        return message_class("StopPodSandboxResponse")()

    async def remove_pod_sandbox(self, request: Message) -> Message:
        await self._pods.remove_sandbox(request.pod_sandbox_id)
        return message_class("RemovePodSandboxResponse")()

    async def pod_sandbox_status(self, request: Message) -> Message:
        found = self._pods.sandbox(request.pod_sandbox_id)
        answer = message_class("PodSandboxStatusResponse")(status=sandbox_status(found))
        answer.timestamp = self._machine.wall_ns(self._machine.now_ns())
        answer.containers_statuses.extend(
            container_status(each) for each in self._pods.containers_of(found)
        )
        return answer

    async def list_pod_sandbox(self, request: Message) -> Message:
        await self._outages.wait(OutageKind.PLEG_STALL)
        answer = message_class("ListPodSandboxResponse")()
        wanted = request.filter
        for each in self._pods.sandboxes.values():
            if _is_wanted(wanted, each.id, _sandbox_state(each), each.config.labels):
                answer.items.append(_listed_sandbox(each))
        return answer

    async def update_pod_sandbox_resources(self, request: Message) -> Message:
        self._pods.sandbox(request.pod_sandbox_id)
        return message_class("UpdatePodSandboxResourcesResponse")()

    # ---- containers ----

    async def create_container(self, request: Message) -> Message:
        made = await self._pods.create(request.pod_sandbox_id, request.config)
        return message_class("CreateContainerResponse")(container_id=made.id)

    async def start_container(self, request: Message) -> Message:
        await self._pods.start(request.container_id)
        return message_class("StartContainerResponse")()

    async def stop_container(self, request: Message) -> Message:
        await self._pods.stop(request.container_id, request.timeout)
        return message_class("StopContainerResponse")()

    async def remove_container(self, request: Message) -> Message:
        await self._pods.remove(request.container_id)
        return message_class("RemoveContainerResponse")()

    async def list_containers(self, request: Message) -> Message:
        answer = message_class("ListContainersResponse")()
        wanted = request.filter
        for each in self._pods:
            if wanted.pod_sandbox_id and wanted.pod_sandbox_id != each.sandbox_id:
                continue
            if _is_wanted(wanted, each.id, int(each.state), each.config.labels):
                answer.containers.append(_listed_container(each))
        return answer

    async def container_status(self, request: Message) -> Message:
        found = self._pods.find(request.container_id)
        return message_class("ContainerStatusResponse")(status=container_status(found))

    async def update_container_resources(self, request: Message) -> Message:
        self._pods.update(request.container_id, request.linux)
        return message_class("UpdateContainerResourcesResponse")()

    async def reopen_container_log(self, _request: Message) -> Message:
        return message_class("ReopenContainerLogResponse")()

    async def exec_sync(self, request: Message) -> Message:
        found = self._pods.find(request.container_id)
        done = await exec_sync(
            self._machine, self._pods, found, tuple(request.cmd), request.timeout
        )
        return message_class("ExecSyncResponse")(stdout=done.output, exit_code=done.exit_code)

    # ---- stats and events ----

    async def container_stats(self, request: Message) -> Message:
        stats = container_stats(self._machine, self._pods.find(request.container_id))
        return message_class("ContainerStatsResponse")(stats=stats)

    async def list_container_stats(self, request: Message) -> Message:
        answer = message_class("ListContainerStatsResponse")()
        wanted = request.filter
        for each in self._pods:
            if wanted.pod_sandbox_id and wanted.pod_sandbox_id != each.sandbox_id:
                continue
            if each.state is RunState.RUNNING and _is_selected(wanted, each.id, each.config.labels):
                answer.stats.append(container_stats(self._machine, each))
        return answer

    async def pod_sandbox_stats(self, request: Message) -> Message:
        found = self._pods.sandbox(request.pod_sandbox_id)
        stats = pod_sandbox_stats(self._machine, found, self._pods.containers_of(found))
        return message_class("PodSandboxStatsResponse")(stats=stats)

    async def list_pod_sandbox_stats(self, request: Message) -> Message:
        answer = message_class("ListPodSandboxStatsResponse")()
        for each in self._pods.sandboxes.values():
            if each.sandbox.ready and _is_selected(request.filter, each.id, each.config.labels):
                containers = self._pods.containers_of(each)
                answer.stats.append(pod_sandbox_stats(self._machine, each, containers))
        return answer

    async def list_metric_descriptors(self, _request: Message) -> Message:
        return message_class("ListMetricDescriptorsResponse")()

    async def list_pod_sandbox_metrics(self, _request: Message) -> Message:
        return message_class("ListPodSandboxMetricsResponse")()

    async def get_container_events(self, _request: Message) -> AsyncIterator[Message]:
        """Tell of what happens from now on, for as long as somebody listens."""
        queue: asyncio.Queue[Message] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)

    def _on_event(self, subject: str, sandbox: PodSandbox, kind: int) -> None:
        if not self._watchers:
            return
        event = message_class("ContainerEventResponse")(
            container_id=subject,
            container_event_type=kind,
            created_at=self._machine.wall_ns(self._machine.now_ns()),
            pod_sandbox_status=sandbox_status(sandbox),
            containers_statuses=map(container_status, self._pods.containers_of(sandbox)),
        )
        for queue in self._watchers:
            queue.put_nowait(event)


def _is_wanted(wanted: Message, found_id: str, state: int, labels: dict[str, str]) -> bool:
    """Tell whether a filter lets something through."""
    if wanted.HasField("state") and wanted.state.state != state:
        return False
    return _is_selected(wanted, found_id, labels)


def _is_selected(wanted: Message, found_id: str, labels: dict[str, str]) -> bool:
    if wanted.id and not found_id.startswith(wanted.id):
        return False
    return all(labels.get(key) == each for key, each in wanted.label_selector.items())


def _sandbox_state(found: PodSandbox) -> int:
    return value("SANDBOX_READY" if found.sandbox.ready else "SANDBOX_NOTREADY")


def _listed_sandbox(found: PodSandbox) -> Message:
    return message_class("PodSandbox")(
        id=found.id,
        metadata=found.config.metadata,
        state=_sandbox_state(found),
        created_at=found.created_wall_ns,
        labels=found.config.labels,
        annotations=found.config.annotations,
        runtime_handler=found.handler,
    )


def sandbox_status(found: PodSandbox) -> Message:
    """Return the status of a sandbox; one that is stopped has no address any more."""
    status = message_class("PodSandboxStatus")(
        id=found.id,
        metadata=found.config.metadata,
        state=_sandbox_state(found),
        created_at=found.created_wall_ns,
        labels=found.config.labels,
        annotations=found.config.annotations,
        runtime_handler=found.handler,
    )
    status.network.ip = found.ip if found.sandbox.ready else ""
    options = found.config.linux.security_context.namespace_options
    status.linux.namespaces.options.CopyFrom(options)
    return status


def _listed_container(found: CriContainer) -> Message:
    return message_class("Container")(
        id=found.id,
        pod_sandbox_id=found.sandbox_id,
        metadata=found.config.metadata,
        image=found.config.image,
        image_ref=found.image_id,
        image_id=found.image_id,
        state=int(found.state),
        created_at=found.created_wall_ns,
        labels=found.config.labels,
        annotations=found.config.annotations,
    )


def container_status(found: CriContainer) -> Message:
    """Return the status of a container. Source: containerd's toCRIContainerStatus."""
    status = message_class("ContainerStatus")(
        id=found.id,
        metadata=found.config.metadata,
        state=int(found.state),
        created_at=found.created_wall_ns,
        started_at=found.started_wall_ns,
        image_ref=found.image_ref,
        labels=found.config.labels,
        annotations=found.config.annotations,
        mounts=found.config.mounts,
        log_path=found.log_path,
    )
    status.image.image = found.image_name
    status.resources.linux.CopyFrom(found.resources)
    uid, gid, groups = user_of(found)
    status.user.linux.uid = uid
    status.user.linux.gid = gid
    status.user.linux.supplemental_groups.extend(groups)
    if found.container is not None and found.state is RunState.EXITED:
        status.finished_at = found.finished_wall_ns
        status.exit_code = found.container.exit_code
        status.reason = found.container.reason
        status.message = found.start_error
    return status
