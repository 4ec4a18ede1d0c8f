"""What a kubelet makes of the configuration of containers: variables, mounts, names, DNS, users.

Source: pkg/kubelet/kubelet_pods.go, makeEnvironmentVariables, podFieldSelectorRuntimeValue,
makeMounts; pkg/api/v1/resource/helpers.go, ExtractContainerResourceValue; pkg/kubelet/util/util.go,
GetNodenameForKernel; third_party/forked/golang/expansion/expand.go; pkg/kubelet/network/dns/dns.go,
GetPodDNS, appendDNSConfig, mergeDNSOptions, formDNSConfigFitsLimits.
Differs: the machine's own resolv.conf has one server and no domain; envFrom takes binaryData too.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import orjson

from fleet.k8s.addresses import by_family, each_of, first_of
from fleet.k8s.pod_template import REFERENCE
from fleet.k8s.pods import NO_SCRIPT, ContainerSpec, EnvRef, Pod, ScriptSpec, UserSpec
from fleet.profile.kubelet_configuration import DNSSettings
from fleet.profile.machine import real_path
from fleet.quantity import parse_quantity
from fleet.runtime.files import DIRECTORY, HOST, Mounted
from fleet.runtime.program import Process

ARGUMENT_MAX = 128 << 10
"""Of one argument or variable. Source: Linux, include/uapi/linux/binfmts.h, MAX_ARG_STRLEN."""
STRINGS_MAX = 2 << 20
"""Of all together. Source: Linux, fs/exec.c, bprm_stack_limits, with a stack of 8 MiB."""
TOO_MANY_ARGUMENTS = "argument list too long"
HOSTNAME_MAX, FQDN_MAX = 63, 64
PODS_DIRECTORY = "/var/lib/kubelet/pods"
SERVERS_MAX, SEARCHES_MAX = 3, 32  # validation.MaxDNSNameservers, MaxDNSSearchPaths
SEARCH_CHARS_MAX, PATH_CHARS_MAX = 2048, 253
_EXCEEDED = "limits were exceeded, some"
WINDOWS_ROOT = "ContainerAdministrator"
UNKNOWN_UID = 65532
"""The user of an image that must not be root's and names none: "nonroot" of distroless."""
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")
_BLANK = " \t"


class OverBudgetError(Exception):
    """A command costs more than fleet spends on it, or than Linux gives to a process."""


def config_error(
    process: Process,
    may_write: Callable[[Pod, ContainerSpec], bool],
    *,
    windows: bool = False,
    recursive: bool = True,
    has_env_files: bool = True,
) -> str:
    """Return why a container cannot be configured as its pod asks for, "" if it can.

    `may_write`: whether a container may write files that fleet knows nothing of. `recursive`: the
    pod's runtime handler supports recursive read-only mounts. `has_env_files`: the kubelet reads
    variables from files; one that does not leaves them empty.
    Source: pkg/kubelet/kuberuntime/kuberuntime_container.go, generateContainerConfig.
    """
    pod, spec = process.pod, process.spec
    script = spec.script or NO_SCRIPT
    for source in (each.source for each in script.variables):
        if source and source.kind == "Resource" and source.name and not pod.find(source.name):
            return f"container {source.name} not found"
    refers = any(
        "$(" in each.value or (each.source is not None and each.source.kind == "File")
        for each in script.variables
    )
    if script.mounts or refers:
        try:
            error = _env_file_error(script, process, may_write) if has_env_files else ""
            error = error or _mount_error(process, own_variables(process), recursive=recursive)
        except OverBudgetError as over:
            error = str(over)
        if error:
            return error
    shown = f"{pod.full_name}({pod.uid})"
    if windows:
        return windows_non_root_error(spec.user, spec.name, shown)
    return non_root_error(spec.user, spec.name, shown)


# ---- variables ----


def own_variables(process: Process) -> dict[str, str]:
    """Return the variables that a container's spec names and that are known.

    A value may refer to the variables before it. Raises OverBudgetError.
    """
    known: dict[str, str] = {}
    room = STRINGS_MAX
    script = process.spec.script or NO_SCRIPT
    for each in script.env_from:
        named = {each.name + key: text for key, text in _texts(process, each.source).items()}
        room = left_of(room, *named, *named.values())
        known |= named
    for each in script.variables:
        source = each.source
        found = expand(each.value, known) if source is None else value_of(process, source)
        if found is not None:
            known[each.name] = found
            room = left_of(room, each.name, found)
    return known


def left_of(room: int, *texts: str) -> int:
    """Return what is left for the variables and arguments of a process. Raises OverBudgetError."""
    room -= sum(map(len, texts))
    if room < 0 or any(len(text) > ARGUMENT_MAX for text in texts):
        raise OverBudgetError(TOO_MANY_ARGUMENTS)
    return room


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by the variable of that name, if there is one, and `$$` by `$`.

    Raises OverBudgetError before a text is made that no process can be given.
    """
    room = ARGUMENT_MAX

    def replace(match: re.Match[str]) -> str:
        nonlocal room
        found = "$" if match[1] is None else variables.get(match[1], match[0])
        room = left_of(room, found)
        return found

    return REFERENCE.sub(replace, text) if "$" in text else text


def expanded(words: tuple[str, ...], variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return a command line with its variables replaced. Raises OverBudgetError."""
    room, found = STRINGS_MAX, []
    for word in words:
        found.append(expand(word, variables))
        room = left_of(room, found[-1])
    return tuple(found)


def value_of(process: Process, source: EnvRef) -> str | None:
    """Return the value of a source, None if it is unknown."""
    pod = process.pod
    if source.kind == "Field":
        return _field(process, source.key)
    if source.kind == "Resource":
        wanted = pod.find(source.name) if source.name else process.spec
        return None if wanted is None else _resource(process, wanted, source)
    if source.kind in {"ConfigMap", "Secret"}:
        return _texts(process, source).get(source.key)
    if source.kind == "File":
        text = _env_file(process, source)
        return None if text is None else env_file_value(text, source.key) or None
    return None


def _texts(process: Process, source: EnvRef | None) -> Mapping[str, str]:
    assert source is not None, process.spec.name
    return process.sources.texts(source.kind, process.pod.namespace, source.name) or {}


def _field(process: Process, path: str) -> str | None:
    pod = process.pod
    found = _SUBSCRIPT.fullmatch(path)
    if found is not None:
        return dict(pod.labels if found[1] == "labels" else pod.annotations).get(found[2], "")
    pod_ips = by_family(process.pod_ips, process.host_ips)
    return {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": pod.node_name,
        "spec.serviceAccountName": pod.spec.service_account,
        "status.podIP": first_of(pod_ips),
        "status.podIPs": pod_ips,
        "status.hostIP": first_of(process.host_ips),
        "status.hostIPs": process.host_ips,
        "metadata.labels": _map(pod.labels),
        "metadata.annotations": _map(pod.annotations),
    }.get(path)


def _map(values: Iterable[tuple[str, str]]) -> str:
    """Source: pkg/fieldpath/fieldpath.go, FormatMap."""
    return "\n".join(f"{key}={orjson.dumps(value).decode()}" for key, value in sorted(values))


def _resource(process: Process, spec: ContainerSpec, source: EnvRef) -> str | None:
    """Return an amount in parts of the divisor, rounded up; None if it is unknown.

    What has no limit may have all of its pod's, else of the node's.
    Source: pkg/kubelet/kubelet_resources.go, defaultPodLimitsForDownwardAPI.
    """
    kind, _, name = source.key.partition(".")
    asked = orjson.loads(spec.resources_json or b"{}").get(kind, {}).get(name)
    if asked is None:
        if kind == "requests":
            return "0"
        own = orjson.loads(process.pod.spec.own_json or b"{}").get("limits", {})
        asked = own.get(name) or process.sources.allocatable(name)
        if not asked:
            return None
    divisor = parse_quantity(source.divisor if source.divisor not in {"", "0"} else "1")
    return str(-(-parse_quantity(asked).nano // max(divisor.nano, 1)))


# ---- files of variables: fileKeyRef ----


def _env_file_error(
    script: ScriptSpec, process: Process, may_write: Callable[[Pod, ContainerSpec], bool]
) -> str:
    """Return which variable of a container cannot be read from its file, "" if all can.

    A file that only programs fleet knows nothing of can have written is taken to be there.
    Source: pkg/kubelet/kubelet_pods.go, makeEnvironmentVariables.
    """
    pod = process.pod
    for source in (each.source for each in script.variables):
        if source is None or source.kind != "File":
            continue
        name = source.name
        if not any(each.name == name and each.mounted for each in pod.spec.volumes):
            return f'cannot find the volume "{name}" referenced by FileKeyRef'
        text = _env_file(process, source)
        if text is None and _may_be_written(process, name, may_write):
            continue
        value = None if text is None else env_file_value(text, source.key)
        if value is None:
            return "couldn't parse env file"
        if not value and not source.optional:
            path = f"{PODS_DIRECTORY}/{pod.uid}/volumes/kubernetes.io~empty-dir/{name}"
            path = posixpath.normpath(f"{path}/{source.path}")
            return f'environment variable key "{source.key}" not found in file "{path}"'
    return ""


def _env_file(process: Process, source: EnvRef) -> str | None:
    if process.files is None:
        return None
    key = (process.pod.uid, source.name)
    path = posixpath.normpath(f"/{source.path}")
    found = process.files.read(key, path, process.start_ns)
    return None if found is None or found.text == DIRECTORY else found.text


def _may_be_written(
    process: Process, volume: str, may_write: Callable[[Pod, ContainerSpec], bool]
) -> bool:
    """Return whether another container may have written to a volume what fleet does not know."""
    for spec in process.pod.spec.all_containers:
        mounts = spec.script.mounts if spec.script is not None else ()
        has_it = any(each.volume == volume and not each.read_only for each in mounts)
        if spec.name != process.spec.name and has_it and may_write(process.pod, spec):
            return True
    return False


def env_file_value(text: str, key: str) -> str | None:  # noqa: PLR0911 - one for each fault of a line
    """Return the value of a key, "" if the file has none, None if a line cannot be parsed.

    Values stand in single quotes, over several lines if need be; what follows the key is not read.
    Source: pkg/kubelet/util/env/env_util.go, ParseEnv.
    """
    lines = iter(text.replace("\r\n", "\n").removesuffix("\n").split("\n"))
    for raw in lines:
        line = raw.lstrip(_BLANK)
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name or name != name.rstrip(_BLANK):
            return None
        if value.startswith(tuple(_BLANK)):
            if name == key:
                return ""
            continue
        if not value.startswith("'"):
            return None
        found, quote, rest = value[1:].partition("'")
        while not quote:
            following = next(lines, None)
            if following is None:
                return None
            more, quote, rest = following.partition("'")
            found += f"\n{more}"
        if rest.lstrip(_BLANK) and not rest.lstrip(_BLANK).startswith("#"):
            return None
        if name == key:
            return found
    return ""


# ---- mounts ----


def mounts_of(process: Process, variables: Mapping[str, str]) -> tuple[Mounted, ...]:
    """Return where a container has the files of its volumes, the deepest first.

    Only what containers write is known: an emptyDir, a host's directory, a claim.
    Raises OverBudgetError.
    """
    pod, script = process.pod, process.spec.script
    if script is None or not script.mounts:
        return ()
    volumes = {each.name: each for each in pod.spec.volumes}
    found = []
    for mount in script.mounts:
        inner = expand(mount.expression, variables) if mount.expression else mount.inner
        volume, root = volumes.get(mount.volume), ""
        key: tuple[str, str] | None = None
        if volume is not None and volume.kind == "emptyDir":
            key = (pod.uid, volume.name)
        elif volume is not None and volume.host_path:
            key, root = HOST, real_path(volume.host_path).rstrip("/")
        elif volume is not None and volume.claim:
            key = (f"claims of {pod.namespace}", volume.claim)
        root += f"/{inner.strip('/')}" if inner.strip("/") else ""
        path = posixpath.normpath(f"/{mount.path}").replace("//", "/").rstrip("/")
        found.append(Mounted(path, key, root))
    return tuple(sorted(found, key=lambda each: -len(each.path)))


def _mount_error(process: Process, variables: Mapping[str, str], *, recursive: bool) -> str:
    """Return why a container cannot mount its volumes as it asks for, "" if it can.

    Source: pkg/kubelet/kubelet_pods.go, makeMounts, resolveRecursiveReadOnly; container/helpers.go,
    ExpandContainerVolumeMounts; pkg/volume/validation, ValidatePathNoBacksteps.
    """
    script = process.spec.script or NO_SCRIPT
    unread = {each.name for each in script.variables if each.source and each.name not in variables}
    is_read = all(_texts(process, each.source) for each in script.env_from)
    for mount in script.mounts:
        names = {match[1] for match in REFERENCE.finditer(mount.expression) if match[1]}
        if not names & unread and (is_read or names <= variables.keys()):
            missing = sorted(name for name in names if not variables.get(name))
            if missing:
                return f"missing value for {', '.join(missing)}"
            path = expand(mount.expression, variables) if mount.expression else mount.inner
            if path.startswith("/"):
                return f"error SubPath `{path}` must not be an absolute path"
            if ".." in path.split("/"):
                return f"unable to provision SubPath `{path}`: must not contain '..'"
        if mount.recursive and not recursive:
            return (
                f'failed to resolve recursive read-only mode: volume "{mount.volume}" requested '
                "recursive read-only mode, but it is not supported by the runtime"
            )
    return ""


# ---- host name ----


def hostname_error(pod: Pod, cluster_domain: str) -> str:
    """Return why a pod cannot have the host name that it asks for, "" if it can.

    Source: GetNodenameForKernel.
    """
    if not pod.spec.network.is_fqdn or pod.spec.host_network:
        return ""
    name = full_name(pod, cluster_domain)
    if not _domain(pod, cluster_domain) or len(name) <= FQDN_MAX:
        return ""
    return (
        f"failed to construct FQDN from pod hostname and cluster domain, FQDN {name} is too long "
        f"({FQDN_MAX} characters is the max, {len(name)} characters requested)"
    )


def short_name(pod: Pod) -> str:
    """Source: pkg/kubelet/kubelet_pods.go, GeneratePodHostNameAndDomain."""
    name = pod.spec.network.hostname_override or pod.spec.hostname or pod.name
    return name if len(name) <= HOSTNAME_MAX else name[:HOSTNAME_MAX].rstrip("-.")


def _domain(pod: Pod, cluster_domain: str) -> str:
    """Source: pkg/kubelet/kubelet_pods.go, GeneratePodHostNameAndDomain."""
    spec = pod.spec.network
    if not spec.subdomain or spec.hostname_override:
        return ""
    return f"{spec.subdomain}.{pod.namespace}.svc.{cluster_domain}"


def full_name(pod: Pod, cluster_domain: str) -> str:
    """Return the name with its domain, if it has one."""
    return ".".join(filter(None, (short_name(pod), _domain(pod, cluster_domain))))


# ---- DNS ----


class PodDNS(NamedTuple):
    """The settings of one pod, and what a kubelet says when it makes them."""

    servers: tuple[str, ...]
    searches: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    problems: tuple[str, ...] = ()  # the messages of DNSConfigForming
    lacks_server: bool = False  # clusterDNS is empty, and the pod needs one: MissingClusterDNS


def pod_dns(pod: Pod, settings: DNSSettings, host_ips: str) -> PodDNS:
    """Return what a kubelet gives the runtime of a pod's DNS."""
    spec = pod.spec.network
    is_host = spec.dns_policy == "Default" or (
        spec.dns_policy == "ClusterFirst" and pod.spec.host_network
    )
    is_cluster = not is_host and spec.dns_policy != "None"
    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: dict[str, str] = {}
    host_searches = settings.host_searches if settings.resolver_file else ()
    if is_cluster and settings.servers:
        servers, searches = settings.servers, host_searches
        if settings.domain:
            domain = f"svc.{settings.domain}"
            own = (f"{pod.namespace}.{domain}", domain, settings.domain)
            searches = _unique((*own, *host_searches))
        options["ndots"] = "5"
    elif is_host or is_cluster:
        if settings.resolver_file:
            servers, searches = settings.host_servers, host_searches
            options = dict(map(_option, settings.host_options))
        else:
            servers = tuple("::1" if ":" in each else "127.0.0.1" for each in each_of(host_ips))
            searches = (".",)
    if spec.nameservers or spec.searches or spec.options:
        servers = _unique((*servers, *spec.nameservers))
        searches = _unique((*searches, *spec.searches))
    shown, problem = _fitting(searches)
    problems = (problem,) if problem else ()
    if len(servers) > SERVERS_MAX:
        servers = servers[:SERVERS_MAX]
        text = "nameservers have been omitted, the applied nameserver line is"
        problems = (f"Nameserver {_EXCEEDED} {text}: {' '.join(servers)}", *problems)
    options |= dict(spec.options)
    lacks_server = is_cluster and not settings.servers
    return PodDNS(servers, tuple(shown), tuple(options.items()), problems, lacks_server)


def _option(text: str) -> tuple[str, str]:
    name, _, value = text.partition(":")
    return name, value


def resolver_file_problem(settings: DNSSettings) -> str:
    """Return what a kubelet says of a resolver file with too many search domains, "" of a good one.

    Source: CheckLimitsForResolvConf.
    """
    file, searches = settings.resolver_file, settings.host_searches
    count_max = SEARCHES_MAX - (3 if settings.domain else 0)
    if not file:
        return ""
    if len(searches) > count_max:
        return (
            f"Resolv.conf file '{file}' contains search line consisting of more than "
            f"{count_max} domains!"
        )
    if any(len(each) > PATH_CHARS_MAX for each in searches):
        return (
            f'Resolv.conf file "{file}" contains a search path which length is more than allowed '
            f"{PATH_CHARS_MAX} chars!"
        )
    if len(" ".join(searches)) > SEARCH_CHARS_MAX:
        return (
            f"Resolv.conf file '{file}' contains search line which length is more than allowed "
            f"{SEARCH_CHARS_MAX} chars!"
        )
    return ""


def _fitting(searches: tuple[str, ...]) -> tuple[list[str], str]:
    """Return the domains that fit into the file, and what is said of the others.

    Source: formDNSSearchFitsLimits.
    """
    found = [each for each in searches[:SEARCHES_MAX] if len(each) <= PATH_CHARS_MAX]
    while len(" ".join(found)) > SEARCH_CHARS_MAX:
        found.pop()
    if len(found) == len(searches):
        return found, ""
    text = "search paths have been omitted, the applied search line is"
    return found, f"Search Line {_EXCEEDED} {text}: {' '.join(found)}"


def _unique(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(found))


# ---- user ----


def non_root_error(user: UserSpec, name: str, pod: str) -> str:
    """Return why a container must not run as its user, "" if it may; `pod` is `name_ns(uid)`.

    Source: pkg/kubelet/kuberuntime/security_context_others.go, verifyRunAsNonRoot.
    Differs: images, whose user is not known, are taken to have one that is not root.
    """
    if not user.non_root or user.uid != 0:
        return ""
    return f'container\'s runAsUser breaks non-root policy (pod: "{pod}", container: {name})'


def windows_non_root_error(user: UserSpec, name: str, pod: str) -> str:
    """Return the same of a node of Windows, where numbers of users mean nothing.

    Source: pkg/kubelet/kuberuntime/security_context_windows.go, verifyRunAsNonRoot.
    """
    if not user.non_root or user.windows_name.lower() != WINDOWS_ROOT.lower():
        return ""
    return (
        f"container's runAsUserName ({user.windows_name}) which will be regarded as root identity "
        f'and will break non-root policy (pod: "{pod}", container: {name})'
    )


@lru_cache(maxsize=1024)
def user_json(user: UserSpec) -> bytes:
    """Render the user as the status of a container shows it, with sorted keys.

    Source: core/v1 ContainerUser; containerd's toCRIContainerUser.
    Differs: an image's own /etc/passwd and /etc/group are taken to add nothing.
    """
    uid = user.uid
    if uid is None:
        uid = UNKNOWN_UID if user.non_root else 0
    gid = user.gid if user.gid is not None else 0 if user.uid is not None else uid
    groups = ",".join(map(str, dict.fromkeys((gid, *user.groups))))
    return b'{"linux":{"gid":%d,"supplementalGroups":[%b],"uid":%d}}' % (gid, groups.encode(), uid)
