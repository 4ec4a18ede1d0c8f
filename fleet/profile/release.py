"""What a kubelet of each minor does otherwise: one record per minor, one question per field.

The answers are in releases.toml. Everything else asks `NodeModel.release`; nothing compares
versions. Its table `gates` names the feature gate that decides a field, so that `featureGates` of a
profile's kubeletConfiguration turns the field on or off.
Source: pkg/kubelet, pkg/features/kube_features.go and client-go of v1.34.4, v1.35.4, v1.36.3 and
v1.37.2, each compared with the one before, and the requests of a real kubelet of each.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TypeGuard

from fleet.errors import UsageError

_VERSION = re.compile(r"v?([0-9]+)\.([0-9]+)(?:\.([0-9]+))?(.*)")
SKEW_MAX = 3
"""How many minors a kubelet may be older than its API server. Source: the version skew policy."""


def minor_of(version: str) -> str:
    """Return the minor of a version: 1.36 of v1.36.3."""
    return ".".join(version.removeprefix("v").split(".")[:2])


@dataclass(frozen=True, slots=True)
class Release:
    """What the kubelets of one minor do; the defaults are those of the oldest minor."""

    newest: str  # the patch release whose sources were read

    # What they ask for
    streams_lists: bool = False  # a watch that begins with the present state, else a LIST first
    resets_backoff: bool = False  # of a watch every two minutes, also while the server is away
    watches_certificate_requests: bool = False  # PodCertificateRequests of their node
    relists_on_demand: bool = False  # after a sync that did something, not at the next second
    limits_events_at_zero: bool = True  # eventRecordQPS: 0 is the client's default; else no limit

    # Node
    declares_features: bool = False  # status.declaredFeatures, and pods are admitted by them
    says_user_namespace: bool = False  # nodeInfo.runningInUserNamespace
    node_event_version: str = ""  # apiVersion of what events about the Node refer to
    node_event_uid: str = "name"  # its uid: the "name" of the Node, "" for none, or its real "uid"
    updates_volume_limits: bool = False  # CSINode: nodeAllocatableUpdatePeriodSeconds of a driver
    owns_csinode: bool = False  # makes it again if it is another Node's
    awaits_node: bool = False  # before it watches pods: a snapshot without its Node is none
    has_storage_health: bool = False  # CSINode has a status, which stays empty
    rereads_node: bool = False  # for a pod that only its node affinity keeps out

    # Pods
    keeps_started: bool = False  # a restarted kubelet goes by the status that stands there
    heeds_unadmitted: bool = True  # syncs for a change of a refused pod, or of a mirror
    reports_ready_sandbox: bool = False  # before images are pulled, with a status of its own
    explains_sandbox: bool = False  # why PodReadyToStartContainers is False
    has_pod_resources: bool = True
    keeps_memory: bool = True  # of a resized pod: the request that its status had before
    resizes_whole_pods: bool = False  # and shows resources of pods as a whole
    resizes_init_containers: bool = False  # which are no sidecars
    counts_whole_pods: bool = False  # at admission by their status, not container by container
    reports_resizes: bool = False  # events when a resize begins, is put off, cannot be or fails
    restarts_all_containers: bool = False  # where a rule says so; lastState then outlives them
    caps_crash_loops: bool = False  # crashLoopBackOff.maxContainerRestartPeriod
    awaits_back_off: bool = False  # of a container, before its pod is tried again; else 10 s
    has_env_files: bool = False
    has_new_sysctls: bool = False  # that are safe
    spares_huge_pages: bool = False  # memory that pods cannot have is not available to them
    counts_ended: bool = False  # a pod with a container that has ended was initialized
    limits_sidecars: bool = False  # evicts a pod for the disk that a sidecar uses above its limit
    shows_device_health: bool = False
    explains_device_health: bool = False
    cancels_probes: bool = False  # their commands, once the pod begins to end
    configures_each_sync: bool = True  # DNS and image volumes, also where nothing is started

    # Images
    checks_credentials: bool = False  # of pods that use an image which another pod had pulled
    asks_providers_with_tokens: bool = True
    reports_secrets_early: bool = True  # that some lack, at each sync; else once a pull failed
    space_text: str = (
        "Failed to garbage collect required amount of images. Attempted to free {wanted} bytes, "
        "but only found {freed} bytes eligible to free."
    )

    # Containers: `{}` is the name
    created_text: str = "Created container: {}"
    started_text: str = "Started container {}"

    lost_port_text: str = 'strconv.Atoi: parsing "{}": invalid syntax'  # of a probe, its name

    # Volumes
    names_path_type: bool = False  # which a hostPath has in place of the one that was asked for

    # Their own endpoints
    extends_sockets: bool = False  # WebSockets that the API server only passes on

    @property
    def name(self) -> str:
        """Return the minor, such as `1.36`."""
        return minor_of(self.newest)

    @property
    def declared_features(self) -> tuple[str, ...]:
        """Return what a kubelet lists in `status.declaredFeatures`, sorted."""
        if not self.declares_features:
            return ()
        return tuple(sorted(GATES[field] for field in DECLARED if getattr(self, field)))

    def with_gates(self, stated: Mapping[str, bool]) -> "Release":
        """Return what a kubelet does whose configuration turns feature gates on or off."""
        changed = {field: stated[gate] for field, gate in GATES.items() if gate in stated}
        return replace(self, **changed) if changed else self  # type: ignore[arg-type]


DECLARED = (
    "extends_sockets",
    "resizes_init_containers",
    "resizes_whole_pods",
    "restarts_all_containers",
)
"""Source: component-helpers/nodedeclaredfeatures/features; each is declared by its gate's name."""
_FILE = tomllib.loads(Path(__file__).with_name("releases.toml").read_text(encoding="utf-8"))
GATES: dict[str, str] = _FILE["gates"]
"""The feature gate that decides a field."""
RELEASES = tuple(
    accumulate(_FILE["minor"], lambda last, new: replace(last, **new), initial=Release(""))
)[1:]
V1_34, V1_35, V1_36, V1_37 = RELEASES
MINORS = f"{RELEASES[0].name} to {RELEASES[-1].name}"


@lru_cache(maxsize=64)
def parse_version(text: str) -> tuple[int, int, int]:
    """Return major, minor, patch of `v1.36.3`, with or without a vendor's suffix."""
    found = _VERSION.fullmatch(checked_version(text))
    assert found is not None
    return int(found[1]), int(found[2]), int(found[3] or 0)


def checked_version(text: object) -> str:
    """Check a version, and give it the leading `v` that a kubelet reports."""
    if not is_version(text):
        raise ValueError(f"{text!r} is not a version such as v1.36.3")
    return text if text.startswith("v") else f"v{text}"


def checked_kubelet(text: str) -> str:
    """Check the whole version of a kubelet that fleet emulates, for --kubelet-version."""
    found = _VERSION.fullmatch(text)
    if found is None or not found[3] or minor_of(text) not in {each.name for each in RELEASES}:
        raise ValueError(f"{text!r} is not a version of {MINORS} such as {RELEASES[0].newest}")
    return checked_version(text)


def is_version(text: object) -> TypeGuard[str]:
    """Return whether a kubelet may be of this version."""
    return isinstance(text, str) and _VERSION.fullmatch(text) is not None


def release_of(version: str) -> Release:
    """Return the release of a version: the nearest one of those that fleet emulates."""
    minor = parse_version(version)[:2]
    found = [each for each in RELEASES if parse_version(each.newest)[:2] <= minor]
    return found[-1] if found else RELEASES[0]


def emulated_version(asked: str, server: str) -> str:
    """Return the version that Nodes say: never above the server's, nor of an unknown minor."""
    version = min(asked, server, key=parse_version)
    newest = RELEASES[-1].newest
    return newest if parse_version(version)[:2] > parse_version(newest)[:2] else version


def explain_version(asked: str, server: str) -> str:
    """Return why the kubelets of a server are not as asked, "" if they are."""
    known = f"fleet emulates kubelets of {MINORS}"
    version = emulated_version(asked, server)
    shown = f"the API server is {server}" if asked == server else f"kubeletVersion is {asked}"
    if parse_version(version)[:2] < parse_version(RELEASES[0].newest)[:2]:
        return f"{shown}, and {known}: nodes say {version} and behave as {RELEASES[0].name}"
    if version == asked:
        return ""
    if parse_version(asked) > parse_version(server):
        return f"{shown}, newer than the API server: nodes are kubelets of {version}"
    return f"{shown}, and {known}: nodes are kubelets of {version}"


def check_skew(kubelet: str, server: str) -> None:
    """Raise UsageError unless a server of this version may have such a kubelet."""
    (_, minor, _), (_, newest, _) = parse_version(kubelet), parse_version(server)
    if parse_version(kubelet) > parse_version(server) or minor < newest - SKEW_MAX:
        raise UsageError(
            f"--kubelet-version {kubelet}: the API server is {server}; a kubelet may be up to "
            f"{SKEW_MAX} minors older, and never newer"
        )
