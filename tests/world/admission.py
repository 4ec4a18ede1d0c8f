"""What an API server makes of the pods that clients create and patch: defaults and rules.

Source: pkg/apis/core/v1/defaults.go; plugin/pkg/admission/defaulttolerationseconds and
serviceaccount; pkg/registry/core/pod/strategy.go.
"""

import copy

from fleet.quantity import parse_quantity
from world.strategic_merge import Object
from world.taints import NO_EXECUTE, NOT_READY, UNREACHABLE, is_tolerated

TOLERATION_S = 300
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
PRIORITIES = {"system-node-critical": 2000001000, "system-cluster-critical": 2000000000}
KEPT = ("qosClass", "observedGeneration")
COMPUTE = ("cpu", "memory")
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


def admitted(given: Object) -> Object:
    """Return a pod of a user as the server stores it."""
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
        "priority": PRIORITIES.get(given.get("spec", {}).get("priorityClassName", ""), 0),
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
    if "resources" in spec:
        spec["resources"] = with_canonical(spec["resources"])
    if spec.get("automountServiceAccountToken", True):
        _mount_token(spec, containers, "kube-api-access-abcde")
    for volume in spec.get("volumes") or ():
        for source in ("configMap", "secret", "projected", "downwardAPI"):
            if source in volume:
                volume[source].setdefault("defaultMode", 420)
    pod["status"] = first_status(spec)
    return pod


def drop_restart_rules(spec: Object) -> None:
    """Take from a pod how its containers restart, as a server without ContainerRestartRules does.

    Source: pkg/api/pod/util.go, dropContainerRestartRules.
    """
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind) or ():
            container.pop("restartPolicyRules", None)
            if kind == "containers" or container.get("restartPolicy") != "Always":
                container.pop("restartPolicy", None)


def with_defaults(spec: Object) -> Object:
    """Return a spec that was patched: ephemeral containers that came get their defaults."""
    made: Object = copy.deepcopy(spec)
    for container in made.get("ephemeralContainers", ()):
        _default_container(container)
    return made


def first_status(spec: Object) -> Object:
    """Return the status of a pod that is new. Source: registry/core/pod/strategy.go."""
    return {"phase": "Pending", "qosClass": qos_class(spec)}


def kept_fields(status: Object) -> Object:
    """Return the patch of a status without what it may not take back.

    Source: registry/core/pod/strategy.go, podStatusStrategy, preserveOldObservedGeneration.
    """
    found = {key: each for key, each in status.items() if each is not None or key not in KEPT}
    conditions = found.get("conditions")
    if conditions:
        found["conditions"] = [
            {key: each for key, each in one.items() if each is not None or key not in KEPT}
            for one in conditions
        ]
    return found


def qos_class(spec: Object) -> str:
    """Source: pkg/apis/core/v1/helper/qos/qos.go, ComputePodQOS."""
    whole = spec.get("resources")
    holders = [whole] if whole else []
    if not whole:
        containers = (*spec["containers"], *spec.get("initContainers", ()))
        holders = [each.get("resources") or {} for each in containers]
    totals: dict[str, dict[str, int]] = {"requests": {}, "limits": {}}
    for holder in holders:
        for side, total in totals.items():
            for name, value in (holder.get(side) or {}).items():
                amount = parse_quantity(str(value)).nano
                if name in COMPUTE and amount > 0:
                    total[name] = total.get(name, 0) + amount
    if not any(totals.values()):
        return "BestEffort"
    is_limited = all(set(COMPUTE) <= set(holder.get("limits") or {}) for holder in holders)
    return "Guaranteed" if is_limited and totals["requests"] == totals["limits"] else "Burstable"


def with_canonical(resources: Object) -> Object:
    """Return resources as the API server prints their amounts: `1000m` is `1`."""
    return {
        kind: {name: str(parse_quantity(text)) for name, text in amounts.items()}
        if kind in ("limits", "requests")
        else amounts
        for kind, amounts in resources.items()
    }


def _default_container(container: Object) -> None:
    image = str(container.get("image", ""))
    is_latest = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
    container.setdefault("imagePullPolicy", "Always" if is_latest else "IfNotPresent")
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    resources = container["resources"] = with_canonical(container.get("resources") or {})
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
