"""What the command of a container finds when it starts: its variables and its volumes.

Source: pkg/kubelet/kubelet_pods.go, makeEnvironmentVariables, podFieldSelectorRuntimeValue,
getServiceEnvVarMap, ensureHostsFileContent; pkg/kubelet/envvars/envvars.go, FromServices;
pkg/volume/{configmap,secret,projected,downwardapi};
pkg/api/v1/resource/helpers.go, ExtractContainerResourceValue.
Differs: sources of a projected volume other than these, as clusterTrustBundle, show no files.
"""

import re
from collections import ChainMap
from collections.abc import Iterable, Mapping

import orjson

from fleet.k8s.addresses import each_of
from fleet.k8s.objects import ServiceView
from fleet.k8s.pods import ContainerSpec, MountSpec, ObjectSource, Pod, ScriptSpec, VolumeSpec
from fleet.profile.machine import real_path
from fleet.runtime.container_config import (
    STRINGS_MAX,
    OverBudgetError,
    expand,
    full_name,
    left_of,
    own_variables,
    pod_dns,
    short_name,
    user_json,
    value_of,
)
from fleet.runtime.files import HOST, layer_of
from fleet.runtime.program import Process

from .container_files import HOST_FILES, VolumePlace, view
from .images import files_of_image, is_shell_image, working_dir
from .surroundings import Surroundings

MASTER_SERVICE = ("default", "kubernetes")
NO_ADDRESS = frozenset(("", "None"))
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TOKEN_MODE = 0o600
"""Of a token in a volume that is given to a group. Source: projected.go, collectData."""
_PRINTS_ALL = re.compile(r"\b(?:env|printenv)\b")
_MANAGED_HOSTS = "# Kubernetes-managed hosts file.\n"
_HOST_NETWORK_HOSTS = "# Kubernetes-managed hosts file (host network).\n"
_PATHS = str.maketrans("./", "/.")
"""Of the name of a sysctl to its path below /proc/sys."""
_LOCAL_HOSTS = (
    "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n"
    "fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"
)


def surroundings(process: Process) -> Surroundings:
    """Return what the command of a container finds; what is unknown stays so."""
    pod, spec = process.pod, process.spec
    script = spec.script or ScriptSpec()
    variables: Mapping[str, str] = {}
    mounts: list[MountSpec] = []
    error = ""
    try:
        if any(_PRINTS_ALL.search(word) for word in (*spec.command, *spec.args)):
            variables = environment(process)
        else:
            named = hostname(pod, process.sources.dns.domain)
            variables = {"HOSTNAME": named, **own_variables(process)}
        mounts = _mounts(script, variables)
    except OverBudgetError as over:
        error = str(over)
    files = view(
        process.files,
        mounts,
        _places(process),
        layer_of(pod.uid, spec.name),
        process.start_ns,
        known=_system_files(process),
        is_locked=spec.user.read_only_root,
        is_plain=is_shell_image(spec.image),
        is_own=True,
    )
    return Surroundings(
        variables,
        files,
        process.draw,
        process.start_wall_ns,
        user=_ids(spec),
        no_new_privs=spec.user.no_new_privs,
        cwd=script.working_dir or working_dir(spec.image),
        error=error,
    )


def whole_surroundings(process: Process, given: bytes | None) -> Surroundings:
    """Return what somebody finds who runs a command in a container at an instant."""
    pod, spec = process.pod, process.spec
    script = spec.script or ScriptSpec()
    try:
        variables = environment(process)
        mounts = _mounts(script, variables)
    except OverBudgetError:  # such a container was not started: nobody is in it
        variables, mounts = {}, []
    volumes = _places(process)
    for volume in pod.spec.volumes:
        # What it shows is unknown: it is there, and empty.
        volumes.setdefault(volume.name, VolumePlace((pod.uid, volume.name)))
    files = view(
        process.files,
        mounts,
        volumes,
        layer_of(pod.uid, spec.name),
        process.start_ns,
        system={**files_of_image(spec.image), **_system_files(process)},
        is_locked=spec.user.read_only_root,
    )
    return Surroundings(
        variables,
        files,
        process.draw,
        process.start_wall_ns,
        is_whole=True,
        input=given,
        user=_ids(spec),
        no_new_privs=spec.user.no_new_privs,
        cwd=script.working_dir or working_dir(spec.image),
    )


def _ids(spec: ContainerSpec) -> tuple[int, int]:
    """Return the uid and gid of a container's processes."""
    shown = orjson.loads(user_json(spec.user))["linux"]
    return shown["uid"], shown["gid"]


def environment(process: Process) -> dict[str, str]:
    """Return all variables of a container: the image's PATH, the kubelet's, the runtime's.

    Raises OverBudgetError.
    Source: makeEnvironmentVariables; containerd sets HOSTNAME.
    """
    pod, script = process.pod, process.spec.script or ScriptSpec()
    services = _service_variables(
        process.sources.services, pod.namespace, has_links=script.has_service_links
    )
    found: dict[str, str] = {"PATH": PATH, "HOSTNAME": hostname(pod, process.sources.dns.domain)}
    own: dict[str, str] = {}
    room = STRINGS_MAX
    for each in script.env_from:
        assert each.source is not None, each
        texts = process.sources.texts(each.source.kind, pod.namespace, each.source.name) or {}
        room = left_of(room, *texts.values())
        own |= {each.name + key: text for key, text in texts.items()}
    seen = ChainMap(own, services)
    text: str | None
    for variable in script.variables:
        if variable.source is None:
            text = expand(variable.value, seen)
        elif (text := value_of(process, variable.source)) is None:
            continue
        own[variable.name] = text
        room = left_of(room, variable.name, text)
    found |= own
    for name, text in services.items():
        found.setdefault(name, text)
    found.setdefault("HOME", "/root")
    return found


def _service_variables(
    services: Mapping[tuple[str, str], ServiceView], namespace: str, *, has_links: bool
) -> dict[str, str]:
    """Return the variables of a namespace: those of the master always, of others with links."""
    found: dict[str, ServiceView] = {}
    for key, service in services.items():
        if service.cluster_ip in NO_ADDRESS or not service.ports:
            continue
        if key == MASTER_SERVICE:
            found.setdefault(service.name, service)
        elif service.namespace == namespace and has_links:
            found[service.name] = service
    made: dict[str, str] = {}
    for service in found.values():
        _add_service(made, service)
    return made


def _add_service(made: dict[str, str], service: ServiceView) -> None:
    prefix = _variable_name(service.name)
    host = service.cluster_ip
    made[f"{prefix}_SERVICE_HOST"] = host
    made[f"{prefix}_SERVICE_PORT"] = str(service.ports[0].port)
    for each in service.ports:
        if each.name:
            made[f"{prefix}_SERVICE_PORT_{_variable_name(each.name)}"] = str(each.port)
    for at, each in enumerate(service.ports):
        protocol = each.protocol.lower()
        url = f"{protocol}://{f'[{host}]' if ':' in host else host}:{each.port}"
        if not at:
            made[f"{prefix}_PORT"] = url
        start = f"{prefix}_PORT_{each.port}_{each.protocol.upper()}"
        made[start] = url
        made[f"{start}_PROTO"] = protocol
        made[f"{start}_PORT"] = str(each.port)
        made[f"{start}_ADDR"] = host


def _variable_name(name: str) -> str:
    return name.replace("-", "_").upper()


def hostname(pod: Pod, cluster_domain: str) -> str:
    """Return the host name that the processes of a pod see. Source: GetNodenameForKernel."""
    if pod.spec.host_network:
        return pod.node_name
    return full_name(pod, cluster_domain) if pod.spec.network.is_fqdn else short_name(pod)


def _mounts(script: ScriptSpec, variables: Mapping[str, str]) -> list[MountSpec]:
    return [
        each._replace(inner=expand(each.expression, variables)) if each.expression else each
        for each in script.mounts
    ]


def _places(process: Process) -> dict[str, VolumePlace]:
    """Return where the files of the volumes are; one of which nothing is known is left out."""
    found = {}
    for volume in process.pod.spec.volumes:
        where = _place(process.pod, process.spec, volume) or _shown(process, volume)
        if where is not None:
            found[volume.name] = where
    return found


def _place(pod: Pod, spec: ContainerSpec, volume: VolumeSpec) -> VolumePlace | None:
    """Return where a volume is that containers write to."""
    group = spec.user.fs_group
    if volume.kind == "emptyDir":
        key = (pod.uid, volume.name)
        return VolumePlace(key, group=group, in_memory=volume.in_memory, is_open=True)
    if volume.host_path:
        return VolumePlace(HOST, real_path(volume.host_path).rstrip("/"))
    if volume.image and (found := files_of_image(volume.image)):
        return VolumePlace((pod.uid, volume.name), shown=found, read_only=True)
    if volume.claim:
        return VolumePlace((f"claims of {pod.namespace}", volume.claim), group=group)
    return None


def _shown(process: Process, volume: VolumeSpec) -> VolumePlace | None:
    """Return the files that a kubelet puts into a volume, None if it does not know them all."""
    pod, spec = process.pod, process.spec
    texts: dict[str, str] = {}
    modes: dict[str, int] = {}
    for source in volume.sources:
        found = process.sources.texts(source.kind, pod.namespace, source.name)
        if found is None and not source.optional:
            return None
        texts |= _files(source, found or {})
        pairs = zip(source.paths, source.modes, strict=False)
        modes |= {f"/{path}": mode for path, mode in pairs if mode is not None}
    for token in volume.tokens:
        texts[f"/{token.path}"] = process.sources.token(pod.uid, token)
        if spec.user.fs_group is not None:
            modes[f"/{token.path}"] = _TOKEN_MODE
    for file in volume.downward:
        texts[f"/{file.path}"] = value_of(process, file.source) or ""
        if file.mode is not None:
            modes[f"/{file.path}"] = file.mode
    if not texts and volume.kind not in {"configMap", "secret", "projected", "downwardAPI"}:
        return None
    return VolumePlace(
        (pod.uid, volume.name),
        shown=texts,
        read_only=True,
        mode=volume.mode,
        modes=modes,
        group=spec.user.fs_group,
        in_memory=volume.kind in {"secret", "projected", "downwardAPI"},
    )


def _files(source: ObjectSource, texts: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Return the files of an object: those that are named, else all of them."""
    if not source.keys:
        return [(f"/{key}", text) for key, text in texts.items()]
    paths = source.paths or source.keys
    pairs = zip(source.keys, paths, strict=True)
    return [(f"/{path}", texts[key]) for key, path in pairs if key in texts]


def _named(ips: str, name: str) -> str:
    return "".join(f"{ip}\t{name}\n" for ip in each_of(ips))


def _system_files(process: Process) -> Mapping[str, str]:
    """Return what a kubelet and a runtime put into every container.

    Source: pkg/kubelet/kubelet_pods.go, managedHostsFileContent, nodeHostsFileContent.
    """
    pod = process.pod
    if pod.spec.host_network:
        hosts = _HOST_NETWORK_HOSTS + HOST_FILES["/etc/hosts"]
    else:
        short, full = short_name(pod), full_name(pod, process.sources.dns.domain)
        names = short if short == full else f"{full}\t{short}"
        hosts = f"{_MANAGED_HOSTS}{_LOCAL_HOSTS}{_named(process.pod_ips, names)}"
    if pod.spec.host_aliases:
        hosts += "\n# Entries added by HostAliases.\n"
        hosts += "".join("\t".join(each) + "\n" for each in pod.spec.host_aliases)
    sysctls = {
        f"/proc/sys/{key.translate(_PATHS)}": f"{value}\n"
        for key, value in pod.spec.network.sysctls
    }
    return {
        **sysctls,
        "/etc/hostname": f"{hostname(pod, process.sources.dns.domain)}\n",
        "/etc/hosts": hosts,
        "/etc/resolv.conf": _resolv_conf(process),
        "/dev/null": "",
        "/dev/termination-log": "",
    }


def _resolv_conf(process: Process) -> str:
    found = pod_dns(process.pod, process.sources.dns, process.host_ips)
    text = f"search {' '.join(found.searches)}\n" if found.searches else ""
    text += "".join(f"nameserver {each}\n" for each in found.servers)
    shown = " ".join(f"{name}:{value}" if value else name for name, value in found.options)
    return text + (f"options {shown}\n" if shown else "")
