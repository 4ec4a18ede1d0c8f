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
from functools import cached_property, lru_cache
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import BeforeValidator, Field, TypeAdapter, field_validator, model_validator

from fleet.clock import NS_PER_S
from fleet.profile.distribution import ZERO, Distribution, DistributionField, constant_of
from fleet.profile.schema import PLACEHOLDER, DurationNs, Spec, check_placeholders
from fleet.profile.yaml_text import read_annotation
from fleet.quantity import Quantity, parse_quantity

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
    declared = (parse_timeline(notes.get(key, "")) for key in PROBE_ANNOTATIONS)
    return tuple(new or old for new, old in zip(declared, probes, strict=True))


START_FAILURE_ANNOTATION = "fleet.emulator/start-failure"
START_FAILURE_TIMES_ANNOTATION = "fleet.emulator/start-failure-times"
POST_START_ANNOTATION = "fleet.emulator/post-start"
PRE_STOP_ANNOTATION = "fleet.emulator/pre-stop"
STOP_TIME_ANNOTATION = "fleet.emulator/stop-time"
STOP_CODE_ANNOTATION = "fleet.emulator/stop-exit-code"
STOP_ERROR_ANNOTATION = "fleet.emulator/stop-error"
MESSAGE_ANNOTATION = "fleet.emulator/termination-message"
RESIZE_ERROR_ANNOTATION = "fleet.emulator/resize-error"
LIFECYCLE_ANNOTATIONS = (
    RESIZE_ERROR_ANNOTATION,
    START_FAILURE_ANNOTATION,
    START_FAILURE_TIMES_ANNOTATION,
    POST_START_ANNOTATION,
    PRE_STOP_ANNOTATION,
    STOP_TIME_ANNOTATION,
    STOP_CODE_ANNOTATION,
    STOP_ERROR_ANNOTATION,
    MESSAGE_ANNOTATION,
)

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


def lifecycle_with_annotations(
    life: LifecycleBehavior, notes: Mapping[str, str]
) -> LifecycleBehavior:
    """Apply the annotations of a pod; a value that cannot be read is ignored."""
    changes: dict[str, object] = {
        field: notes[key]
        for key, field in (
            (MESSAGE_ANNOTATION, "termination_message"),
            (RESIZE_ERROR_ANNOTATION, "resize_error"),
        )
        if key in notes
    }
    text = notes.get(START_FAILURE_ANNOTATION, "")
    given, _, message = (part.strip() for part in text.partition(":"))
    for reason in (each for each in FAILURE_MESSAGES if each == given):
        times = notes.get(START_FAILURE_TIMES_ANNOTATION, "")
        changes["start_failure"] = StartFailure(
            reason=reason,
            message=message,
            times=int(times) if times.isascii() and times.isdigit() and len(times) <= 9 else 0,
        )
    if POST_START_ANNOTATION in notes:
        changes["post_start"] = _hook(notes[POST_START_ANNOTATION], life.post_start)
    if PRE_STOP_ANNOTATION in notes:
        changes["pre_stop"] = _hook(notes[PRE_STOP_ANNOTATION], life.pre_stop)
    stop: dict[str, object] = {}
    text = notes.get(STOP_TIME_ANNOTATION, "")
    if text == "never":
        stop["ignored"] = True
    elif text == "hangs":
        stop["hangs"] = True
    elif (delay := constant_of(text)) is not None:
        stop |= {"delay": delay, "ignored": False, "hangs": False}
    if STOP_ERROR_ANNOTATION in notes:
        stop["error"] = notes[STOP_ERROR_ANNOTATION]
    code = notes.get(STOP_CODE_ANNOTATION, "")
    if code.isascii() and code.isdigit() and len(code) <= 3 and int(code) <= CODE_MAX:
        stop["exit_code"] = int(code)
    if stop:
        changes["stop"] = life.stop.model_copy(update=stop)
    return life.model_copy(update=changes) if changes else life


def _hook(text: str, hook: HookBehavior) -> HookBehavior:
    """Read `2s`, `fail`, or both."""
    words = text.split()
    durations = [found for word in words if (found := constant_of(word)) is not None]
    if len(durations) + words.count("fail") != len(words):
        return hook
    duration = durations[-1] if durations else hook.duration
    return HookBehavior(duration=duration, fails="fail" in words)


INTERVAL_NS_MAX = 1 << 61
LOGS_ANNOTATION = "fleet.emulator/logs"
LINE_MAX = 16 << 10
"""A longer line is split by containerd (max_container_log_line_size)."""
RATE_MAX = 100_000.0
ANNOTATION_MAX = 4096
PLACEHOLDERS = ("index", "time", "level", "random", "pod", "namespace", "container", "node")
DEFAULT_TEMPLATE = "{{time}} {{level}} request {{index}} of {{pod}} took {{random}} us"


class LogBehavior(Spec):
    """The lines that a container writes while it runs."""

    lines_per_second: Annotated[float, Field(gt=0, le=RATE_MAX)] = 1.0
    size: Annotated[int, Field(ge=0, le=LINE_MAX)] = 0  # bytes, filled up to; 0: as it comes
    format: Literal["Text", "Json"] = "Text"
    template: Annotated[str, Field(min_length=1, max_length=LINE_MAX)] = DEFAULT_TEMPLATE
    stderr_share: Annotated[float, Field(ge=0, le=1)] = 0.0
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


@lru_cache(maxsize=1024)
def _parse_logs(text: str) -> LogBehavior | None:
    """Return what an annotation says, as a PodBehavior says it; None if it cannot be read."""
    if len(text) > ANNOTATION_MAX:
        return None
    try:
        return LogBehavior.model_validate(read_annotation(text))
    except ValueError:  # pydantic's are such, too
        return None


def logs_with_annotations(logs: LogBehavior | None, notes: Mapping[str, str]) -> LogBehavior | None:
    """Return what a container says once the annotations of its pod are applied."""
    text = notes.get(LOGS_ANNOTATION)
    return logs if text is None else _parse_logs(text) or logs
