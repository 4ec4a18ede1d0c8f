"""Pods as they come from the wire, and a node that admits them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import orjson

from fleet.k8s.admission import NodeState
from fleet.k8s.pods import Pod
from fleet.kubelet.pods.admission import AdmissionInputs, Devices, Verdict, admit
from fleet.profile.loader import load_mix
from fleet.profile.node_model import NodeModel
from fleet.wire.api.decode_pod import decode_pod

ALLOCATABLE = {"cpu": "8", "memory": "30Gi", "ephemeral-storage": "90Gi", "hugepages-2Mi": "0"}
MODEL = dataclasses.replace(load_mix().model_of(0), allocatable=ALLOCATABLE)


def container(name: str = "c", **fields: object) -> dict[str, Any]:
    return {"name": name, "image": "nginx:1", **fields}


def make_pod(
    name: str = "p",
    *containers: dict[str, Any],
    labels: dict[str, str] | None = None,
    claims: list[dict[str, str]] | None = None,
    qos: str = "",
    **spec: object,
) -> Pod:
    """Return a pod as it comes from the wire."""
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": labels or {}}
    status: dict[str, Any] = {"phase": "Pending"}
    if claims is not None:
        status["resourceClaimStatuses"] = claims
    body = {"containers": list(containers) or [container()], "nodeName": "n", **spec}
    pod = decode_pod(orjson.dumps({"metadata": meta, "spec": body, "status": status}))
    if qos:
        pod.spec = pod.spec._replace(qos_class=qos)
    return pod


def node(model: NodeModel = MODEL, **fields: object) -> AdmissionInputs:
    return AdmissionInputs("n", model, NodeState())._replace(**fields)  # type: ignore[arg-type]


def look(
    pod: Pod,
    *others: Pod,
    inputs: AdmissionInputs | None = None,
    allocate: Callable[[Pod], Devices] = lambda _: Devices(),
) -> Verdict:
    return admit(pod, others, inputs or node(), allocate)
