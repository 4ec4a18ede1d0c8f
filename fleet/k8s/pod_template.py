"""What a kubelet keeps of the spec of a pod: read once for all pods of a template.

Rendered parts (`*_json`) have sorted keys, so that equal values are equal bytes wherever they
come from. Parts that differ from the usual in few pods are one shared record in all others.
Source: core/v1 PodSpec; pkg/apis/core/v1/defaults.go for what is absent.
"""

import re
import sys
from functools import partial
from typing import Any, TypeVar

import orjson
from msgspec import convert

from fleet.k8s import pods
from fleet.k8s.admission import Demand, admission_spec, pod_resources, qos_class
from fleet.k8s.schema import Record, read, read_kind, render, share, without_nulls
from fleet.k8s.selectors import Toleration
from fleet.quantity import parse_quantity

_intern = sys.intern
_R = TypeVar("_R", bound=Record)
DEFAULT_MODE = 0o644
REFERENCE = re.compile(r"\$(?:\$|\(([^()\s]+)\))")  # to a variable, or to a dollar itself
EXPANDED_MAX = 1 << 20
NO_GIT_REPO = (
    "git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling "
    "the feature-gate `GitRepoVolumeDriver`"
)
HUGE_PAGES = "HugePages"  # a medium; with "-2Mi" it names the size
HUGE_PAGES_RESOURCE = "hugepages-"
NO_QUANTITY = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
DEFAULT_TOKEN_S = 3600  # core/v1/defaults.go, SetDefaults_ServiceAccountTokenProjection
_SHOWN = {"configMap": "ConfigMap", "secret": "Secret"}  # by volumes
_SECRET_PLUGINS = frozenset(
    ("csi", "cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos")
)


def records(listed: Any, record: type[_R]) -> tuple[_R, ...]:
    """Return the records of a list, of one that is null none."""
    return convert(without_nulls(listed or []), tuple[record, ...], dec_hook=read_kind)  # type: ignore[valid-type]


def decode_spec(spec: dict[str, Any], spec_digest: int) -> pods.PodSpec:
    """Return what a spec says; the digest is of the bytes that it came from."""
    containers = spec.get("containers", ())
    inits = spec.get("initContainers", ())
    security = spec.get("securityContext") or {}
    links = spec.get("enableServiceLinks", True)
    container = partial(_container, security=security, links=links)
    demands = [_demand(each) for each in containers]
    init_demands = [_demand(each) for each in inits]
    own_resources = spec.get("resources")
    own = _demand(spec) if own_resources else None
    whole = pod_resources(demands, init_demands, spec.get("overhead", {}), own)
    return pods.PodSpec(
        containers=share(tuple(map(container, containers))),
        init_containers=share(tuple(map(container, inits))),
        ephemeral_containers=share(tuple(map(container, spec.get("ephemeralContainers", ())))),
        volumes=share(decode_volumes(spec)),
        tolerations=share(records(spec.get("tolerations"), Toleration)),
        restart_policy=_intern(spec.get("restartPolicy", "Always")),
        termination_grace_s=spec.get("terminationGracePeriodSeconds", 30),
        active_deadline_s=spec.get("activeDeadlineSeconds", 0),
        service_account=_intern(spec.get("serviceAccountName", "")),
        host_network=spec.get("hostNetwork", False),
        shares_pids=bool(spec.get("hostPID") or spec.get("shareProcessNamespace")),
        hostname=_intern(spec.get("hostname", "")),
        runtime_class=_intern(spec.get("runtimeClassName", "")),
        host_aliases=share(
            tuple((each["ip"], *each.get("hostnames", ())) for each in spec.get("hostAliases", ()))
        ),
        network=share(read(pods.PodNetworkSpec, spec)),
        priority=spec.get("priority", 0),
        readiness_gates=share(
            tuple(each["conditionType"] for each in spec.get("readinessGates", ()))
        ),
        # The API takes some without a name; kubelets skip them: getPullSecretsForPod, issue 99454.
        pull_secrets=share(
            tuple(filter(None, (each.get("name") for each in spec.get("imagePullSecrets", ()))))
        ),
        qos_class=qos_class([own] if own else [*demands, *init_demands]),
        allocated_json=share(whole.allocated),
        resources_json=share(whole.asked),
        running_json=share(whole.running),
        ended_json=share(whole.ended),
        own_json=share(render(own_resources)) if own_resources else b"",
        admission=share(admission_spec(spec, whole.allocated)),
        digest=spec_digest,
    )


def _demand(obj: dict[str, Any]) -> Demand:
    resources = obj.get("resources") or {}
    return Demand(
        resources.get("requests", {}),
        resources.get("limits", {}),
        obj.get("restartPolicy") == "Always",
    )


def _container(obj: dict[str, Any], security: dict[str, Any], *, links: bool) -> pods.ContainerSpec:
    resources = obj.get("resources") or {}
    requests = resources.get("requests")
    mounts = [_mount(each) for each in obj.get("volumeMounts", ())]
    return pods.ContainerSpec(
        name=_intern(obj["name"]),
        image=_intern(obj.get("image", "")),
        pull_policy=_intern(obj.get("imagePullPolicy", "")),
        command=share(tuple(obj.get("command", ()))),
        args=share(tuple(obj.get("args", ()))),
        restart_policy=_intern(obj.get("restartPolicy", "")),
        requests_json=share(render(requests)) if requests else b"",
        resources_json=share(render(resources)) if resources else b"{}",
        volume_mounts_json=render(mounts) if mounts else b"",
        life=share(container_lifecycle(obj)),
        startup_probe=decode_probe(obj, "startupProbe"),
        readiness_probe=decode_probe(obj, "readinessProbe"),
        liveness_probe=decode_probe(obj, "livenessProbe"),
        user=share(container_user(obj, security)),
        script=share(container_script(obj, has_service_links=links)),
        ports=share(records(obj.get("ports"), pods.PortSpec)),
        target=_intern(obj.get("targetContainerName", "")),
    )


def _mount(obj: dict[str, Any]) -> dict[str, object]:
    """Source: kubelet_pods.go, convertToAPIContainerStatuses: recursive only where asked for."""
    mount: dict[str, object] = {"mountPath": obj["mountPath"], "name": obj["name"]}
    if obj.get("readOnly"):
        mount["readOnly"] = True
        wanted = obj.get("recursiveReadOnly", "Disabled")
        mount["recursiveReadOnly"] = "Disabled" if wanted == "Disabled" else "Enabled"
    return mount


MESSAGE_PATH = pods.PLAIN_LIFE.message_path
_FIELDS = frozenset(("restartPolicyRules", "lifecycle", "resizePolicy"))


def container_lifecycle(obj: dict[str, Any]) -> pods.ContainerLifecycle:
    """Return what a container's spec says about its life; most say nothing."""
    from_logs = obj.get("terminationMessagePolicy") == "FallbackToLogsOnError"
    path = obj.get("terminationMessagePath") or MESSAGE_PATH
    if not from_logs and path == MESSAGE_PATH and _FIELDS.isdisjoint(obj):
        return pods.PLAIN_LIFE
    hooks = obj.get("lifecycle") or {}
    life = pods.ContainerLifecycle(
        restart_rules=tuple(
            read(pods.RestartRule, each) for each in obj.get("restartPolicyRules") or ()
        ),
        post_start=_hook(hooks.get("postStart"), obj),
        pre_stop=_hook(hooks.get("preStop"), obj),
        message_path=path,
        message_from_logs=from_logs,
        resize_restarts=tuple(
            each["resourceName"]
            for each in obj.get("resizePolicy") or ()
            if each.get("restartPolicy") == "RestartContainer"
        ),
    )
    return pods.PLAIN_LIFE if life == pods.PLAIN_LIFE else life


def _hook(obj: dict[str, Any] | None, container: dict[str, Any]) -> pods.Hook | None:
    if not obj:
        return None
    kind = next(iter(obj))
    handler = obj[kind] or {}
    return pods.Hook(
        kind,
        tuple(handler.get("command", ())),
        handler.get("path", ""),
        handler.get("seconds", 0),
        handler.get("host", ""),
        number_of_port(handler["port"], container) or 0 if "port" in handler else 0,
    )


HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
PORT_MAX = 65535  # Source: apimachinery/pkg/util/validation, IsValidPortNum


def decode_probe(container: dict[str, Any], field: str) -> pods.ProbeSpec | None:
    """Return one probe of a container, None when it has none.

    Source: core/v1 Probe; pkg/apis/core/v1/defaults.go, SetDefaults_Probe.
    """
    obj = container.get(field)
    if obj is None:
        return None
    handler = next((each for each in HANDLERS if each in obj), "")
    action = obj.get(handler) or {}
    port, error, lost_port = 0, "", ""
    if not handler:
        error = "missing probe handler"
    elif handler == "grpc":
        port = action.get("port", 0)
    elif handler != "exec":
        asked = action.get("port", 0)
        number = number_of_port(asked, container)
        if number is None:
            lost_port = asked
        elif 0 < number <= PORT_MAX:
            port = number
        else:
            error = f"invalid port number: {number}"
    return pods.ProbeSpec(
        handler=handler,
        scheme=sys.intern(action.get("scheme", "HTTP").lower()) if handler == "httpGet" else "",
        host=action.get("host", ""),
        port=port,
        path=sys.intern(action.get("path", "/")) if handler == "httpGet" else "",
        command=_static(action.get("command", ()), container.get("env", ())),
        error=error,
        initial_delay_s=obj.get("initialDelaySeconds", 0),
        timeout_s=obj.get("timeoutSeconds") or 1,
        period_s=obj.get("periodSeconds") or 10,
        success_threshold=obj.get("successThreshold") or 1,
        failure_threshold=obj.get("failureThreshold") or 3,
        termination_grace_s=obj.get("terminationGracePeriodSeconds"),
        lost_port=lost_port,
    )


def _static(words: list[str], variables: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return a probe's command with the values that the spec itself gives its variables.

    One that might become too long for a process stays as it is.
    Source: pkg/kubelet/container/helpers.go, ExpandContainerCommandOnlyStatic.
    """
    known = {each["name"]: each.get("value", "") for each in variables}
    longest = max(map(len, known.values()), default=0)
    if longest * sum(word.count("$(") for word in words) > EXPANDED_MAX:
        return tuple(words)
    return tuple(
        REFERENCE.sub(lambda to: known.get(to[1], to[0]) if to[1] else "$", word) for word in words
    )


def number_of_port(port: int | str, container: dict[str, Any]) -> int | None:
    """Return a port's number, None for a name that no port of the container has.

    Source: pkg/probe/util.go, ResolveContainerPort.
    """
    if isinstance(port, int):
        return port
    for each in container.get("ports", ()):
        if each.get("name") == port:
            return int(each["containerPort"])
    return int(port) if port.isdecimal() else None


def container_script(
    obj: dict[str, Any], *, has_service_links: bool = True
) -> pods.ScriptSpec | None:
    """Return the surroundings of a container's command, None if there are none."""
    found = pods.ScriptSpec(
        tuple(map(_variable, obj.get("env", ()))),
        records(obj.get("volumeMounts"), pods.MountSpec),
        tuple(
            pods.Variable(each.get("prefix", ""), source=source)
            for each in obj.get("envFrom", ())
            if (source := env_reference(each)).kind
        ),
        has_service_links,
        obj.get("workingDir", ""),
        obj.get("stdin", False),
    )
    return None if found == pods.NO_SCRIPT else found


def _variable(obj: dict[str, Any]) -> pods.Variable:
    source = obj.get("valueFrom")
    if obj.get("value") or not source:
        return pods.Variable(obj["name"], obj.get("value", ""))
    return pods.Variable(obj["name"], source=env_reference(source))


_REFERENCES = {
    "configMapKeyRef": ("ConfigMap", "key", "name"),
    "secretKeyRef": ("Secret", "key", "name"),
    "configMapRef": ("ConfigMap", "key", "name"),
    "secretRef": ("Secret", "key", "name"),
    "fieldRef": ("Field", "fieldPath", "name"),
    "resourceFieldRef": ("Resource", "resource", "containerName"),
    "fileKeyRef": ("File", "key", "volumeName"),
}


def env_reference(source: dict[str, Any]) -> pods.EnvRef:
    """Return where a value comes from: of a variable, of several, of a file that shows a field."""
    for field, (kind, key, name) in _REFERENCES.items():
        if (ref := source.get(field)) is not None:
            return pods.EnvRef(
                kind,
                _intern(ref.get(key, "")),
                ref.get(name, ""),
                str(ref.get("divisor", "")),
                path=ref.get("path", ""),
                optional=ref.get("optional") or False,
            )
    return pods.EnvRef("")


def _windows_name(context: dict[str, Any]) -> str:
    return (context.get("windowsOptions") or {}).get("runAsUserName") or ""


def container_user(container: dict[str, Any], pod: dict[str, Any]) -> pods.UserSpec:
    """Return what a container's and its pod's security contexts come to.

    Source: pkg/kubelet/kuberuntime/security_context.go, determineEffectiveSecurityContext.
    """
    own = container.get("securityContext") or {}
    if not own and not pod:
        return pods.IMAGE_USER
    both = {**pod, **own}
    fs_group = pod.get("fsGroup")
    return pods.UserSpec(
        uid=both.get("runAsUser"),
        gid=both.get("runAsGroup"),
        groups=(*(() if fs_group is None else (fs_group,)), *pod.get("supplementalGroups", ())),
        non_root=both.get("runAsNonRoot", False),
        fs_group=fs_group,
        read_only_root=own.get("readOnlyRootFilesystem", False),
        no_new_privs=own.get("allowPrivilegeEscalation") is False,
        windows_name=_windows_name(own) or _windows_name(pod),
    )


def decode_volumes(spec: dict[str, Any]) -> tuple[pods.VolumeSpec, ...]:
    """Return the volumes of a pod's spec, and whether a container uses each.

    Source: pkg/volume/util/util.go, GetPodVolumeNames.
    """
    mounts: set[str] = set()
    devices: set[str] = set()
    for field in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(field) or ():
            mounts.update(each["name"] for each in container.get("volumeMounts") or ())
            devices.update(each["name"] for each in container.get("volumeDevices") or ())
    return tuple(
        _volume(
            each,
            mounted=each["name"] in mounts | devices,
            block=each["name"] in devices,
            flaw=NO_GIT_REPO
            if "gitRepo" in each
            else _medium_flaw((each.get("emptyDir") or {}).get("medium") or "", spec),
        )
        for each in spec.get("volumes") or ()
    )


def _medium_flaw(medium: str, spec: dict[str, Any]) -> str:
    """Return why an emptyDir cannot be made of its medium, "" if it can.

    Source: pkg/volume/emptydir/empty_dir.go, SetUpAt.
    """
    if medium in {"", "Memory"}:
        return ""
    if medium != HUGE_PAGES and not medium.startswith(f"{HUGE_PAGES}-"):
        return f"unknown storage medium {orjson.dumps(medium).decode()}"
    try:
        return _huge_pages_flaw(medium, spec)
    except ValueError:
        return NO_QUANTITY


def _huge_pages_flaw(medium: str, spec: dict[str, Any]) -> str:
    """Source: pkg/volume/emptydir/empty_dir.go, getPageSizeMountOption."""
    asking = (spec, *(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    sizes = {
        parse_quantity(name.removeprefix(HUGE_PAGES_RESOURCE)).nano
        for each in asking
        for name in (each.get("resources") or {}).get("requests") or ()
        if name.startswith(HUGE_PAGES_RESOURCE)
    }
    if medium == HUGE_PAGES and len(sizes) > 1:
        return f"medium: {medium} can't be used if container requests multiple huge page sizes"
    if medium != HUGE_PAGES:
        sizes &= {parse_quantity(medium.removeprefix(f"{HUGE_PAGES}-")).nano}
    if sizes:
        return ""
    return (
        f"medium {medium}: hugePages storage requested, but there is no resource request "
        "for huge pages"
    )


def _volume(obj: dict[str, Any], *, mounted: bool, block: bool, flaw: str) -> pods.VolumeSpec:
    kind = next((key for key in obj if key != "name"), "emptyDir")
    source = obj.get(kind) or {}
    parts = (source.get("sources") or ()) if kind == "projected" else ({kind: source},)
    mode = source.get("defaultMode") or DEFAULT_MODE
    if kind == "persistentVolumeClaim" and source.get("readOnly"):
        mode = pods.READ_ONLY_MODE

    def of(owner: str, field: str) -> Any:
        return (source.get(field) or "") if kind == owner else ""

    return pods.VolumeSpec(
        obj["name"],
        _intern(kind),
        tuple(_source(each, key) for part in parts for key, each in part.items() if key in _SHOWN),
        tuple(
            _token(each["serviceAccountToken"]) for each in parts if "serviceAccountToken" in each
        ),
        claim=of("persistentVolumeClaim", "claimName"),
        driver=of("csi", "driver"),
        mounted=mounted,
        block=block,
        host_path=of("hostPath", "path"),
        host_type=_intern(of("hostPath", "type")),
        size_limit=_intern(of("emptyDir", "sizeLimit")),
        in_memory=of("emptyDir", "medium") == "Memory",
        downward=tuple(
            pods.DownwardFile(file.get("path", ""), env_reference(file), file.get("mode"))
            for each in parts
            if "downwardAPI" in each
            for file in each["downwardAPI"].get("items") or ()
        ),
        mode=mode,
        image=of("image", "reference"),
        pull_policy=of("image", "pullPolicy"),
        secret=_volume_secret(kind, source),
        flaw=flaw,
    )


def _volume_secret(kind: str, source: dict[str, Any]) -> str:
    """Return the Secret that a plug-in is given. Source: pod/util.go, VisitPodSecretNames."""
    if kind == "azureFile":
        return str(source.get("secretName") or "")
    ref = source.get("nodePublishSecretRef" if kind == "csi" else "secretRef")
    return str((ref or {}).get("name", "")) if kind in _SECRET_PLUGINS else ""


def _token(ref: dict[str, Any]) -> pods.TokenSource:
    seconds = ref.get("expirationSeconds", DEFAULT_TOKEN_S)
    return pods.TokenSource(ref.get("audience", ""), seconds, ref.get("path", ""))


def _source(ref: dict[str, Any], key: str) -> pods.ObjectSource:
    items = ref.get("items") or ()
    keys = tuple(_intern(each["key"]) for each in items)
    paths = tuple(each.get("path", each["key"]) for each in items)
    modes = tuple(each.get("mode") for each in items)
    name = ref.get("name") or ref.get("secretName", "")  # of a volume of its own a Secret's
    return pods.ObjectSource(
        name, ref.get("optional", False), keys, paths, modes if any(modes) else (), _SHOWN[key]
    )
