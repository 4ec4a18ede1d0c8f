"""What the command of a container finds when it starts: its variables and its volumes.

Source: pkg/kubelet/kubelet_pods.go, makeEnvironmentVariables, podFieldSelectorRuntimeValue,
ensureHostsFileContent; pkg/volume/{configmap,secret,projected,downwardapi};
pkg/api/v1/resource/helpers.go, ExtractContainerResourceValue.
Differs: sources of a projected volume other than these, as clusterTrustBundle, show no files.
"""

import posixpath
import re
from collections import ChainMap
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

import orjson

from fleet.k8s.addresses import by_family, each_of, first_of
from fleet.k8s.pods import (
    ContainerSpec,
    ObjectSource,
    Pod,
    PodUid,
    TokenSource,
    VolumeSpec,
)
from fleet.k8s.scripts import EnvRef, MountSpec, ScriptSpec
from fleet.profile.kubelet_configuration import DNSSettings
from fleet.profile.machine import real_path
from fleet.quantity import parse_quantity
from fleet.runtime.command import command_of
from fleet.runtime.env_file import env_file_value
from fleet.runtime.files import HOST, HOST_FILES, ContainerFiles, NodeFiles, VolumePlace, layer_of
from fleet.runtime.known_images import files_of_image, is_shell_image, working_dir
from fleet.runtime.resolv_conf import resolv_conf
from fleet.runtime.script import (
    PROGRAMS,
    STRINGS_MAX,
    expand,
    left_of,
    mount_error,
    subscripted,
    variables_of,
)
from fleet.runtime.security_context import non_root_error, user_json, windows_non_root_error
from fleet.runtime.shell.budget import OverBudgetError
from fleet.runtime.shell.surroundings import Surroundings

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOSTNAME_MAX, FQDN_MAX = 63, 64
USUAL_DOMAIN = DNSSettings().domain
PODS_DIRECTORY = "/var/lib/kubelet/pods"
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


class Sources(Protocol):
    """What a kubelet knows of the objects that pods refer to."""

    def texts(self, kind: str, namespace: str, name: str) -> Mapping[str, str] | None:
        """Return what a ConfigMap or Secret holds, None if that is unknown."""

    def token(self, uid: PodUid, source: TokenSource) -> str:
        """Return the token of a pod that a volume shows, "" if there is none."""

    def service_variables(self, namespace: str, *, has_links: bool) -> Mapping[str, str] | None:
        """Return the variables that Services make in a namespace, None if they are unknown."""

    def allocatable(self, resource: str) -> str:
        """Return what the node has of a resource for its pods, "" if that is unknown."""

    @property
    def dns(self) -> DNSSettings:
        """Return what the DNS settings of pods are made of."""


class NoSources:
    """Nothing is known."""

    __slots__ = ()

    def texts(self, _kind: str, _namespace: str, _name: str) -> Mapping[str, str] | None:
        """Return None."""
        return None

    def token(self, _uid: PodUid, _source: TokenSource) -> str:
        """Return nothing."""
        return ""

    def service_variables(self, _namespace: str, *, has_links: bool) -> Mapping[str, str] | None:  # noqa: ARG002
        """Return None."""
        return None

    def allocatable(self, _resource: str) -> str:
        """Return nothing."""
        return ""

    @property
    def dns(self) -> DNSSettings:
        """Return the usual."""
        return DNSSettings()


NO_SOURCES = NoSources()


class Place(NamedTuple):
    """Where a container runs, and since when."""

    pod_ips: str  # as the runtime tells them
    host_ips: str
    start_ns: int
    start_wall_ns: int
    draw: float  # of [0, 1), for random numbers
    sources: Sources = NO_SOURCES
    files: NodeFiles | None = None  # of the node, if somebody wrote any


def surroundings(files: NodeFiles, pod: Pod, spec: ContainerSpec, place: Place) -> Surroundings:
    """Return what the command of a container finds; what is unknown stays so."""
    script = spec.script
    assert script is not None, spec.name
    variables: Mapping[str, str] = {}
    mounts: list[MountSpec] = []
    error = ""
    try:
        if any(_PRINTS_ALL.search(word) for word in (*spec.command, *spec.args)):
            variables = environment(script, pod, spec, place)
        else:
            named = hostname(pod, place.sources.dns.domain)
            variables = {"HOSTNAME": named, **_own_variables(script, pod, spec, place)}
        mounts = _mounts(script, variables)
    except OverBudgetError as over:
        error = str(over)
    volumes = _places(pod, spec, place)
    layer, known = layer_of(pod.uid, spec.name), _system_files(pod, place)
    view = files.view(
        mounts,
        volumes,
        layer,
        place.start_ns,
        known=known,
        is_locked=spec.user.read_only_root,
        is_plain=is_shell_image(spec.image),
    )
    cwd = script.working_dir or working_dir(spec.image)
    return Surroundings(
        variables,
        view,
        place.draw,
        place.start_wall_ns,
        user=_ids(spec),
        no_new_privs=spec.user.no_new_privs,
        cwd=cwd,
        error=error,
    )


def whole_surroundings(
    files: NodeFiles, pod: Pod, spec: ContainerSpec, place: Place, given: bytes | None
) -> Surroundings:
    """Return what somebody finds who runs a command in a container at an instant."""
    script = spec.script or ScriptSpec()
    try:
        variables = environment(script, pod, spec, place)
        mounts = _mounts(script, variables)
    except OverBudgetError:  # such a container was not started: nobody is in it
        variables, mounts = {}, []
    volumes = _places(pod, spec, place)
    for volume in pod.spec.volumes:
        # What it shows is unknown: it is there, and empty.
        volumes.setdefault(volume.name, VolumePlace((pod.uid, volume.name)))
    view = files.view(
        mounts,
        volumes,
        layer_of(pod.uid, spec.name),
        place.start_ns,
        system={**files_of_image(spec.image), **_system_files(pod, place)},
        is_locked=spec.user.read_only_root,
    )
    return Surroundings(
        variables,
        view.written_by("exec"),
        place.draw,
        place.start_wall_ns,
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


def trial_surroundings(
    files: NodeFiles, pod: Pod, spec: ContainerSpec, place: Place
) -> Surroundings:
    """Return what a command of the kubelet finds in a container; what it writes is lost."""
    script = spec.script or ScriptSpec()
    found = surroundings(files, pod, spec._replace(script=script), place)
    assert isinstance(found.files, ContainerFiles), found
    found.files.as_replay()
    return found


def hook_surroundings(
    files: NodeFiles, pod: Pod, spec: ContainerSpec, place: Place
) -> Surroundings:
    """Return what the command of a hook finds; what it writes stays."""
    found = surroundings(files, pod, spec._replace(script=spec.script or ScriptSpec()), place)
    assert isinstance(found.files, ContainerFiles), found
    found.files.written_by("hook")
    return found


def environment(script: ScriptSpec, pod: Pod, spec: ContainerSpec, place: Place) -> dict[str, str]:
    """Return all variables of a container: the image's PATH, the kubelet's, the runtime's.

    Raises OverBudgetError.
    Source: makeEnvironmentVariables; containerd sets HOSTNAME.
    """
    services = place.sources.service_variables(pod.namespace, has_links=script.has_service_links)
    found: dict[str, str] = {"PATH": PATH, "HOSTNAME": hostname(pod, place.sources.dns.domain)}
    own: dict[str, str] = {}
    room = STRINGS_MAX
    for each in script.env_from:
        texts = place.sources.texts(each.kind, pod.namespace, each.name) or {}
        room = left_of(room, *texts.values())
        own |= {each.prefix + key: text for key, text in texts.items()}
    value = partial(_value, pod, spec, place)
    seen = ChainMap(own, dict(services or {}))
    text: str | None
    for variable in script.variables:
        if variable.source is None:
            text = expand(variable.value, seen)
        elif (text := value(variable.source)) is None:
            continue
        own[variable.name] = text
        room = left_of(room, variable.name, text)
    found |= own
    for name, text in (services or {}).items():
        found.setdefault(name, text)
    found.setdefault("HOME", "/root")
    return found


def hostname(pod: Pod, cluster_domain: str = USUAL_DOMAIN) -> str:
    """Return the host name that the processes of a pod see.

    Source: pkg/kubelet/util/util.go, GetNodenameForKernel.
    """
    if pod.spec.host_network:
        return pod.node_name
    return _full_name(pod, cluster_domain) if pod.spec.network.is_fqdn else _short_name(pod)


def hostname_error(pod: Pod, cluster_domain: str) -> str:
    """Return why a pod cannot have the host name that it asks for, "" if it can.

    Source: pkg/kubelet/util/util.go, GetNodenameForKernel.
    """
    if not pod.spec.network.is_fqdn or pod.spec.host_network:
        return ""
    name = _full_name(pod, cluster_domain)
    if not _domain(pod, cluster_domain) or len(name) <= FQDN_MAX:
        return ""
    return (
        f"failed to construct FQDN from pod hostname and cluster domain, FQDN {name} is too long "
        f"({FQDN_MAX} characters is the max, {len(name)} characters requested)"
    )


def _short_name(pod: Pod) -> str:
    """Source: pkg/kubelet/kubelet_pods.go, GeneratePodHostNameAndDomain."""
    name = pod.spec.network.hostname_override or pod.spec.hostname or pod.name
    return name if len(name) <= HOSTNAME_MAX else name[:HOSTNAME_MAX].rstrip("-.")


def _domain(pod: Pod, cluster_domain: str) -> str:
    """Source: pkg/kubelet/kubelet_pods.go, GeneratePodHostNameAndDomain."""
    spec = pod.spec.network
    if not spec.subdomain or spec.hostname_override:
        return ""
    return f"{spec.subdomain}.{pod.namespace}.svc.{cluster_domain}"


def _full_name(pod: Pod, cluster_domain: str) -> str:
    return ".".join(filter(None, (_short_name(pod), _domain(pod, cluster_domain))))


def config_error(
    pod: Pod,
    spec: ContainerSpec,
    place: Place,
    *,
    windows: bool = False,
    recursive: bool = True,
    has_env_files: bool = True,
) -> str:
    """Return why a container cannot be configured as its pod asks for, "" if it can.

    `recursive`: the pod's runtime handler supports recursive read-only mounts. `has_env_files`: the
    kubelet reads variables from files; one that does not leaves them empty.
    Source: pkg/kubelet/kuberuntime/kuberuntime_container.go, generateContainerConfig.
    """
    script = spec.script
    refers = script is not None and any(
        "$(" in each.value or (each.source is not None and each.source.kind == "File")
        for each in script.variables
    )
    if script is not None and (script.mounts or refers):
        try:
            error = _env_file_error(script, pod, spec, place) if has_env_files else ""
            variables = _own_variables(script, pod, spec, place)
            error = error or mount_error(script, variables, recursive=recursive)
        except OverBudgetError as over:
            error = str(over)
        if error:
            return error
    shown = f"{pod.full_name}({pod.uid})"
    if windows:
        return windows_non_root_error(spec.user, spec.name, shown)
    return non_root_error(spec.user, spec.image, spec.name, shown)


def _own_variables(
    script: ScriptSpec, pod: Pod, spec: ContainerSpec, place: Place
) -> dict[str, str]:
    return variables_of(script, partial(_value, pod, spec, place))


def _value(pod: Pod, spec: ContainerSpec, place: Place, source: EnvRef) -> str | None:
    """Return the value of a source, None if it is unknown."""
    if source.kind == "Field":
        return _field(pod, place, source.key)
    if source.kind == "Resource":
        wanted = pod.find(source.name) if source.name else spec
        return None if wanted is None else _resource(pod, wanted, source, place)
    if source.kind in {"ConfigMap", "Secret"}:
        texts = place.sources.texts(source.kind, pod.namespace, source.name)
        return None if texts is None else texts.get(source.key)
    if source.kind == "File":
        text = _env_file(pod, place, source)
        return None if text is None else env_file_value(text, source.key) or None
    return None


def _env_file_error(script: ScriptSpec, pod: Pod, spec: ContainerSpec, place: Place) -> str:
    """Return which variable of a container cannot be read from its file, "" if all can.

    A file that only programs fleet knows nothing of can have written is taken to be there.
    Source: pkg/kubelet/kubelet_pods.go, makeEnvironmentVariables.
    """
    for source in (each.source for each in script.variables):
        if source is None or source.kind != "File":
            continue
        name = source.name
        if not any(each.name == name and each.mounted for each in pod.spec.volumes):
            return f'cannot find the volume "{name}" referenced by FileKeyRef'
        text = _env_file(pod, place, source)
        if text is None and _may_be_written(pod, spec, name):
            continue
        value = None if text is None else env_file_value(text, source.key)
        if value is None:
            return "couldn't parse env file"
        if not value and not source.optional:
            path = f"{PODS_DIRECTORY}/{pod.uid}/volumes/kubernetes.io~empty-dir/{name}"
            path = posixpath.normpath(f"{path}/{source.path}")
            return f'environment variable key "{source.key}" not found in file "{path}"'
    return ""


def _env_file(pod: Pod, place: Place, source: EnvRef) -> str | None:
    if place.files is None:
        return None
    return place.files.text((pod.uid, source.name), f"/{source.path}", place.start_ns)


def _may_be_written(pod: Pod, reader: ContainerSpec, volume: str) -> bool:
    """Return whether another container may have written to a volume what fleet does not know."""
    for spec in pod.spec.all_containers:
        mounts = spec.script.mounts if spec.script is not None else ()
        words = command_of(spec)
        if spec.name == reader.name or (words and words[0].rpartition("/")[2] in PROGRAMS):
            continue
        if any(each.volume == volume and not each.read_only for each in mounts):
            return True
    return False


def _field(pod: Pod, place: Place, path: str) -> str | None:
    found = subscripted(path)
    if found is not None:
        kind, key = found
        return dict(pod.labels if kind == "labels" else pod.annotations).get(key, "")
    pod_ips = by_family(place.pod_ips, place.host_ips)
    return {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": pod.node_name,
        "spec.serviceAccountName": pod.spec.service_account,
        "status.podIP": first_of(pod_ips),
        "status.podIPs": pod_ips,
        "status.hostIP": first_of(place.host_ips),
        "status.hostIPs": place.host_ips,
        "metadata.labels": _map(pod.labels),
        "metadata.annotations": _map(pod.annotations),
    }.get(path)


def _map(values: Iterable[tuple[str, str]]) -> str:
    """Source: pkg/fieldpath/fieldpath.go, FormatMap."""
    return "\n".join(f"{key}={orjson.dumps(value).decode()}" for key, value in sorted(values))


def _resource(pod: Pod, spec: ContainerSpec, source: EnvRef, place: Place) -> str | None:
    """Return an amount in parts of the divisor, rounded up; None if it is unknown.

    What has no limit may have all of its pod's, else of the node's.
    Source: pkg/kubelet/kubelet_resources.go, defaultPodLimitsForDownwardAPI.
    """
    kind, _, name = source.key.partition(".")
    asked = orjson.loads(spec.resources_json or b"{}").get(kind, {}).get(name)
    if asked is None:
        if kind == "requests":
            return "0"
        own = orjson.loads(pod.spec.own_json or b"{}").get("limits", {})
        asked = own.get(name) or place.sources.allocatable(name)
        if not asked:
            return None
    divisor = parse_quantity(source.divisor if source.divisor not in {"", "0"} else "1")
    return str(-(-parse_quantity(asked).nano // max(divisor.nano, 1)))


def _mounts(script: ScriptSpec, variables: Mapping[str, str]) -> list[MountSpec]:
    return [
        each._replace(inner=expand(each.expression, variables)) if each.expression else each
        for each in script.mounts
    ]


def _places(pod: Pod, spec: ContainerSpec, place: Place) -> dict[str, VolumePlace]:
    """Return where the files of the volumes are; one of which nothing is known is left out."""
    found = {}
    for volume in pod.spec.volumes:
        where = _place(pod, spec, volume) or _shown(pod, spec, place, volume)
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


def _shown(pod: Pod, spec: ContainerSpec, place: Place, volume: VolumeSpec) -> VolumePlace | None:
    """Return the files that a kubelet puts into a volume, None if it does not know them all."""
    texts: dict[str, str] = {}
    modes: dict[str, int] = {}
    for kind, sources in (("ConfigMap", volume.config_maps), ("Secret", volume.secrets)):
        for source in sources:
            found = place.sources.texts(kind, pod.namespace, source.name)
            if found is None and not source.optional:
                return None
            texts |= _files(source, found or {})
            pairs = zip(source.paths, source.modes, strict=False)
            modes |= {f"/{path}": mode for path, mode in pairs if mode is not None}
    for token in volume.tokens:
        texts[f"/{token.path}"] = place.sources.token(pod.uid, token)
        if spec.user.fs_group is not None:
            modes[f"/{token.path}"] = _TOKEN_MODE
    for file in volume.downward:
        texts[f"/{file.path}"] = _value(pod, spec, place, file.source) or ""
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


def _system_files(pod: Pod, place: Place) -> Mapping[str, str]:
    """Return what a kubelet and a runtime put into every container.

    Source: pkg/kubelet/kubelet_pods.go, managedHostsFileContent, nodeHostsFileContent.
    """
    if pod.spec.host_network:
        hosts = _HOST_NETWORK_HOSTS + HOST_FILES["/etc/hosts"]
    else:
        short, full = _short_name(pod), _full_name(pod, place.sources.dns.domain)
        names = short if short == full else f"{full}\t{short}"
        hosts = f"{_MANAGED_HOSTS}{_LOCAL_HOSTS}{_named(place.pod_ips, names)}"
    if pod.spec.host_aliases:
        hosts += "\n# Entries added by HostAliases.\n"
        hosts += "".join("\t".join(each) + "\n" for each in pod.spec.host_aliases)
    sysctls = {
        f"/proc/sys/{key.translate(_PATHS)}": f"{value}\n"
        for key, value in pod.spec.network.sysctls
    }
    return {
        **sysctls,
        "/etc/hostname": f"{hostname(pod, place.sources.dns.domain)}\n",
        "/etc/hosts": hosts,
        "/etc/resolv.conf": resolv_conf(pod, place.sources.dns, place.host_ips),
        "/dev/null": "",
        "/dev/termination-log": "",
    }
