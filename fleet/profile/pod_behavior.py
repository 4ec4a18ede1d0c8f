"""How the pods that a document selects behave: their containers and their volumes.

A `PodBehavior` says when containers have started, how long they run, how they end; how long a
volume takes to mount, and what fails. Three sources decide, the first that speaks wins: annotations
of the pod, the first document that selects it, the container's own command. Of any other container
its role decides: runtime/program.py.
"""

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, model_validator

from fleet.clock import NS_PER_S
from fleet.k8s.pods import NO_SPEC, ContainerSpec, PodSpec
from fleet.k8s.selectors import holds
from fleet.k8s.well_known import OWN_PREFIX
from fleet.profile import container_behavior
from fleet.profile.distribution import ZERO, Distribution, DistributionField, constant, constant_of
from fleet.profile.image_behavior import DEFAULT_IMAGE, ImageBehavior, PullError
from fleet.profile.schema import DurationNs, Metadata, Spec
from fleet.profile.usage import UNDECLARED, CurveField, Usage, curve_of
from fleet.profile.yaml_text import read_annotation
from fleet.quantity import parse_quantity

MOUNT_DELAY = constant(100_000_000)
"""NodeStageVolume and NodePublishVolume of a driver whose device is there."""
EXPAND_DELAY = constant(100_000_000)  # NodeExpandVolume
PROVISION_DELAY = constant(500_000_000)
ATTACH_DELAY = constant(500_000_000)
EMPTY_DIR_ANNOTATION = f"{OWN_PREFIX}empty-dir-usage"

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


SANDBOX_DELAY = constant(100_000_000)
"""To create the sandbox and its network: what containerd with a CNI plugin takes at best."""
START_DELAY = constant(50_000_000)  # to create and start one container whose image is present


class RunTimes(Spec):
    """How long programs run that are not understood, and of which nothing is declared.

    A PodBehavior or an annotation overrides both.
    """

    init_container: Annotated[DistributionField, Field(alias="initContainerRunTime")] = constant(
        NS_PER_S
    )
    batch: Annotated[DistributionField, Field(alias="batchRunTime")] = constant(5 * NS_PER_S)


USUAL_RUN_TIMES = RunTimes()

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
        return holds(labels, self.key, self.operator, self.values)


class PodSelector(Spec):
    """A label selector, and optionally the namespace; an empty one selects every pod."""

    match_labels: dict[str, str] = Field(default_factory=dict)
    match_expressions: tuple[LabelRequirement, ...] = ()
    namespace: str = ""

    def matches(self, labels: Mapping[str, str], namespace: str) -> bool:
        if self.namespace and self.namespace != namespace:
            return False
        if any(labels.get(key) != value for key, value in self.match_labels.items()):
            return False
        return all(wanted.matches(labels) for wanted in self.match_expressions)


ExitCode = Annotated[int, Field(ge=0, le=container_behavior.CODE_MAX)]


class Outcome(Spec):
    """One way in which a container can end, and after which time from its start."""

    weight: Annotated[float, Field(gt=0)] = 1.0
    after: DistributionField
    exit_code: ExitCode = 0
    reason: str = ""

    def with_code(self, code: int) -> "Outcome":
        """Return it with another exit code; a reason does not outlive the code it is for."""
        changes = {"exit_code": code, "reason": ""}
        return self if code == self.exit_code else self.model_copy(update=changes)


class ExecAnswer(Spec):
    """What a command answers that kubectl exec, a probe or a hook runs in a container."""

    command: Annotated[str, Field(min_length=1)]  # its words; `*` and `?` match as in a shell
    stdout: str = ""
    stderr: str = ""
    exit_code: ExitCode = 0
    after: DurationNs = 0


class HttpAnswer(Spec):
    """What a container answers to a GET: of a probe, or through kubectl port-forward."""

    path: Annotated[str, Field(pattern=r"^[/*]")]  # `*` and `?` match as in a shell
    port: Annotated[int, Field(ge=1, le=65535)] | None = None  # None: any
    status: Annotated[int, Field(ge=100, le=599)] = 200
    body: str = ""
    content_type: str = "text/plain; charset=utf-8"


class ContainerBehavior(Spec):
    """What the containers of one name do; `*` and `?` match as in a shell.

    With a type only those of it: `type: InitContainer` alone means all init containers. No
    outcomes: ask its command, else its role.
    """

    pattern: Annotated[str, Field(alias="name")] = "*"
    type: Literal["Container", "InitContainer", "Sidecar"] | None = None
    start_delay: DistributionField = START_DELAY
    outcomes: tuple[Outcome, ...] = ()
    exit_codes: tuple[ExitCode, ...] = ()  # instead of theirs: by run; the last one repeats
    usage: Usage = UNDECLARED
    image: ImageBehavior = DEFAULT_IMAGE
    probes: container_behavior.Probes = container_behavior.Probes()
    life: Annotated[container_behavior.LifecycleBehavior, Field(alias="lifecycle")] = (
        container_behavior.USUAL_LIFE
    )
    logs: container_behavior.LogBehavior | None = None  # None: what its script prints
    exec: tuple[ExecAnswer, ...] = ()
    http: tuple[HttpAnswer, ...] = ()

    @model_validator(mode="after")
    def _has_outcomes_for_its_codes(self) -> "ContainerBehavior":
        if self.exit_codes and not self.outcomes:
            raise ValueError("exitCodes need outcomes, which say when the container ends")
        return self

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
        sums = list(itertools.accumulate(each.weight for each in self.outcomes))
        at = bisect_right(sums, u * sums[-1])
        chosen = self.outcomes[min(at, len(sums) - 1)]
        if self.exit_codes:
            return chosen.with_code(self.exit_codes[min(attempt, len(self.exit_codes) - 1)])
        return chosen


DEFAULT_CONTAINER = ContainerBehavior()


class PodBehaviorSpec(Spec):
    """The spec of a PodBehavior."""

    pod_selector: PodSelector = PodSelector()
    sandbox_delay: DistributionField = SANDBOX_DELAY
    containers: tuple[ContainerBehavior, ...] = ()
    volumes: tuple[VolumeBehavior, ...] = ()


class PodBehaviorManifest(Spec):
    """A PodBehavior document: how the pods that it selects behave."""

    api_version: Literal["fleet.emulator/v1alpha1"]
    kind: Literal["PodBehavior"]
    metadata: Metadata
    spec: PodBehaviorSpec = PodBehaviorSpec()

    def compiled(self) -> "PodBehavior":
        return PodBehavior.model_construct(None, name=self.metadata.name, **dict(self.spec))


class PodBehavior(PodBehaviorSpec):
    """What one document says, or what a pod's annotations make of it."""

    name: str

    def container(self, name: str) -> ContainerBehavior:
        """Return what a container does: the first entry whose pattern fits."""
        for container in self.containers:
            if container.pattern in {"*", name} or fnmatchcase(name, container.pattern):
                return container
        return DEFAULT_CONTAINER


DEFAULT_BEHAVIOR = PodBehavior(name="default")


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
            if behavior.pod_selector.matches(pairs, namespace):
                chosen = _named(behavior, spec)
                break
    if not annotations:
        return chosen
    if not isinstance(annotations, tuple):
        return _overridden(chosen, _own_notes(annotations))
    known = _annotated_behaviors.get(annotations)
    if known is None or known[0] is not chosen:
        if len(_annotated_behaviors) >= ANNOTATED_MAX:
            _annotated_behaviors.clear()
        known = _annotated_behaviors[annotations] = (
            chosen,
            _overridden(chosen, _own_notes(annotations)),
        )
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
                entry.model_copy(update={"pattern": name or entry.pattern, "type": None})
                for name in names
                if not name or fnmatchcase(name, entry.pattern)
            ]
        if len(_named_behaviors) >= ANNOTATED_MAX:
            _named_behaviors.clear()
        made = behavior.model_copy(update={"containers": tuple(containers)})
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


def _own_notes(annotations: Labels) -> dict[str, str]:
    """Return those of fleet, without their prefix."""
    return {
        key.removeprefix(OWN_PREFIX): text
        for key, text in dict(annotations).items()
        if key.startswith(OWN_PREFIX)
    }


def _overridden(behavior: PodBehavior, notes: Mapping[str, str]) -> PodBehavior:
    """Apply the annotations of a pod: `option` to all its containers, `option.name` to one.

    A value that cannot be read is ignored: a kubelet has no one to refuse an annotation to.
    """
    if _OPTIONS.isdisjoint(key.partition(".")[0] for key in notes):
        return behavior
    names = sorted({key.partition(".")[2] for key in notes} - {""})
    containers = []
    for name in names:
        suffix = f".{name}"
        own = {key.removesuffix(suffix): notes[key] for key in notes if key.endswith(suffix)}
        container = behavior.container(name).model_copy(update={"pattern": name})
        containers.append(_annotated(container, {**notes, **own}))
    every = (*behavior.containers, DEFAULT_CONTAINER)
    containers += [_annotated(container, notes) for container in every]
    return behavior.model_copy(update={"containers": tuple(containers)})


Read = Callable[[str], Mapping[str, object] | None]
"""Returns which fields an annotation sets, None if it cannot be read."""
NOTE_MAX = 4096  # characters of an annotation in YAML; a longer one is ignored


def _sets(field: str, read: Callable[[str], object] = str) -> Read:
    def changes(text: str) -> Mapping[str, object] | None:
        found = read(text)
        return None if found is None else {field: found}

    return changes


def _yaml(written: Any) -> Callable[[str], object]:
    """Return what reads an annotation as a document says the same."""
    adapter = TypeAdapter[object](written)

    @lru_cache(maxsize=1024)
    def read(text: str) -> object:
        try:
            return adapter.validate_python(read_annotation(text)) if len(text) <= NOTE_MAX else None
        except ValueError:  # pydantic's are such, too
            return None

    return read


def _size(text: str) -> int | None:
    try:
        return max(parse_quantity(text).value, 0)
    except ValueError:
        return None


def _count(text: str, digits: int = 9) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= digits
    return int(text) if is_number else None


def _code(text: str) -> int | None:
    code = _count(text, digits=3)
    return code if code is not None and code <= container_behavior.CODE_MAX else None


def _codes(text: str) -> tuple[int, ...] | None:
    """Read one code, or those of the first, the second, ... run, separated by commas."""
    codes = [_code(part.strip()) for part in text.split(",")]
    return None if None in codes else tuple(each for each in codes if each is not None)


def _pull_error(text: str) -> Mapping[str, object] | None:
    found = next((each for each in PullError if each.value == text), None)
    return None if found is None else {"error": found, "error_rate": 1.0}


def _start_failure(text: str) -> Mapping[str, object] | None:
    given, _, message = (part.strip() for part in text.partition(":"))
    reason = next((each for each in container_behavior.FAILURE_MESSAGES if each == given), None)
    if reason is None:
        return None
    return {"start_failure": container_behavior.StartFailure(reason=reason, message=message)}


def _hook(text: str) -> Mapping[str, object] | None:
    """Read `2s`, `fail`, or both."""
    words = text.split()
    durations = [found for word in words if (found := constant_of(word)) is not None]
    if len(durations) + words.count("fail") != len(words):
        return None
    return {"fails": "fail" in words, **({"duration": durations[-1]} if durations else {})}


def _stop(text: str) -> Mapping[str, object] | None:
    if text in {"never", "hangs"}:
        return {"ignored" if text == "never" else "hangs": True}
    delay = constant_of(text)
    return None if delay is None else {"delay": delay, "ignored": False, "hangs": False}


_milli_curve_of = partial(curve_of, scale=1000)
_ANNOTATIONS: dict[str, tuple[str, Read]] = {
    "start-delay": ("", _sets("start_delay", constant_of)),
    "logs": ("", _sets("logs", _yaml(container_behavior.LogBehavior))),
    "image-size": ("image", _sets("size_bytes", _size)),
    "pull-time": ("image", _sets("pull_time", constant_of)),
    "pull-error": ("image", _pull_error),
    "memory-usage": ("usage", _sets("memory", curve_of)),
    "cpu-usage": ("usage", _sets("cpu_milli", _milli_curve_of)),
    "ephemeral-storage-usage": ("usage", _sets("ephemeral_storage", curve_of)),
    "inodes-usage": ("usage", _sets("inodes", curve_of)),
    "pids-usage": ("usage", _sets("pids", curve_of)),
    "swap-usage": ("usage", _sets("swap", curve_of)),
    "network-receive": ("usage", _sets("network_receive", curve_of)),
    "network-transmit": ("usage", _sets("network_transmit", curve_of)),
    "startup-probe": ("probes", _sets("startup", _yaml(container_behavior.ProbeField))),
    "readiness-probe": ("probes", _sets("readiness", _yaml(container_behavior.ProbeField))),
    "liveness-probe": ("probes", _sets("liveness", _yaml(container_behavior.ProbeField))),
    "start-failure": ("life", _start_failure),
    "start-failure-times": ("life.start_failure", _sets("times", _count)),
    "post-start": ("life.post_start", _hook),
    "pre-stop": ("life.pre_stop", _hook),
    "stop-time": ("life.stop", _stop),
    "stop-exit-code": ("life.stop", _sets("exit_code", _code)),
    "stop-error": ("life.stop", _sets("error")),
    "termination-message": ("life", _sets("termination_message")),
    "resize-error": ("life", _sets("resize_error")),
}
"""Of a pod, for its containers: the part of a ContainerBehavior, and what is set there."""
_VOLUME_ANNOTATIONS: dict[str, Read] = {
    "mount-delay": _sets("mount_delay", constant_of),
    "mount-error": _sets("mount_error"),
    "unmount-fails": _sets("unmount_fails", {"true": True, "false": False}.get),
    "expand-error": _sets("expand_error"),
    "empty-dir-usage": _sets("usage", curve_of),
}
OUTCOME_ANNOTATIONS = ("run-time", "exit-code", "exit-reason")
_OPTIONS = frozenset((*_ANNOTATIONS, *OUTCOME_ANNOTATIONS))
_S = TypeVar("_S", bound=Spec)


def _annotated(container: ContainerBehavior, notes: Mapping[str, str]) -> ContainerBehavior:
    for name, (part, read) in _ANNOTATIONS.items():
        if name in notes and (changes := read(notes[name])) is not None:
            container = _changed(container, part, changes)
    run_time, code, reason = (notes.get(each, "") for each in OUTCOME_ANNOTATIONS)
    after, codes = constant_of(run_time), _codes(code) or ()
    if reason == OOM_REASON and not codes:
        codes = (OOM_EXIT_CODE,)
    if after is None and not codes and not reason:
        return container
    return _with_outcome(container, after, codes, reason)


def _changed(spec: _S, part: str, changes: Mapping[str, object]) -> _S:
    """Return a spec with changes of a part of it, if it has that part."""
    if part:
        first, _, rest = part.partition(".")
        inner = getattr(spec, first)
        changes = {} if inner is None else {first: _changed(inner, rest, changes)}
    return spec.model_copy(update=changes)


def _with_outcome(
    container: ContainerBehavior, after: Distribution | None, codes: tuple[int, ...], reason: str
) -> ContainerBehavior:
    """Replace the run time, the exit code, the reason or all of them of every outcome."""
    changes: dict[str, object] = {} if after is None else {"after": after}
    outcomes = []
    for each in container.outcomes or (Outcome(after=ZERO),):
        new = each.with_code(codes[0]) if codes else each
        outcomes.append(new.model_copy(update=changes | ({"reason": reason} if reason else {})))
    several = codes if len(codes) > 1 else ()
    return container.model_copy(update={"outcomes": tuple(outcomes), "exit_codes": several})


def volume_behavior(
    declared: tuple[VolumeBehavior, ...], name: str, annotations: Labels
) -> VolumeBehavior:
    """Return how one volume of a pod behaves; an annotation that cannot be read is ignored."""
    found = next((each for each in declared if fnmatchcase(name, each.name)), DEFAULT_VOLUME)
    notes = _own_notes(annotations)
    for key in notes.keys() & _VOLUME_ANNOTATIONS:
        found = _changed(found, "", _VOLUME_ANNOTATIONS[key](notes[key]) or {})
    return found
