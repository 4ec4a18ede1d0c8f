"""How the pods that a document selects behave: their containers and their volumes.

`PodBehaviorManifest` is what a user writes, `PodBehavior` what the simulated runtime reads: when
containers have started, how long they run, how they end; how long a volume takes to mount, and what
fails. Three sources decide, the first that speaks wins: annotations of the pod, the first document
that selects it, the container's own command. Of any other container its role decides:
runtime/program.py.
"""

import itertools
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, model_validator

from fleet.clock import NS_PER_S
from fleet.k8s.pods import NO_SPEC, ContainerSpec, PodSpec
from fleet.k8s.selectors import holds
from fleet.k8s.well_known import OWN_PREFIX
from fleet.profile.container_behavior import (
    ALL_GOOD,
    LIFECYCLE_ANNOTATIONS,
    LOGS_ANNOTATION,
    PROBE_ANNOTATIONS,
    USUAL_LIFE,
    LifecycleBehavior,
    LogBehavior,
    Probes,
    ProbesSpec,
    lifecycle_with_annotations,
    logs_with_annotations,
    probes_with_annotations,
)
from fleet.profile.distribution import ZERO, Distribution, DistributionField, constant, constant_of
from fleet.profile.image_behavior import (
    DEFAULT_IMAGE,
    IMAGE_ANNOTATIONS,
    ImageBehavior,
)
from fleet.profile.schema import DurationNs, Metadata, Spec
from fleet.profile.usage import (
    UNDECLARED,
    USAGE_ANNOTATIONS,
    CurveField,
    Usage,
    curve_of,
    usage_with_annotations,
)

MOUNT_DELAY = constant(100_000_000)
"""NodeStageVolume and NodePublishVolume of a driver whose device is there."""
EXPAND_DELAY = constant(100_000_000)
"""NodeExpandVolume."""
PROVISION_DELAY = constant(500_000_000)
ATTACH_DELAY = constant(500_000_000)
MOUNT_DELAY_ANNOTATION = "fleet.emulator/mount-delay"
MOUNT_ERROR_ANNOTATION = "fleet.emulator/mount-error"
UNMOUNT_FAILS_ANNOTATION = "fleet.emulator/unmount-fails"
EXPAND_ERROR_ANNOTATION = "fleet.emulator/expand-error"
EMPTY_DIR_ANNOTATION = "fleet.emulator/empty-dir-usage"

DEFAULT_DRIVER = "csi.fleet.emulator"
DRIVER_PATTERN = r"^[a-zA-Z0-9]([-a-zA-Z0-9._]{0,61}[a-zA-Z0-9])?$"

RPC_CODES = frozenset(
    (
        *("Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound"),
        *("AlreadyExists", "PermissionDenied", "ResourceExhausted", "FailedPrecondition"),
        *("Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable", "DataLoss"),
        "Unauthenticated",
    )
)


class VolumeBehavior(Spec):
    """What the volumes of one name do; `*` and `?` match as in a shell."""

    name: str = "*"
    mount_delay: DistributionField = MOUNT_DELAY
    mount_error: str = ""  # mounting fails with it for as long as it is declared
    unmount_fails: bool = False  # the same of unmounting, of whatever is mounted
    expand_delay: DistributionField = EXPAND_DELAY
    expand_error: str = ""  # as mount_error: `OutOfRange: the disk is full` names its gRPC code
    usage: CurveField | None = None  # of an emptyDir, in bytes, from the first container on


DEFAULT_VOLUME = VolumeBehavior()


def _each_once(keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(keys)))


class RpcError(NamedTuple):
    """What a driver answers that refuses. Source: google.golang.org/grpc/codes."""

    code: str
    text: str

    @classmethod
    def of(cls, declared: str) -> "RpcError":
        """Read a declared error; one that names no code is Internal."""
        code, colon, text = declared.partition(": ")
        return cls(code, text) if colon and code in RPC_CODES else cls("Internal", declared)

    def __str__(self) -> str:
        return f"rpc error: code = {self.code} desc = {self.text}"


class CSIDriver(Spec):
    """A CSI driver whose node plug-in runs on the nodes of a profile, and how its storage acts."""

    name: Annotated[str, Field(pattern=DRIVER_PATTERN)]
    allocatable_count: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0  # 0: no limit
    allocatable_over_time: CurveField | None = None  # instead, since the start of the kubelet
    topology_keys: Annotated[tuple[str, ...], AfterValidator(_each_once)] = ()
    provision_delay: DistributionField = PROVISION_DELAY  # to make or to delete a volume
    attach_delay: DistributionField = ATTACH_DELAY  # to attach or to detach it
    node_expansion: bool = False  # what has grown is expanded on the node, too

    def count_at(self, age_ns: int) -> int:
        """Return how many volumes a node takes at an age of its kubelet, 0 for any number."""
        if self.allocatable_over_time is None:
            return self.allocatable_count
        return self.allocatable_over_time.at(age_ns)


def volume_behavior(
    declared: tuple[VolumeBehavior, ...],
    name: str,
    annotations: Mapping[str, str] | tuple[tuple[str, str], ...],
) -> VolumeBehavior:
    """Return how one volume of a pod behaves; an annotation that cannot be read is ignored."""
    found = next((each for each in declared if fnmatchcase(name, each.name)), DEFAULT_VOLUME)
    notes = dict(annotations)
    changes: dict[str, object] = {}
    if usage := curve_of(notes.get(EMPTY_DIR_ANNOTATION, "")):
        changes["usage"] = usage
    if MOUNT_ERROR_ANNOTATION in notes:
        changes["mount_error"] = notes[MOUNT_ERROR_ANNOTATION]
    if (text := notes.get(UNMOUNT_FAILS_ANNOTATION)) in {"true", "false"}:
        changes["unmount_fails"] = text == "true"
    if EXPAND_ERROR_ANNOTATION in notes:
        changes["expand_error"] = notes[EXPAND_ERROR_ANNOTATION]
    if delay := constant_of(notes.get(MOUNT_DELAY_ANNOTATION)):
        changes["mount_delay"] = delay
    return found.model_copy(update=changes) if changes else found


SANDBOX_DELAY = constant(100_000_000)
"""To create the sandbox and its network: what containerd with a CNI plugin takes at best."""
START_DELAY = constant(50_000_000)
"""To create and start one container whose image is present."""


class RunTimes(Spec):
    """How long programs run that are not understood, and of which nothing is declared.

    A PodBehavior or an annotation overrides both.
    """

    init_container: Annotated[DistributionField, Field(alias="initContainerRunTime")] = constant(
        NS_PER_S
    )
    batch: Annotated[DistributionField, Field(alias="batchRunTime")] = constant(5 * NS_PER_S)


USUAL_RUN_TIMES = RunTimes()

START_DELAY_ANNOTATION = "fleet.emulator/start-delay"
RUN_TIME_ANNOTATION = "fleet.emulator/run-time"
EXIT_CODE_ANNOTATION = "fleet.emulator/exit-code"
EXIT_REASON_ANNOTATION = "fleet.emulator/exit-reason"
_OPTIONS = frozenset(
    key.removeprefix(OWN_PREFIX)
    for key in (
        START_DELAY_ANNOTATION,
        RUN_TIME_ANNOTATION,
        EXIT_CODE_ANNOTATION,
        EXIT_REASON_ANNOTATION,
        LOGS_ANNOTATION,
        *USAGE_ANNOTATIONS,
        *IMAGE_ANNOTATIONS,
        *PROBE_ANNOTATIONS,
        *LIFECYCLE_ANNOTATIONS,
    )
)
EXIT_CODE_MAX = 255
OOM_REASON = "OOMKilled"
OOM_EXIT_CODE = 137

Labels = Mapping[str, str] | tuple[tuple[str, str], ...]
"""Labels or annotations, as a mapping or as the pairs that pod records keep."""


class LabelRequirement(Spec):
    """Source: meta/v1 LabelSelectorRequirement."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_values_when_needed(self) -> "LabelRequirement":
        if (self.operator in {"In", "NotIn"}) != bool(self.values):
            raise ValueError(f"operator {self.operator} and values {list(self.values)} do not fit")
        return self

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels satisfy this."""
        return holds(labels, self.key, self.operator, self.values)


class PodSelector(Spec):
    """A label selector, and optionally the namespace; an empty one selects every pod."""

    match_labels: dict[str, str] = Field(default_factory=dict)
    match_expressions: tuple[LabelRequirement, ...] = ()
    namespace: str = ""

    def matches(self, labels: Mapping[str, str], namespace: str) -> bool:
        """Tell whether a pod is selected."""
        if self.namespace and self.namespace != namespace:
            return False
        if any(labels.get(key) != value for key, value in self.match_labels.items()):
            return False
        return all(wanted.matches(labels) for wanted in self.match_expressions)


class OutcomeSpec(Spec):
    """One way in which a container can end."""

    weight: Annotated[float, Field(gt=0)] = 1.0
    after: DistributionField
    exit_code: Annotated[int, Field(ge=0, le=EXIT_CODE_MAX)] = 0
    reason: str = ""


class ExecAnswer(Spec):
    """What a command answers that kubectl exec, a probe or a hook runs in a container."""

    command: Annotated[str, Field(min_length=1)]  # its words; `*` and `?` match as in a shell
    stdout: str = ""
    stderr: str = ""
    exit_code: Annotated[int, Field(ge=0, le=EXIT_CODE_MAX)] = 0
    after: DurationNs = 0


class HttpAnswer(Spec):
    """What a container answers to a GET: of a probe, or through kubectl port-forward."""

    path: Annotated[str, Field(pattern=r"^[/*]")]  # `*` and `?` match as in a shell
    port: Annotated[int, Field(ge=1, le=65535)] | None = None  # None: any
    status: Annotated[int, Field(ge=100, le=599)] = 200
    body: str = ""
    content_type: str = "text/plain; charset=utf-8"


class ContainerBehaviorSpec(Spec):
    """What the containers of one name do; `*` and `?` match as in a shell.

    With a type only those of it: `type: InitContainer` alone means all init containers.
    """

    name: str = "*"
    type: Literal["Container", "InitContainer", "Sidecar"] | None = None
    start_delay: DistributionField = START_DELAY
    outcomes: tuple[OutcomeSpec, ...] = ()
    usage: Usage = UNDECLARED
    image: ImageBehavior = DEFAULT_IMAGE
    probes: ProbesSpec = ProbesSpec()
    lifecycle: LifecycleBehavior = USUAL_LIFE
    logs: LogBehavior | None = None
    exec: tuple[ExecAnswer, ...] = ()
    http: tuple[HttpAnswer, ...] = ()


class PodBehaviorSpec(Spec):
    """The spec of a PodBehavior."""

    pod_selector: PodSelector = PodSelector()
    sandbox_delay: DistributionField = SANDBOX_DELAY
    containers: tuple[ContainerBehaviorSpec, ...] = ()
    volumes: tuple[VolumeBehavior, ...] = ()


class PodBehaviorManifest(Spec):
    """A PodBehavior document: how the pods that it selects behave."""

    api_version: Literal["fleet.emulator/v1alpha1"]
    kind: Literal["PodBehavior"]
    metadata: Metadata
    spec: PodBehaviorSpec = PodBehaviorSpec()

    def compiled(self) -> "PodBehavior":
        """Return what the runtime reads."""
        spec = self.spec
        return PodBehavior(
            name=self.metadata.name,
            selector=spec.pod_selector,
            sandbox_delay=spec.sandbox_delay,
            containers=tuple(_compile_container(container) for container in spec.containers),
            volumes=spec.volumes,
        )


class Outcome(NamedTuple):
    """How a container ends, and after which time from its start."""

    after: Distribution
    exit_code: int = 0
    reason: str = ""

    @property
    def reason_shown(self) -> str:
        """Return the reason of the terminated state. Source: kuberuntime_container.go."""
        return self.reason or ("Error" if self.exit_code else "Completed")


class ContainerBehavior(NamedTuple):
    """What one container does. No outcomes: ask its command, else its role."""

    pattern: str = "*"
    type: str = ""  # "" for any; `select_behavior` replaces one that has a type by their names
    start_delay: Distribution = START_DELAY
    outcomes: tuple[Outcome, ...] = ()
    shares: tuple[float, ...] = ()  # cumulative, the last is 1.0
    usage: Usage = UNDECLARED
    image: ImageBehavior = DEFAULT_IMAGE
    probes: Probes = ALL_GOOD
    life: LifecycleBehavior = USUAL_LIFE
    exit_codes: tuple[int, ...] = ()  # of the first run, the second, ...; the last one repeats
    logs: LogBehavior | None = None  # None: what its script prints
    exec: tuple[ExecAnswer, ...] = ()
    http: tuple[HttpAnswer, ...] = ()

    def exec_answer(self, words: tuple[str, ...]) -> ExecAnswer | None:
        """Return the first answer that is declared for a command."""
        line = " ".join(words) if self.exec else ""
        return next((each for each in self.exec if fnmatchcase(line, each.command)), None)

    def http_answer(self, port: int, path: str) -> HttpAnswer | None:
        """Return the first answer that is declared for a path on a port."""
        for each in self.http:
            if each.port in {None, port} and fnmatchcase(path, each.path):
                return each
        return None

    def outcome(self, u: float, attempt: int = 0) -> Outcome | None:
        """Pick one of the declared outcomes by a number of [0, 1); None when none is declared."""
        if not self.outcomes:
            return None
        chosen = self.outcomes[-1]
        for outcome, share in zip(self.outcomes, self.shares, strict=True):
            if u < share:
                chosen = outcome
                break
        if self.exit_codes:
            code = self.exit_codes[min(attempt, len(self.exit_codes) - 1)]
            return _with_code(chosen, code)
        return chosen


DEFAULT_CONTAINER = ContainerBehavior()


class PodBehavior(NamedTuple):
    """The compiled form of one PodBehavior, or of what a pod's annotations say."""

    name: str
    selector: PodSelector
    sandbox_delay: Distribution = SANDBOX_DELAY
    containers: tuple[ContainerBehavior, ...] = ()
    volumes: tuple[VolumeBehavior, ...] = ()

    def container(self, name: str) -> ContainerBehavior:
        """Return what a container does: the first entry whose pattern fits."""
        for container in self.containers:
            if container.pattern in {"*", name} or fnmatchcase(name, container.pattern):
                return container
        return DEFAULT_CONTAINER


DEFAULT_BEHAVIOR = PodBehavior("default", PodSelector())


def select_behavior(
    behaviors: tuple[PodBehavior, ...],
    labels: Labels,
    namespace: str,
    annotations: Labels,
    spec: PodSpec = NO_SPEC,
) -> PodBehavior:
    """Return the first behaviour that selects a pod, with the pod's annotations applied."""
    chosen = DEFAULT_BEHAVIOR
    if behaviors:
        pairs = dict(labels)
        for behavior in behaviors:
            if behavior.selector.matches(pairs, namespace):
                chosen = _named(behavior, spec)
                break
    if not annotations:
        return chosen
    notes = dict(annotations)
    if not any(key.partition(".")[0] in _OPTIONS for key in _without_prefix(notes)):
        return chosen
    if not isinstance(annotations, tuple):
        return _overridden(chosen, notes)
    known = _annotated_behaviors.get(annotations)
    if known is None or known[0] is not chosen:
        if len(_annotated_behaviors) >= ANNOTATED_MAX:
            _annotated_behaviors.clear()
        known = _annotated_behaviors[annotations] = chosen, _overridden(chosen, notes)
    return known[1]


def _named(behavior: PodBehavior, spec: PodSpec) -> PodBehavior:
    """Return a behaviour whose entries for a type of containers are for the names of a pod's."""
    if not any(each.type for each in behavior.containers):
        return behavior
    key = (id(behavior), *((each.name, type_) for each, type_ in _types(spec)))
    known = _named_behaviors.get(key)
    if known is None or known[0] is not behavior:
        containers: list[ContainerBehavior] = []
        for entry in behavior.containers:
            names = [""] if not entry.type else []
            names += [each.name for each, type_ in _types(spec) if entry.type == type_]
            containers += [
                entry._replace(pattern=name or entry.pattern, type="")
                for name in names
                if not name or fnmatchcase(name, entry.pattern)
            ]
        if len(_named_behaviors) >= ANNOTATED_MAX:
            _named_behaviors.clear()
        made = behavior._replace(containers=tuple(containers))
        known = _named_behaviors[key] = behavior, made
    return known[1]


def _types(spec: PodSpec) -> Iterator[tuple[ContainerSpec, str]]:
    for each in spec.init_containers:
        yield each, "Sidecar" if each.restart_policy == "Always" else "InitContainer"
    for each in spec.containers:
        yield each, "Container"


ANNOTATED_MAX = 1024
_named_behaviors: dict[tuple[object, ...], tuple[PodBehavior, PodBehavior]] = {}
_annotated_behaviors: dict[Labels, tuple[PodBehavior, PodBehavior]] = {}
"""What annotations made of which behaviour: it is asked for at each step of a pod."""


def _without_prefix(notes: Mapping[str, str]) -> Iterator[str]:
    return (key.removeprefix(OWN_PREFIX) for key in notes if key.startswith(OWN_PREFIX))


def _overridden(behavior: PodBehavior, notes: Mapping[str, str]) -> PodBehavior:
    """Apply the annotations of a pod: `option` to all its containers, `option.name` to one.

    A value that cannot be read is ignored: a kubelet has no one to refuse an annotation to.
    """
    names = sorted({key.partition(".")[2] for key in _without_prefix(notes)} - {""})
    containers = []
    for name in names:
        suffix = f".{name}"
        own = {key.removesuffix(suffix): notes[key] for key in notes if key.endswith(suffix)}
        container = behavior.container(name)._replace(pattern=name)
        containers.append(_annotated(container, {**notes, **own}))
    every = (*behavior.containers, DEFAULT_CONTAINER)
    containers += [_annotated(container, notes) for container in every]
    return behavior._replace(containers=tuple(containers))


def _annotated(container: ContainerBehavior, notes: Mapping[str, str]) -> ContainerBehavior:
    delay = constant_of(notes.get(START_DELAY_ANNOTATION))
    after = constant_of(notes.get(RUN_TIME_ANNOTATION))
    codes = _exit_codes(notes.get(EXIT_CODE_ANNOTATION))
    reason = notes.get(EXIT_REASON_ANNOTATION, "")
    if reason == OOM_REASON and not codes:
        codes = (OOM_EXIT_CODE,)
    if delay is not None:
        container = container._replace(start_delay=delay)
    if after is not None or codes or reason:
        container = _with_outcome(container, after, codes, reason)
    return container._replace(
        image=container.image.annotated(notes),
        usage=usage_with_annotations(container.usage, notes),
        probes=probes_with_annotations(container.probes, notes),
        life=lifecycle_with_annotations(container.life, notes),
        logs=logs_with_annotations(container.logs, notes),
    )


def _with_outcome(
    container: ContainerBehavior, after: Distribution | None, codes: tuple[int, ...], reason: str
) -> ContainerBehavior:
    """Replace the run time, the exit code, the reason or all of them of every outcome."""
    outcomes = container.outcomes or (Outcome(ZERO),)
    shares = container.shares or (1.0,)
    changed = []
    for outcome in outcomes:
        new = outcome if after is None else outcome._replace(after=after)
        if codes:
            new = _with_code(new, codes[0])
        changed.append(new._replace(reason=reason) if reason else new)
    several = codes if len(codes) > 1 else ()
    return container._replace(outcomes=tuple(changed), shares=shares, exit_codes=several)


def _with_code(outcome: Outcome, code: int) -> Outcome:
    """Return an outcome with another exit code; a reason does not outlive the code it is for."""
    return outcome if code == outcome.exit_code else Outcome(outcome.after, code)


def _exit_codes(text: str | None) -> tuple[int, ...]:
    """Read one code, or those of the first, the second, ... run, separated by commas."""
    parts = [part.strip() for part in (text or "").split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 3 for part in parts):
        return ()
    codes = tuple(map(int, parts))
    return codes if max(codes) <= EXIT_CODE_MAX else ()


def _compile_container(spec: ContainerBehaviorSpec) -> ContainerBehavior:
    weights = [outcome.weight for outcome in spec.outcomes]
    total = sum(weights)
    return ContainerBehavior(
        pattern=spec.name,
        type=spec.type or "",
        start_delay=spec.start_delay,
        outcomes=tuple(Outcome(each.after, each.exit_code, each.reason) for each in spec.outcomes),
        shares=tuple(share / total for share in itertools.accumulate(weights)),
        usage=spec.usage,
        life=spec.lifecycle,
        image=spec.image,
        probes=spec.probes.compiled(),
        logs=spec.logs,
        exec=spec.exec,
        http=spec.http,
    )
