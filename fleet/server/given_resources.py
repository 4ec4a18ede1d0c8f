"""What the PodResources service tells of a node: what its containers were given, and what there is.

Source: pkg/kubelet/apis/podresources/server_v1.go; pkg/kubelet/cm/container_manager_linux.go.
Differs: all CPUs and memory are of NUMA node 0.
"""

from collections.abc import Iterator

from fleet.k8s.admission import AssignedDevice, ContainerResources, PodResources
from fleet.k8s.pods import ContainerSpec, Pod
from fleet.kubelet.containers.pod_actions import is_sidecar
from fleet.kubelet.devices.container_manager import exclusive_cpus, exclusive_memory, memory_of
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.pod_worker import TERMINAL_PHASES


def pod_resources(kubelet: VirtualKubelet, now_ns: int) -> tuple[PodResources, ...]:
    """Return what the active pods have. Source: List, GetActivePods."""
    pods = kubelet.pods
    if pods is None:
        return ()
    active = (pod for pod in pods if pods.last_status(pod).phase not in TERMINAL_PHASES)
    return tuple(_of_pod(kubelet, pod, now_ns) for pod in active)


def resources_of(
    kubelet: VirtualKubelet, namespace: str, name: str, now_ns: int
) -> PodResources | None:
    """Return what a pod has, None if there is none of that name. Source: Get."""
    for pod in kubelet.pods or ():
        if (pod.namespace, pod.name) == (namespace, name):
            return _of_pod(kubelet, pod, now_ns)
    return None


def allocatable_devices(kubelet: VirtualKubelet, now_ns: int) -> tuple[AssignedDevice, ...]:
    """Return the healthy devices of a node. Source: GetAllocatableResources."""
    plugins = kubelet.plugins
    if plugins is None or plugins.devices is None:
        return ()
    return plugins.devices.allocatable(kubelet.turn_at(now_ns))


def allocatable_resources(kubelet: VirtualKubelet, now_ns: int) -> ContainerResources:
    """Return what a node may give to containers alone. Source: GetAllocatableResources."""
    model, devices = kubelet.env.model, allocatable_devices(kubelet, now_ns)
    cpus = tuple(sorted(exclusive_cpus(model)))
    return ContainerResources("", devices, (), cpus, exclusive_memory(model))


def _of_pod(kubelet: VirtualKubelet, pod: Pod, now_ns: int) -> PodResources:
    containers = tuple(_of_container(kubelet, pod, each.name, now_ns) for each in _told(pod))
    return PodResources(pod.name, pod.namespace, containers)


def _told(pod: Pod) -> Iterator[ContainerSpec]:
    """Yield the containers that are told of: sidecars and the regular ones."""
    yield from filter(is_sidecar, pod.spec.init_containers)
    yield from pod.spec.containers


def _of_container(
    kubelet: VirtualKubelet, pod: Pod, container: str, now_ns: int
) -> ContainerResources:
    devices: tuple[AssignedDevice, ...] = ()
    plugins, pods = kubelet.plugins, kubelet.pods
    if plugins is not None and plugins.devices is not None:
        devices = plugins.devices.assigned(pod.uid, container, kubelet.turn_at(now_ns))
    claims = pods.claims_of(pod, container) if pods is not None else ()
    cpus = pods.cpus_of(pod, container) if pods is not None else ()
    memory = memory_of(pod, container, kubelet.env.model)
    return ContainerResources(container, devices, claims, cpus, memory)
