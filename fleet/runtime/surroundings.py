"""What the command of a container finds when it starts: its variables and its volumes.

Source: pkg/kubelet/kubelet_pods.go, makeEnvironmentVariables, podFieldSelectorRuntimeValue.
"""

from fleet.objects.pods import ContainerSpec, Pod, VolumeSpec
from fleet.objects.scripts import ScriptSpec
from fleet.runtime.files import HOST, NodeFiles, VolumePlace, layer_of
from fleet.runtime.script import (
    expand,
    sub_path_error,
    subscripted,
    variables_of,
)
from fleet.runtime.security_context import non_root_error
from fleet.runtime.shell.surroundings import Surroundings


def surroundings(
    files: NodeFiles,
    pod: Pod,
    spec: ContainerSpec,
    addresses: tuple[str, str],
    draw: float,
    start_ns: int,
    start_wall_ns: int,
) -> Surroundings:
    """Return what a container finds around it that started at an instant.

    `addresses` are those of the pod and of the node; `draw` of [0, 1) seeds its random numbers.
    """
    pod_ip, host_ip = addresses
    script = spec.script
    assert script is not None, spec.name
    places = {each.name: place for each in pod.spec.volumes if (place := _place(pod, each))}
    variables = _variables(script, pod, pod_ip, host_ip)
    mounts = [
        each._replace(inner=expand(each.expression, variables)) if each.expression else each
        for each in script.mounts
    ]
    view = files.view(mounts, places, layer_of(pod.uid, spec.name), start_ns)
    return Surroundings(variables, view, draw, start_wall_ns)


def config_error(pod: Pod, spec: ContainerSpec, pod_ip: str) -> str:
    """Return why a container cannot be configured as its pod asks for, "" if it can.

    Source: pkg/kubelet/kuberuntime/kuberuntime_container.go, generateContainerConfig.
    """
    script = spec.script
    if script is not None and script.mounts:
        variables = _variables(script, pod, pod_ip, pod.status.host_ip)
        error = sub_path_error(script, variables)
        if error:
            return error
    return non_root_error(spec.user, spec.image, spec.name, f"{pod.full_name}({pod.uid})")


def _variables(script: ScriptSpec, pod: Pod, pod_ip: str, host_ip: str) -> dict[str, str]:
    fields = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": pod.node_name,
        "spec.serviceAccountName": pod.spec.service_account,
        "status.podIP": pod_ip,
        "status.podIPs": pod_ip,
        "status.hostIP": host_ip,
        "status.hostIPs": host_ip,
    }

    def field(path: str) -> str | None:
        found = subscripted(path)
        if found is None:
            return fields.get(path)
        kind, key = found
        return dict(pod.labels).get(key, "") if kind == "labels" else None

    return variables_of(script, field)


def _place(pod: Pod, volume: VolumeSpec) -> VolumePlace | None:
    """Return where the files of a volume are, None when what it holds is unknown."""
    if volume.kind == "emptyDir":
        return VolumePlace((pod.uid, volume.name))
    if volume.host_path:
        return VolumePlace(HOST, volume.host_path)
    if volume.claim:
        return VolumePlace((f"claims of {pod.namespace}", volume.claim))
    return None
