"""How containers start, take their hooks, and stop: what a behaviour or annotations declare.

An exec hook of which nothing is declared does what its command says, a sleep hook sleeps, and any
other hook succeeds at once. What a container of which nothing is declared makes of SIGTERM, its
program or its role says (runtime/program.py).
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from fleet.profile.distribution import DistributionField, constant_of
from fleet.profile.schema import Spec

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
