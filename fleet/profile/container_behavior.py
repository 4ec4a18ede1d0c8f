"""What a container answers to probes and signals, and what it says in its log.

The answers to a probe are a timeline since the container's start: a list of phases. Before the
first phase holds its opposite, so that "Success after 5s" is an application that takes five seconds
to come up, and "Failure after 30s" one that breaks. If no log is declared it is what the
container's own script prints. An exec hook of which nothing is declared does what its command
says, a sleep hook sleeps, and any other hook succeeds at once. What a container of which nothing is
declared makes of SIGTERM, its program or its role says (runtime/program.py).
"""

import enum
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import BeforeValidator, Field, field_validator, model_validator

from fleet.clock import NS_PER_S
from fleet.profile.distribution import ZERO, Distribution, DistributionField
from fleet.profile.schema import PLACEHOLDER, CompiledFrom, DurationNs, Spec, check_placeholders
from fleet.quantity import Quantity, parse_quantity

FOREVER = 1 << 62


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
    """All phases of one probe. With `repeat_ns` they begin again after so long."""

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
    """One phase as it is written, in the order of `ProbePhase`: `{after: 30s, result: Failure}`."""

    after: DurationNs = 0
    result: ProbeAnswer
    failure_rate: Annotated[float, Field(ge=0, le=1)] = 0.0
    latency: DistributionField = ZERO
    status_code: Annotated[int, Field(ge=400, le=599)] = 0
    output: str = ""


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
        phases = [ProbePhase(*dict(each).values()) for each in self.phases]
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


_Written = Annotated[
    ProbeTimelineSpec,
    BeforeValidator(
        _from_short, json_schema_input_type=ProbeTimelineSpec | list[ProbePhaseSpec] | str
    ),
]
ProbeField = Annotated[
    ProbeBehavior, CompiledFrom(_Written, ProbeBehavior, ProbeTimelineSpec.compiled)
]
"""`Success after 5s, Failure after 1m`, or a list of phases, or the whole timeline."""


class Probes(Spec):
    """What the probes of a container find; one that is not named always succeeds."""

    startup: ProbeField | None = None
    readiness: ProbeField | None = None
    liveness: ProbeField | None = None

    def of(self, kind: ProbeKind) -> ProbeBehavior:
        return (self.startup, self.readiness, self.liveness)[kind] or ALWAYS_GOOD


StartReason = Literal["RunContainerError", "CreateContainerError", "CreateContainerConfigError"]
RUN_ERROR: Final = "RunContainerError"
CREATE_ERROR: Final = "CreateContainerError"
CONFIG_ERROR: Final = "CreateContainerConfigError"
FAILURE_MESSAGES: dict[StartReason, str] = {
    RUN_ERROR: (
        "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
        "runc create failed: unable to start container process: error during container init: "
        'exec: "/entrypoint": stat /entrypoint: no such file or directory'
    ),
    CREATE_ERROR: "context deadline exceeded",
    CONFIG_ERROR: "container has runAsNonRoot and image will run as root",
}
CODE_MAX = 255
HANGS: Final = "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
"""What a kubelet makes of a call of its runtime that is not answered."""


class HookBehavior(Spec):
    """How a hook goes; no duration: as its handler says."""

    duration: DistributionField | None = None
    fails: bool = False


class StartFailure(Spec):
    """Why a container cannot be started."""

    reason: StartReason
    message: str = ""
    times: Annotated[int, Field(ge=0)] = 0  # how often, 0 for always

    @property
    def text(self) -> str:
        """The message, else the usual one of the reason."""
        return self.message or FAILURE_MESSAGES[self.reason]


class Stop(Spec):
    """What a container does about SIGTERM; nothing declared: as its program or its role says.

    With a delay or a code it heeds SIGTERM: after a few milliseconds, with the code of its role.
    """

    delay: DistributionField | None = None
    exit_code: Annotated[int, Field(ge=0, le=CODE_MAX)] | None = None
    ignored: bool = False  # only SIGKILL ends it
    hangs: bool = False  # nor does that: the runtime waits for its end, and does not answer
    error: str = ""  # why the runtime cannot kill it, while that is declared

    @property
    def problem(self) -> str:
        """Why it survives SIGKILL, "" if it does not."""
        return HANGS if self.hangs else self.error


class LifecycleBehavior(Spec):
    """How a container starts and stops."""

    start_failure: StartFailure | None = None
    post_start: HookBehavior = HookBehavior()
    pre_stop: HookBehavior = HookBehavior()
    stop: Stop = Stop()
    termination_message: str = ""  # written to terminationMessagePath
    resize_error: str = ""  # why new resources cannot be applied

    def failure(self, attempt: int) -> StartFailure | None:
        """Return why the next start fails; `attempt` counts the containers made so far."""
        found = self.start_failure
        return None if found is None or (found.times and attempt >= found.times) else found


USUAL_LIFE = LifecycleBehavior()

INTERVAL_NS_MAX = 1 << 61
LINE_MAX = 16 << 10  # a longer line is split by containerd (max_container_log_line_size)
RATE_MAX = 100_000.0
PLACEHOLDERS = ("index", "time", "level", "random", "pod", "namespace", "container", "node")
DEFAULT_TEMPLATE = "{{time}} {{level}} request {{index}} of {{pod}} took {{random}} us"


class LogBehavior(Spec):
    """The lines that a container writes while it runs."""

    lines_per_second: Annotated[float, Field(gt=0, le=RATE_MAX)] = 1.0
    size: Annotated[int, Field(ge=0, le=LINE_MAX)] = 0  # bytes, filled up to; 0: as it comes
    template: Annotated[str, Field(min_length=1, max_length=LINE_MAX)] = DEFAULT_TEMPLATE
    max_lines: Annotated[int, Field(ge=1)] | None = None

    @field_validator("size", mode="before")
    @classmethod
    def _is_an_amount(cls, value: object) -> object:
        if isinstance(value, str):
            value = parse_quantity(value)
        return value.value if isinstance(value, Quantity) else value

    @field_validator("template")
    @classmethod
    def _is_known(cls, text: str) -> str:
        check_placeholders(text, PLACEHOLDERS)
        if "\n" in text:
            raise ValueError("a line has no line break")
        return text

    @cached_property
    def interval_ns(self) -> int:
        """How long after one line the next one is written."""
        return round(min(NS_PER_S / self.lines_per_second, INTERVAL_NS_MAX))

    def text(self, values: Mapping[str, str]) -> str:
        """Return a line by the values of the placeholders."""
        return PLACEHOLDER.sub(lambda found: values[found[1]], self.template)
