"""What kubelets say about pods: the texts of their events, and what the events are about.

Source: pkg/kubelet/container/ref.go, GenerateContainerRef, fieldPath;
pkg/kubelet/kuberuntime/kuberuntime_container.go; pkg/kubelet/images/image_manager.go.
"""

from functools import lru_cache
from typing import NamedTuple

from fleet.clock import NS_PER_S
from fleet.k8s.pods import ContainerSpec, ObjectRef, Pod


class Texts(NamedTuple):
    """What changed with the minor version of the kubelet; `%s` is the image or the container."""

    pulled: str
    created: str
    started: str
    checks_credentials: bool  # of pods that use an image which another pod had pulled


@lru_cache(maxsize=8)
def texts_of(kubelet_version: str) -> Texts:
    """Return the texts of one version."""
    minor = int(kubelet_version.removeprefix("v").split(".")[1])
    if minor >= 36:
        return Texts(
            'Container image "%s" already present on machine and can be accessed by the pod',
            "Container created",
            "Container started",
            checks_credentials=True,
        )
    return Texts(
        'Container image "%s" already present on machine',
        "Created container: %s",
        "Started container %s",
        checks_credentials=minor >= 35,
    )


def pod_ref(pod: Pod, spec: ContainerSpec | None) -> ObjectRef:
    """Return a reference to a pod, or to one of its containers."""
    path = "" if spec is None else field_path(pod, spec)
    return ObjectRef("Pod", pod.namespace, pod.name, pod.uid, pod.resource_version, path)


def field_path(pod: Pod, spec: ContainerSpec) -> str:
    """Return where a container stands in its pod."""
    field = "containers"
    if spec in pod.spec.init_containers:
        field = "initContainers"
    elif spec in pod.spec.ephemeral_containers:
        field = "ephemeralContainers"
    return f"spec.{field}{{{spec.name}}}"


def back_off_texts(pod: Pod, spec: ContainerSpec, delay_ns: int) -> tuple[str, str]:
    """Return what the event and the waiting state say of a container in back-off."""
    where = f"{pod.full_name}({pod.uid})"
    minutes, seconds = divmod(delay_ns // NS_PER_S, 60)
    delay = f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
    return (
        f"Back-off restarting failed container {spec.name} in pod {where}",
        f"back-off {delay} restarting failed container={spec.name} pod={where}",
    )
