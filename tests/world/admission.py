"""What the API server makes of a pod that somebody creates: defaults, tolerations, a token volume.

Source: pkg/apis/core/v1/defaults.go; plugin/pkg/admission/defaulttolerationseconds and
serviceaccount.
"""

import copy

from world.strategic_merge import Object
from world.taints import NO_EXECUTE, NOT_READY, UNREACHABLE, is_tolerated

TOLERATION_S = 300
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


def admitted_pod(given: Object, suffix: str) -> Object:
    """Return a pod as it is stored; `suffix` ends the name of its token volume."""
    pod = copy.deepcopy(given)
    defaults = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "schedulerName": "default-scheduler",
        "enableServiceLinks": True,
        "securityContext": {},
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
    }
    spec = pod["spec"] = {**defaults, **pod.get("spec", {})}
    tolerations = list(spec.get("tolerations") or [])
    for key in (NOT_READY, UNREACHABLE):
        if not is_tolerated({"key": key, "effect": NO_EXECUTE}, tolerations):
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": NO_EXECUTE,
                    "tolerationSeconds": TOLERATION_S,
                }
            )
    spec["tolerations"] = tolerations
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    for container in containers:
        _default_container(container)
    if spec.get("automountServiceAccountToken", True):
        _mount_token(spec, containers, f"kube-api-access-{suffix}")
    for volume in spec.get("volumes") or ():
        for source in ("configMap", "secret", "projected", "downwardAPI"):
            if source in volume:
                volume[source].setdefault("defaultMode", 420)
    pod["status"] = {"phase": "Pending", "qosClass": _qos(containers)}
    return pod


def _default_container(container: Object) -> None:
    image = str(container.get("image", ""))
    is_latest = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
    container.setdefault("imagePullPolicy", "Always" if is_latest else "IfNotPresent")
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    resources = container.setdefault("resources", {})
    if resources.get("limits"):
        resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for name in PROBES:
        if name in container:
            container[name] = {**PROBE, **container[name]}
            if "httpGet" in container[name]:
                container[name]["httpGet"].setdefault("path", "/")
                container[name]["httpGet"].setdefault("scheme", "HTTP")


def _mount_token(spec: Object, containers: list[Object], name: str) -> None:
    token = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    root = {
        "configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    }
    field = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    namespace = {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}}
    volume = {"name": name, "projected": {"sources": [token, root, namespace]}}
    spec["volumes"] = [*(spec.get("volumes") or ()), volume]
    mount = {"name": name, "readOnly": True, "mountPath": TOKEN_PATH}
    for container in containers:
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]


def _qos(containers: list[Object]) -> str:
    """Source: pkg/apis/core/v1/helper/qos/qos.go, ComputePodQOS."""
    found = []
    for container in containers:
        resources = container.get("resources") or {}
        sides = [
            {key: (resources.get(side) or {}).get(key) for key in ("cpu", "memory")}
            for side in ("requests", "limits")
        ]
        found.append(sides)
    if not any(value for sides in found for side in sides for value in side.values()):
        return "BestEffort"
    is_guaranteed = all(sides[0] == sides[1] and all(sides[1].values()) for sides in found)
    return "Guaranteed" if is_guaranteed else "Burstable"
