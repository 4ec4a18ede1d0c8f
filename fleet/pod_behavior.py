"""How the containers of a pod behave: when they have started, how long they run, how they end.

`PodBehaviorManifest` is what a user writes, `PodBehavior` what the simulated runtime reads. Three
sources decide, the first that speaks wins: annotations of the pod, the first document that selects
it, the container's own command. A container of which nobody says how it ends runs for ever.
"""

import itertools
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from fleet.command import Outcome, outcome_of_command
from fleet.distribution import ZERO, Distribution, DistributionField, constant
from fleet.image_behavior import (
    DEFAULT_IMAGE,
    IMAGE_ANNOTATIONS,
    ImageBehavior,
    ImageBehaviorSpec,
)
from fleet.probe_behavior import (
    ALL_GOOD,
    PROBE_ANNOTATIONS,
    Probes,
    ProbesSpec,
    probes_with_annotations,
)
from fleet.quantity import parse_positive_duration
from fleet.schema import Metadata, Spec
from fleet.usage import UNDECLARED, USAGE_ANNOTATIONS, Usage, UsageSpec, usage_with_annotations

SANDBOX_DELAY = constant(100_000_000)
"""To create the sandbox and its network: what containerd with a CNI plugin takes at best."""
START_DELAY = constant(50_000_000)
"""To create and start one container whose image is present."""

START_DELAY_ANNOTATION = "fleet.emulator/start-delay"
RUN_TIME_ANNOTATION = "fleet.emulator/run-time"
EXIT_CODE_ANNOTATION = "fleet.emulator/exit-code"
_OVERRIDES = (
    START_DELAY_ANNOTATION,
    RUN_TIME_ANNOTATION,
    EXIT_CODE_ANNOTATION,
    *USAGE_ANNOTATIONS,
)
EXIT_CODE_MAX = 255

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
        """Tell whether labels satisfy this. Source: labels.Requirement.Matches."""
        value = labels.get(self.key)
        if self.operator == "In":
            return value in self.values
        if self.operator == "NotIn":
            return value not in self.values
        return (value is not None) == (self.operator == "Exists")


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


class ContainerBehaviorSpec(Spec):
    """What the containers of one name do; `*` and `?` match as in a shell."""

    name: str = "*"
    start_delay: DistributionField | None = None
    outcomes: tuple[OutcomeSpec, ...] = ()
    usage: UsageSpec = UsageSpec()
    image: ImageBehaviorSpec | None = None
    probes: ProbesSpec = ProbesSpec()


class PodBehaviorSpec(Spec):
    """The spec of a PodBehavior."""

    pod_selector: PodSelector = PodSelector()
    sandbox_delay: DistributionField | None = None
    containers: tuple[ContainerBehaviorSpec, ...] = ()


class PodBehaviorManifest(Spec):
    """A PodBehavior document: how the pods that it selects behave."""

    api_version: Literal["fleet.emulator/v1alpha1"]
    kind: Literal["PodBehavior"]
    metadata: Metadata
    spec: PodBehaviorSpec = PodBehaviorSpec()

    def compiled(self) -> "PodBehavior":
        """Return what the runtime reads."""
        spec = self.spec
        sandbox = spec.sandbox_delay
        return PodBehavior(
            name=self.metadata.name,
            selector=spec.pod_selector,
            sandbox_delay=SANDBOX_DELAY if sandbox is None else sandbox.compiled(),
            containers=tuple(_compile_container(container) for container in spec.containers),
        )


class ContainerBehavior(NamedTuple):
    """What one container does. No outcomes: ask its command, else it runs for ever."""

    pattern: str = "*"
    start_delay: Distribution = START_DELAY
    outcomes: tuple[Outcome, ...] = ()
    shares: tuple[float, ...] = ()  # cumulative, the last is 1.0
    usage: Usage = UNDECLARED
    image: ImageBehavior = DEFAULT_IMAGE
    probes: Probes = ALL_GOOD

    def outcome(self, u: float) -> Outcome | None:
        """Pick one of the declared outcomes by a number of [0, 1); None when none is declared."""
        for outcome, share in zip(self.outcomes, self.shares, strict=True):
            if u < share:
                return outcome
        return self.outcomes[-1] if self.outcomes else None


DEFAULT_CONTAINER = ContainerBehavior()


class PodBehavior(NamedTuple):
    """The compiled form of one PodBehavior, or of what a pod's annotations say."""

    name: str
    selector: PodSelector
    sandbox_delay: Distribution = SANDBOX_DELAY
    containers: tuple[ContainerBehavior, ...] = ()

    def container(self, name: str) -> ContainerBehavior:
        """Return what a container does: the first entry whose pattern fits."""
        for container in self.containers:
            if container.pattern in {"*", name} or fnmatchcase(name, container.pattern):
                return container
        return DEFAULT_CONTAINER

    def outcome(
        self, name: str, command: tuple[str, ...], args: tuple[str, ...], u: float
    ) -> Outcome | None:
        """Return how a container ends: as declared, else as its command says; None: never."""
        return self.container(name).outcome(u) or outcome_of_command(command, args)


DEFAULT_BEHAVIOR = PodBehavior("default", PodSelector())


def select_behavior(
    behaviors: tuple[PodBehavior, ...], labels: Labels, namespace: str, annotations: Labels
) -> PodBehavior:
    """Return the first behaviour that selects a pod, with the pod's annotations applied."""
    chosen = DEFAULT_BEHAVIOR
    if behaviors:
        pairs = dict(labels)
        for behavior in behaviors:
            if behavior.selector.matches(pairs, namespace):
                chosen = behavior
                break
    if not annotations:
        return chosen
    notes = dict(annotations)
    if not any(key in notes for key in (*_OVERRIDES, *IMAGE_ANNOTATIONS, *PROBE_ANNOTATIONS)):
        return chosen
    return _overridden(chosen, notes)


def _overridden(behavior: PodBehavior, notes: Mapping[str, str]) -> PodBehavior:
    """Apply the annotations of a pod to all its containers.

    A value that cannot be read is ignored: a kubelet has no one to refuse an annotation to.
    """
    delay_ns = _duration(notes.get(START_DELAY_ANNOTATION))
    run_time_ns = _duration(notes.get(RUN_TIME_ANNOTATION))
    code = _exit_code(notes.get(EXIT_CODE_ANNOTATION))
    containers = []
    for container in (*behavior.containers, DEFAULT_CONTAINER):
        changed = container._replace(image=container.image.annotated(notes))
        if delay_ns is not None:
            changed = changed._replace(start_delay=constant(delay_ns))
        if run_time_ns is not None or code is not None:
            after = None if run_time_ns is None else constant(run_time_ns)
            changed = _with_outcome(changed, after, code)
        usage = usage_with_annotations(changed.usage, notes)
        if usage is not changed.usage:
            changed = changed._replace(usage=usage)
        containers.append(changed._replace(probes=probes_with_annotations(changed.probes, notes)))
    return behavior._replace(containers=tuple(containers))


def _with_outcome(
    container: ContainerBehavior, after: Distribution | None, code: int | None
) -> ContainerBehavior:
    """Replace the run time, the exit code or both of every outcome."""
    outcomes = container.outcomes or (Outcome(ZERO),)
    shares = container.shares or (1.0,)
    changed = []
    for outcome in outcomes:
        exit_code = outcome.exit_code if code is None else code
        reason = outcome.reason if exit_code == outcome.exit_code else ""
        changed.append(Outcome(after or outcome.after, exit_code, reason))
    return container._replace(outcomes=tuple(changed), shares=shares)


def _duration(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_positive_duration(text)
    except ValueError:
        return None


def _exit_code(text: str | None) -> int | None:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 3:
        return None
    code = int(text)
    return code if code <= EXIT_CODE_MAX else None


def _compile_container(spec: ContainerBehaviorSpec) -> ContainerBehavior:
    delay = spec.start_delay
    weights = [outcome.weight for outcome in spec.outcomes]
    total = sum(weights)
    return ContainerBehavior(
        pattern=spec.name,
        start_delay=START_DELAY if delay is None else delay.compiled(),
        outcomes=tuple(
            Outcome(outcome.after.compiled(), outcome.exit_code, outcome.reason)
            for outcome in spec.outcomes
        ),
        shares=tuple(share / total for share in itertools.accumulate(weights)),
        usage=spec.usage.compiled(),
        image=DEFAULT_IMAGE if spec.image is None else spec.image.compiled(),
        probes=spec.probes.compiled(),
    )
