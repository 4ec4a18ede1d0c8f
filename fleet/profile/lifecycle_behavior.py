"""How containers start, take their hooks, and stop: what a behaviour or annotations declare.

An exec hook of which nothing is declared does what its command says, a sleep hook sleeps, and any
other hook succeeds at once. A container of which nothing is declared heeds SIGTERM and exits 0.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from fleet.profile.distribution import Distribution, DistributionField, constant
from fleet.profile.schema import Spec
from fleet.quantity import parse_positive_duration

START_FAILURE_ANNOTATION = "fleet.emulator/start-failure"
START_FAILURE_TIMES_ANNOTATION = "fleet.emulator/start-failure-times"
POST_START_ANNOTATION = "fleet.emulator/post-start"
PRE_STOP_ANNOTATION = "fleet.emulator/pre-stop"
STOP_TIME_ANNOTATION = "fleet.emulator/stop-time"
STOP_CODE_ANNOTATION = "fleet.emulator/stop-exit-code"
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
    MESSAGE_ANNOTATION,
)

RUN_ERROR = "RunContainerError"
CREATE_ERROR = "CreateContainerError"
CONFIG_ERROR = "CreateContainerConfigError"
FAILURE_MESSAGES = {
    RUN_ERROR: (
        "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
        "runc create failed: unable to start container process: error during container init: "
        'exec: "/entrypoint": stat /entrypoint: no such file or directory'
    ),
    CREATE_ERROR: "context deadline exceeded",
    CONFIG_ERROR: "container has runAsNonRoot and image will run as root",
}
CODE_MAX = 255


class HookSpec(Spec):
    """How a hook goes."""

    duration: DistributionField | None = None
    fails: bool = False


class StartFailureSpec(Spec):
    """Why a container cannot be started."""

    reason: Literal["RunContainerError", "CreateContainerError", "CreateContainerConfigError"]
    message: str = ""
    times: Annotated[int, Field(ge=0)] = 0  # how often, 0 for always


class StopSpec(Spec):
    """What a container does about SIGTERM."""

    delay: DistributionField | None = None
    exit_code: Annotated[int, Field(ge=0, le=CODE_MAX)] = 0
    ignored: bool = False  # only SIGKILL ends it


class LifecycleSpec(Spec):
    """How a container starts and stops."""

    start_failure: StartFailureSpec | None = None
    post_start: HookSpec | None = None
    pre_stop: HookSpec | None = None
    stop: StopSpec | None = None
    termination_message: str = ""
    resize_error: str = ""

    def compiled(self) -> "LifecycleBehavior":
        """Return what the runtime reads."""
        failure = self.start_failure
        compiled = None
        if failure is not None:
            text = failure.message or FAILURE_MESSAGES[failure.reason]
            compiled = StartFailure(failure.reason, text, failure.times)
        life = LifecycleBehavior(
            compiled,
            _compile_hook(self.post_start),
            _compile_hook(self.pre_stop),
            _compile_stop(self.stop),
            self.termination_message,
            self.resize_error,
        )
        return USUAL_LIFE if life == USUAL_LIFE else life


class HookBehavior(NamedTuple):
    """The compiled form of `HookSpec`. No duration: as the handler says."""

    duration: Distribution | None = None
    fails: bool = False


class StartFailure(NamedTuple):
    """The compiled form of `StartFailureSpec`."""

    reason: str
    message: str
    times: int = 0


class Stop(NamedTuple):
    """The compiled form of `StopSpec`. No delay: a few milliseconds."""

    delay: Distribution | None = None
    exit_code: int = 0
    ignored: bool = False


class LifecycleBehavior(NamedTuple):
    """What one container does at its edges."""

    start_failure: StartFailure | None = None
    post_start: HookBehavior = HookBehavior()
    pre_stop: HookBehavior = HookBehavior()
    stop: Stop = Stop()
    message: str = ""  # written to terminationMessagePath
    resize_error: str = ""  # why new resources cannot be applied

    def failure(self, attempt: int) -> StartFailure | None:
        """Return why the next start fails; `attempt` counts the containers made so far."""
        found = self.start_failure
        return None if found is None or (found.times and attempt >= found.times) else found


USUAL_LIFE = LifecycleBehavior()


def _compile_hook(spec: HookSpec | None) -> HookBehavior:
    if spec is None:
        return HookBehavior()
    return HookBehavior(None if spec.duration is None else spec.duration.compiled(), spec.fails)


def _compile_stop(spec: StopSpec | None) -> Stop:
    if spec is None:
        return Stop()
    delay = None if spec.delay is None else spec.delay.compiled()
    return Stop(delay, spec.exit_code, spec.ignored)


def lifecycle_with_annotations(
    life: LifecycleBehavior, notes: Mapping[str, str]
) -> LifecycleBehavior:
    """Apply the annotations of a pod; a value that cannot be read is ignored."""
    text = notes.get(START_FAILURE_ANNOTATION, "")
    reason, _, message = (part.strip() for part in text.partition(":"))
    if reason in FAILURE_MESSAGES:
        times = notes.get(START_FAILURE_TIMES_ANNOTATION, "")
        failure = StartFailure(
            reason,
            message or FAILURE_MESSAGES[reason],
            int(times) if times.isascii() and times.isdigit() else 0,
        )
        life = life._replace(start_failure=failure)
    if POST_START_ANNOTATION in notes:
        life = life._replace(post_start=_hook(notes[POST_START_ANNOTATION], life.post_start))
    if PRE_STOP_ANNOTATION in notes:
        life = life._replace(pre_stop=_hook(notes[PRE_STOP_ANNOTATION], life.pre_stop))
    stop = life.stop
    text = notes.get(STOP_TIME_ANNOTATION, "")
    if text == "never":
        stop = stop._replace(ignored=True)
    elif (delay := _duration(text)) is not None:
        stop = stop._replace(delay=delay, ignored=False)
    code = notes.get(STOP_CODE_ANNOTATION, "")
    if code.isascii() and code.isdigit() and int(code) <= CODE_MAX:
        stop = stop._replace(exit_code=int(code))
    return life._replace(
        stop=stop,
        message=notes.get(MESSAGE_ANNOTATION, life.message),
        resize_error=notes.get(RESIZE_ERROR_ANNOTATION, life.resize_error),
    )


def _hook(text: str, hook: HookBehavior) -> HookBehavior:
    """Read `2s`, `fail`, or both."""
    words = text.split()
    durations = [found for word in words if (found := _duration(word)) is not None]
    if len(durations) + words.count("fail") != len(words):
        return hook
    return HookBehavior(durations[-1] if durations else hook.duration, "fail" in words)


def _duration(text: str) -> Distribution | None:
    try:
        return constant(parse_positive_duration(text))
    except ValueError:
        return None
