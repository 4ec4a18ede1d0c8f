"""/pods: the pods of a kubelet as a v1.PodList.

Source: pkg/kubelet/server/server.go, encodePods; pkg/kubelet/kubelet_pods.go, GetPods.
Differs: of a spec only what a kubelet acts on is there; annotations but fleet's own are not kept.
"""

from collections.abc import Iterator

import orjson

from fleet.k8s.effects import PodStatusPatch
from fleet.k8s.pods import TOKEN_VOLUME, TOKEN_VOLUME_START, ContainerSpec, Pod, PodStatus
from fleet.k8s.static_pods import StaticPod
from fleet.k8s.times import rfc3339
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.wire.api.requests import pod_status_patch

NO_STATUS = PodStatus(phase="")


def find_pod(kubelet: VirtualKubelet, namespace: str, name: str) -> Pod | None:
    """Return the pod of a name. Source: GetPodByName."""
    found = (pod for pod in pods_of(kubelet) if (pod.namespace, pod.name) == (namespace, name))
    return next(found, None)


def pods_of(kubelet: VirtualKubelet) -> Iterator[Pod]:
    """Yield the pods of a kubelet: static ones themselves, in place of their mirrors."""
    if (pods := kubelet.pods) is not None:
        yield from (pod for pod in pods if not pod.is_mirror)
        yield from pods.statics.manager


def all_pods(kubelet: VirtualKubelet, _now_ns: int) -> bytes:
    """Return what /pods shows."""
    listed = [_shown(pod, kubelet) for pod in pods_of(kubelet)]
    shown = b"[%b]" % b",".join(listed) if listed else b"null"
    return b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":%b}\n' % shown


def _shown(pod: Pod, kubelet: VirtualKubelet) -> bytes:
    metadata: dict[str, object] = {
        "name": pod.name,
        "namespace": pod.namespace,
        "uid": pod.uid,
        "resourceVersion": pod.resource_version,
        "generation": pod.generation,
        "creationTimestamp": pod.created_s and rfc3339(pod.created_s).decode(),
        "labels": dict(pod.labels),
        "annotations": dict(pod.annotations),
    }
    metadata = {key: value for key, value in metadata.items() if value}
    if pod.deletion_s:
        metadata["deletionTimestamp"] = rfc3339(pod.deletion_s).decode()
        metadata["deletionGracePeriodSeconds"] = pod.deletion_grace_s
    spec: dict[str, object] = {
        "containers": [_container(each) for each in pod.spec.containers],
        "restartPolicy": pod.spec.restart_policy,
        "terminationGracePeriodSeconds": pod.spec.termination_grace_s,
        "nodeName": pod.node_name,
        "priority": pod.spec.priority,
    }
    if pod.spec.own_json:
        spec["resources"] = orjson.Fragment(pod.spec.own_json)
    optional = {
        "initContainers": [_container(each) for each in pod.spec.init_containers],
        "ephemeralContainers": [_container(each) for each in pod.spec.ephemeral_containers],
        "serviceAccountName": pod.spec.service_account,
        "hostNetwork": pod.spec.host_network,
        "activeDeadlineSeconds": pod.spec.active_deadline_s,
        "volumes": [{"name": each.name, each.kind: {}} for each in pod.spec.volumes],
    }
    spec |= {key: value for key, value in optional.items() if value}
    pods, status = kubelet.pods, pod.status
    if pods is not None and isinstance(pod, StaticPod):
        status = pods.last_status(pod)
    patch = pod_status_patch(PodStatusPatch(pod.namespace, pod.name, pod.uid, NO_STATUS, status))
    shown = b'{"metadata":%b,"spec":%b,%b' % (
        orjson.dumps(metadata),
        orjson.dumps(spec),
        patch[patch.index(b'"status":') :],
    )
    if pod.token_suffix:
        shown = shown.replace(TOKEN_VOLUME, TOKEN_VOLUME_START + pod.token_suffix.encode())
    return shown


def _container(spec: ContainerSpec) -> dict[str, object]:
    shown: dict[str, object] = {"name": spec.name, "image": spec.image}
    if spec.command:
        shown["command"] = spec.command
    if spec.args:
        shown["args"] = spec.args
    shown["resources"] = orjson.Fragment(spec.resources_json)
    if spec.volume_mounts_json:
        shown["volumeMounts"] = orjson.Fragment(spec.volume_mounts_json)
    if spec.restart_policy:
        shown["restartPolicy"] = spec.restart_policy
    shown["imagePullPolicy"] = spec.pull_policy
    return shown
