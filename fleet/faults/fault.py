"""The faults that users write: their types, what each takes, and which nodes it hits.

A file has a `FaultSpec`. Commands, forms and annotations give the same in flat words, which
`read_fault` reads.
"""

import enum
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from fleet.clock import NS_PER_S, Draws
from fleet.errors import UsageError
from fleet.k8s.effects import NodeId
from fleet.profile.machine import Share
from fleet.profile.schema import DurationNs, Spec, explain, key_of
from fleet.quantity import format_duration, parse_duration, parse_positive_duration, parse_share

ZONE_LABEL = "topology.kubernetes.io/zone"
_STREAM_CHOOSE = 0xFA017
SignedDurationNs = Annotated[
    int,
    BeforeValidator(parse_duration),
    WithJsonSchema({"type": "string", "examples": ["25s", "-1h"]}),
]


class FaultType(enum.Enum):
    """What goes wrong."""

    HEARTBEAT_LOSS = "HeartbeatLoss"
    LATE_HEARTBEATS = "LateHeartbeats"
    SLOW_LINK = "SlowLink"
    CLOCK_SKEW = "ClockSkew"
    PARTITION = "Partition"
    KUBELET_RESTART = "KubeletRestart"
    KUBELET_DOWN = "KubeletDown"
    NODE_DOWN = "NodeDown"
    CERTIFICATE_EXPIRED = "CertificateExpired"
    TOKEN_EXPIRED = "TokenExpired"  # noqa: S105 - no password
    RUNTIME_DOWN = "RuntimeDown"
    RUNTIME_NOT_READY = "RuntimeNotReady"
    NETWORK_NOT_READY = "NetworkNotReady"
    PLEG_STALL = "PLEGStall"
    SANDBOX_DEATH = "SandboxDeath"
    SANDBOX_FAILURE = "SandboxFailure"
    CONTAINER_CRASH = "ContainerCrash"
    KILL_FAILURE = "KillFailure"
    SANDBOX_KILL_FAILURE = "SandboxKillFailure"
    ATTACH_FAILURE = "AttachFailure"
    MOUNT_FAILURE = "MountFailure"
    UNMOUNT_FAILURE = "UnmountFailure"
    DEVICE_FAILURE = "DeviceFailure"
    NODE_CONDITION = "NodeCondition"
    NETWORK_UNAVAILABLE = "NetworkUnavailable"
    REGISTRY_OUTAGE = "RegistryOutage"
    MEMORY_PRESSURE = "MemoryPressure"
    DISK_PRESSURE = "DiskPressure"
    PID_PRESSURE = "PIDPressure"
    OUT_OF_MEMORY = "OutOfMemory"
    COMPONENT_DOWN = "ComponentDown"
    COMPONENT_STALL = "ComponentStall"


FAULT_NAMES = tuple(each.value for each in FaultType)


class Heartbeat(enum.Enum):
    """Which of a kubelet's two signs of life."""

    LEASE = "Lease"
    STATUS = "Status"


class PlaneComponent(enum.Enum):
    """What a local control plane consists of."""

    ETCD = "etcd"
    APISERVER = "kube-apiserver"
    SCHEDULER = "kube-scheduler"
    CONTROLLER_MANAGER = "kube-controller-manager"


class ConditionStatus(enum.Enum):
    """What a condition says."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class PartitionMode(enum.Enum):
    """What the network does with packets."""

    RESET = "Reset"  # connections are reset, new ones refused
    BLACK_HOLE = "BlackHole"  # they vanish
    OUTBOUND = "Outbound"  # those of the node vanish, those of the server come
    INBOUND = "Inbound"  # the other way round


class FaultKind(NamedTuple):
    """What there is to say of one type."""

    words: str
    takes: Sequence[str] = ()
    needs: Sequence[str] = ()
    is_instant: bool = False
    """It has no end: what it did goes by by itself."""
    of_control_plane: bool = False
    """It hits no node but a component of the run's own local control plane."""

    @property
    def options(self) -> list[str]:
        """Return the options of `fleet inject` that it takes; a needed one has a star."""
        return [f"--{key_of(each)}{'*' * (each in self.needs)}" for each in self.takes]


_FILE = Path(__file__).with_name("faults.toml")
FAULTS = {
    FaultType(name): FaultKind(**each)
    for name, each in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()
}
"""By type, in the order of the reference page."""
LATE = frozenset((FaultType.LATE_HEARTBEATS, FaultType.SLOW_LINK))
EVERY_NS_MIN = NS_PER_S
PARAMETERS = (
    *("heartbeats", "by_ns", "mode", "reason", "message", "component"),
    *("resource", "count", "condition", "status"),
)
_WHOM = ("node_selector", "zone", "nodes", "share")
FAULT_ANNOTATION = "fleet.emulator/fault"  # of a Node: `Partition:8m mode=Reset; ClockSkew by=1h`
NOTE_FAULTS_MAX = 16
NOTE_CHARACTERS_MAX = 4096
NOTE_KEYS = (*map(key_of, PARAMETERS), "every")
FLAT_KEYS = ("selector", "zone", "nodes", "share", *NOTE_KEYS)  # what `read_fault` takes
_EXAMPLES = {"by_ns": "25s", "component": "etcd", "condition": "KernelDeadlock"}
OF_KUBELET = frozenset(("Ready", "MemoryPressure", "DiskPressure", "PIDPressure"))
"""Conditions that the kubelet says itself, and puts right at each report."""
_CONDITION = r"^([A-Za-z0-9][-A-Za-z0-9_.]*)?$"


def _word(value: object) -> object:
    """Take what YAML makes of an unquoted True for the word that it is in the API."""
    return str(value) if isinstance(value, bool) else value


class LabelSelector(Spec):
    """Source: apimachinery meta/v1 LabelSelector, without its expressions."""

    match_labels: dict[str, str] = Field(default_factory=dict)


class FaultSpec(Spec):
    """One fault. Without a word on whom it hits it hits every node.

    `nodeSelector`, `zone` and `nodes` narrow it down; of what is left `share` takes a part, drawn
    from the seed.
    """

    type: FaultType
    node_selector: LabelSelector = LabelSelector()
    zone: str = ""
    nodes: tuple[str, ...] = ()
    share: Share = 1.0
    heartbeats: tuple[Heartbeat, ...] = ()  # empty: both
    by_ns: SignedDurationNs | None = None
    mode: PartitionMode | None = None  # None: BlackHole
    every_ns: DurationNs = 0  # it comes and goes: on for the first half of each; 0: it stays
    reason: str = ""
    message: str = ""
    component: PlaneComponent | None = None
    resource: str = ""  # "": each that device plugins offer
    condition: Annotated[str, Field(pattern=_CONDITION, max_length=316)] = ""
    status: Annotated[ConditionStatus | None, BeforeValidator(_word)] = None  # None: True
    count: Annotated[int, Field(ge=0)] = 0  # of its devices, the first ones; 0: all

    @model_validator(mode="after")
    def _is_whole(self, info: ValidationInfo) -> "FaultSpec":
        kind, name, dashes = FAULTS[self.type], self.type.value, info.context or ""
        for field in PARAMETERS:
            is_given = getattr(self, field) != FaultSpec.model_fields[field].default
            if is_given and field not in kind.takes:
                known = ", ".join(f"{dashes}{key_of(each)}" for each in kind.takes) or "nothing"
                raise ValueError(f"{name} takes no {dashes}{key_of(field)}; it takes {known}")
            if not is_given and field in kind.needs:
                example = f"{dashes}{key_of(field)}{'' if dashes else ':'} {_EXAMPLES[field]}"
                raise ValueError(f"{name} needs {dashes}{key_of(field)}, for example {example}")
        for field in _WHOM if kind.of_control_plane else ():
            if getattr(self, field) != FaultSpec.model_fields[field].get_default(
                call_default_factory=True
            ):
                raise ValueError(f"{name} hits no nodes; it takes no {dashes}{key_of(field)}")
        if self.type in LATE and (self.by_ns or 0) <= 0:
            raise ValueError(f"{name}: {dashes}by must be above 0s")
        if self.condition in OF_KUBELET:
            raise ValueError(
                f"{name}: condition: {self.condition} is the kubelet's own; "
                "MemoryPressure, RuntimeNotReady and others are faults that turn it"
            )
        if "every_ns" in self.model_fields_set and self.every_ns < EVERY_NS_MIN:
            raise ValueError(f"{dashes}every must be 1s or more")
        if self.type is FaultType.CLOCK_SKEW and not self.by_ns:
            raise ValueError(f"ClockSkew: {dashes}by must not be 0s")
        return self

    @property
    def is_instant(self) -> bool:
        """Whether it has no end; one that comes again and again has."""
        return FAULTS[self.type].is_instant and not self.every_ns


class Candidate(NamedTuple):
    """A node that a fault may hit; `place` is its index in the whole fleet.

    Of a node without a kubelet only the name is known: it has no labels, and is hit only by name.
    """

    node: NodeId
    place: int
    name: str
    labels: dict[str, str]


def choose(
    spec: FaultSpec, candidates: Iterable[Candidate], draws: Draws, number: int
) -> list[Candidate]:
    """Return whom a fault hits, in order; `number` distinguishes the faults of a run.

    Of those that match, `share` takes at least one.
    """
    wanted = dict(spec.node_selector.match_labels)
    if spec.zone:
        wanted[ZONE_LABEL] = spec.zone
    names = frozenset(spec.nodes)
    found = [
        each
        for each in candidates
        if (each.name in names or (not names and each.labels))
        and wanted.items() <= each.labels.items()
    ]
    if spec.share == 1.0 or not found:
        return found

    def draw(each: Candidate) -> float:
        return draws.uniform(each.place, _STREAM_CHOOSE, number)

    count = max(1, round(spec.share * len(found)))
    return sorted(sorted(found, key=draw)[:count])


def words_of(spec: FaultSpec) -> str:
    """Name a fault for people: its type and what it was given."""
    parts = [spec.type.value]
    if spec.mode is not None:
        parts.append(spec.mode.value)
    if spec.component is not None:
        parts.append(spec.component.value)
    parts += [each for each in (spec.condition, spec.resource) if each]
    parts += [each.value for each in spec.heartbeats]
    if spec.every_ns:
        parts.append(f"every {format_duration(spec.every_ns)}")
    return " ".join(parts)


def document_of(spec: FaultSpec) -> dict[str, object]:
    """Return a fault as users write it."""
    found: dict[str, object] = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if spec.by_ns is not None:
        found["by"] = f"{spec.by_ns}ns"
    if spec.every_ns:
        found["every"] = f"{spec.every_ns}ns"
    return found


def read_fault(kind: str, given: Mapping[str, object], dashes: str = "") -> FaultSpec:
    """Return a fault as commands, forms and annotations describe it. Raises UsageError.

    The keys are the options of `fleet inject`; None was not given, "" is a word like others. An
    error names a key with `dashes` before it.
    """
    known = [each.value for each in FAULTS]
    if kind not in known:
        raise UsageError(f"{kind!r} is no fault; these are: {', '.join(known)}")
    fault: dict[str, object] = {key: value for key, value in given.items() if value is not None}
    if "selector" in fault:
        fault["nodeSelector"] = {"matchLabels": _labels(str(fault.pop("selector")))}
    for key in ("nodes", "heartbeats"):
        if key in fault:
            fault[key] = str(fault[key]).split(",")
    try:
        if "share" in fault:
            fault["share"] = parse_share(fault["share"])
        return FaultSpec.model_validate({"type": kind, **fault}, context=dashes)
    except ValidationError as error:
        before = dashes if error.errors()[0]["loc"] else ""
        raise UsageError(before + explain(error, FaultSpec)) from error
    except ValueError as error:
        raise UsageError(f"--share: {error}") from None


def _labels(text: str) -> dict[str, str]:
    pairs = [each.partition("=") for each in text.split(",")]
    if not all(key and equals for key, equals, _ in pairs):
        raise UsageError(f"--selector: {text!r} is not KEY=VALUE[,KEY=VALUE...]")
    return {key: value for key, _, value in pairs}


def read_lasting(spec: FaultSpec, text: object, about: str) -> int | None:
    """Return how long a fault lasts, None until it is healed. UsageError begins with `about`."""
    if text is None:
        return None
    if spec.is_instant:
        raise UsageError(f"{about}: {spec.type.value} is over at once")
    try:
        for_ns = parse_positive_duration(text)
    except ValueError as error:
        raise UsageError(f"{about}: {error}") from error
    if not for_ns:
        raise UsageError(f"{about}: {text!r} must be above 0s")
    return for_ns


class NotedFault(NamedTuple):
    """One fault of an annotation; `for_ns` is None where it lasts until the annotation goes."""

    spec: FaultSpec
    for_ns: int | None


def read_note(text: str, node: str) -> tuple[NotedFault, ...]:
    """Return the faults that an annotation asks for on its node, none if it is empty.

    Raises UsageError in one line.
    """
    if len(text) > NOTE_CHARACTERS_MAX:
        raise UsageError(f"{FAULT_ANNOTATION}: is over {NOTE_CHARACTERS_MAX} characters")
    parts = [each.strip() for each in text.split(";") if each.strip()]
    if len(parts) > NOTE_FAULTS_MAX:
        raise UsageError(f"{FAULT_ANNOTATION}: names over {NOTE_FAULTS_MAX} faults")
    try:
        return tuple(_noted(part, node) for part in parts)
    except (UsageError, ValueError) as error:
        raise UsageError(f"{FAULT_ANNOTATION}: {error}") from error


def _noted(part: str, node: str) -> NotedFault:
    head, *pairs = shlex.split(part)
    name, colon, duration = head.partition(":")
    given: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in NOTE_KEYS:
            raise UsageError(f"{pair!r} is not KEY=VALUE with one of: {', '.join(NOTE_KEYS)}")
        given[key] = value
    if any(each.value == name and kind.of_control_plane for each, kind in FAULTS.items()):
        raise UsageError(f"{name} hits no node, but the control plane: use `fleet inject`")
    spec = read_fault(name, {"nodes": node, **given})
    return NotedFault(spec, read_lasting(spec, duration or "0s", head) if colon else None)
