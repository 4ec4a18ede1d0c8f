"""What a container answers to its probes, as a timeline since its start.

A timeline is a list of phases. Before the first phase holds its opposite, so that "Success after
5s" is an application that takes five seconds to come up, and "Failure after 30s" one that breaks.
"""

import enum
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, Field, TypeAdapter, model_validator

from fleet.profile.distribution import ZERO, Distribution, DistributionField
from fleet.profile.schema import DurationNs, Spec
from fleet.profile.yaml_text import read_annotation

FOREVER = 1 << 62
TEXT_MAX = 4096
"""A longer annotation is ignored."""

PROBE_ANNOTATIONS = (
    "fleet.emulator/startup-probe",
    "fleet.emulator/readiness-probe",
    "fleet.emulator/liveness-probe",
)
"""By `ProbeKind`."""


class ProbeKind(enum.IntEnum):
    """Which probe of a container. Source: pkg/kubelet/prober/prober_manager.go, probeType."""

    STARTUP = 0
    READINESS = 1
    LIVENESS = 2


class ProbeAnswer(enum.Enum):
    """How a container answers to a probe."""

    SUCCESS = "Success"
    WARNING = "Warning"  # httpGet: a redirect to another host; elsewhere the same as Success
    FAILURE = "Failure"  # it says that it is not well
    REFUSED = "Refused"  # nothing listens
    TIMEOUT = "Timeout"  # no answer within the timeout of the probe
    ERROR = "Error"  # the probe cannot be run; this counts neither as success nor as failure

    @property
    def is_good(self) -> bool:
        """Return whether the probe counts as passed."""
        return self in {ProbeAnswer.SUCCESS, ProbeAnswer.WARNING}


class ProbePhase(NamedTuple):
    """What holds from an instant of the container's life on."""

    after_ns: int = 0
    answer: ProbeAnswer = ProbeAnswer.SUCCESS
    failure_rate: float = 0.0  # the share of the attempts that fail in spite of a good answer
    latency: Distribution = ZERO
    status_code: int = 0  # of a failing httpGet; 0 for 503
    output: str = ""  # of a failing exec; the body of a Warning; the text of an Error


class ProbeAttempt(NamedTuple):
    """One attempt, and how long it took."""

    answer: ProbeAnswer
    took_ns: int
    phase: ProbePhase


class ProbeBehavior(NamedTuple):
    """All phases of one probe. With `repeat_ns` they begin anew after so long."""

    phases: tuple[ProbePhase, ...] = (ProbePhase(),)
    repeat_ns: int = 0

    def at(self, age_ns: int) -> tuple[ProbePhase, int]:
        """Return the phase at an age of the container, and the age at which it ends."""
        round_ns = age_ns - age_ns % self.repeat_ns if self.repeat_ns else 0
        end_ns = round_ns + self.repeat_ns if self.repeat_ns else FOREVER
        for phase in reversed(self.phases):
            if round_ns + phase.after_ns <= age_ns:
                return phase, end_ns
            end_ns = round_ns + phase.after_ns
        return self.phases[0], end_ns


ALWAYS_GOOD = ProbeBehavior()
Probes = tuple[ProbeBehavior, ...]
"""By `ProbeKind`."""
ALL_GOOD: Probes = (ALWAYS_GOOD,) * len(ProbeKind)


def attempt(phase: ProbePhase, timeout_ns: int, failure: float, latency: float) -> ProbeAttempt:
    """Return how an attempt ends; `failure` and `latency` are draws of [0, 1)."""
    if phase.answer is ProbeAnswer.ERROR:
        return ProbeAttempt(phase.answer, 0, phase)
    took_ns = phase.latency.sample(latency) if phase.latency is not ZERO else 0
    if phase.answer is ProbeAnswer.TIMEOUT or took_ns >= timeout_ns:
        return ProbeAttempt(ProbeAnswer.TIMEOUT, timeout_ns, phase)
    if phase.answer.is_good and failure < phase.failure_rate:
        return ProbeAttempt(ProbeAnswer.FAILURE, took_ns, phase)
    return ProbeAttempt(phase.answer, took_ns, phase)


class ProbePhaseSpec(Spec):
    """One phase as it is written: `{after: 30s, result: Failure, statusCode: 500}`."""

    after: DurationNs = 0
    result: ProbeAnswer
    failure_rate: Annotated[float, Field(ge=0, le=1)] = 0.0
    latency: DistributionField = ZERO
    status_code: Annotated[int, Field(ge=400, le=599)] | None = None
    output: str = ""

    def compiled(self) -> ProbePhase:
        """Return what the prober reads."""
        return ProbePhase(
            self.after,
            self.result,
            self.failure_rate,
            self.latency,
            self.status_code or 0,
            self.output,
        )


class ProbeTimelineSpec(Spec):
    """What a probe finds over time."""

    phases: Annotated[tuple[ProbePhaseSpec, ...], Field(min_length=1)]
    repeat_every: DurationNs | None = None

    @model_validator(mode="after")
    def _is_in_order(self) -> "ProbeTimelineSpec":
        times = [phase.after for phase in self.phases]
        if times != sorted(set(times)):
            raise ValueError("the phases must be in the order of their times")
        if self.repeat_every is not None and self.repeat_every <= times[-1]:
            raise ValueError("repeatEvery must be above the time of the last phase")
        return self

    def compiled(self) -> ProbeBehavior:
        """Return what the prober reads, with the phase before the first one."""
        phases = [phase.compiled() for phase in self.phases]
        if phases[0].after_ns:
            good = phases[0].answer.is_good
            phases.insert(
                0, ProbePhase(answer=ProbeAnswer.REFUSED if good else ProbeAnswer.SUCCESS)
            )
        return ProbeBehavior(tuple(phases), self.repeat_every or 0)


def _from_short(value: object) -> object:
    """Read `Success after 5s, Failure after 1m`, or a plain list of phases."""
    if isinstance(value, str):
        value = [_phase_from_short(part) for part in value.split(",")]
    return {"phases": value} if isinstance(value, list | tuple) else value


def _phase_from_short(text: str) -> dict[str, str]:
    result, after, time = text.strip().partition(" after ")
    return {"result": result, **({"after": time.strip()} if after else {})}


ProbeTimelineField = Annotated[
    ProbeTimelineSpec,
    BeforeValidator(
        _from_short, json_schema_input_type=ProbeTimelineSpec | list[ProbePhaseSpec] | str
    ),
]
"""`Success after 5s, Failure after 1m`, or a list of phases, or the whole timeline."""


class ProbesSpec(Spec):
    """What the probes of a container find; one that is not named always succeeds."""

    startup: ProbeTimelineField | None = None
    readiness: ProbeTimelineField | None = None
    liveness: ProbeTimelineField | None = None

    def compiled(self) -> Probes:
        """Return what the prober reads, by kind."""
        return tuple(
            ALWAYS_GOOD if each is None else each.compiled()
            for each in (self.startup, self.readiness, self.liveness)
        )


_ANNOTATION: TypeAdapter[ProbeTimelineSpec] = TypeAdapter(ProbeTimelineField)


@lru_cache(maxsize=1024)
def parse_timeline(text: str) -> ProbeBehavior | None:
    """Return what an annotation says, as a PodBehavior says it; None if it cannot be read."""
    if len(text) > TEXT_MAX:
        return None
    try:
        return _ANNOTATION.validate_python(read_annotation(text)).compiled()
    except ValueError:  # pydantic's are such, too
        return None


def probes_with_annotations(probes: Probes, notes: Mapping[str, str]) -> Probes:
    """Return what the probes find, as the annotations of a pod override it."""
    if not any(key in notes for key in PROBE_ANNOTATIONS):
        return probes
    told = (parse_timeline(notes.get(key, "")) for key in PROBE_ANNOTATIONS)
    return tuple(new or old for new, old in zip(told, probes, strict=True))
