"""What a container leaves as its last words: its termination message."""

from fleet.k8s.pods import ContainerSpec
from fleet.runtime.shell.surroundings import CommandRun

MESSAGE_MAX = 4096
MESSAGE_LOG_MAX = 2048
MESSAGE_LINES_MAX = 80


def last_words(
    spec: ContainerSpec, run: CommandRun, declared: str, exit_code: int, ran_ns: int
) -> str:
    """Return the termination message of a container that ran for a while.

    Source: kuberuntime_container.go, getTerminationMessage, readLastStringFromContainerLogs.
    """
    life = spec.life
    message = declared or run.text(life.message_path, ran_ns)
    if not message and life.message_from_logs and exit_code:
        lines = run.text("", ran_ns).splitlines(keepends=True)[-MESSAGE_LINES_MAX:]
        return "".join(lines)[-MESSAGE_LOG_MAX:]
    return message[-MESSAGE_MAX:]
