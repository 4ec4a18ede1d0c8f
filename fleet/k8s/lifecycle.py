"""What a container's spec says about its life: restart rules, hooks, its last words, resizing."""

from typing import NamedTuple

RESTART = "Restart"
RESTART_ALL = "RestartAllContainers"


class RestartRule(NamedTuple):
    """Source: core/v1 ContainerRestartRule."""

    action: str
    operator: str  # In or NotIn
    values: tuple[int, ...]

    def matches(self, exit_code: int) -> bool:
        """Tell whether the rule speaks of an exit code."""
        if self.operator == "In":
            return exit_code in self.values
        return self.operator == "NotIn" and exit_code not in self.values


class Hook(NamedTuple):
    """A postStart or preStop handler. Source: core/v1 LifecycleHandler."""

    kind: str  # exec, httpGet, tcpSocket or sleep
    command: tuple[str, ...] = ()  # of exec
    path: str = ""  # of httpGet
    seconds: int = 0  # of sleep
    host: str = ""  # of httpGet and tcpSocket; "" for the address of the pod
    port: int = 0  # of httpGet and tcpSocket; 0 if it has no number
    is_tls: bool = False  # of httpGet


class ContainerLifecycle(NamedTuple):
    """Everything of one container that most containers do not say."""

    restart_rules: tuple[RestartRule, ...] = ()
    post_start: Hook | None = None
    pre_stop: Hook | None = None
    message_path: str = "/dev/termination-log"
    message_from_logs: bool = False  # terminationMessagePolicy: FallbackToLogsOnError
    resize_restarts: tuple[str, ...] = ()  # resources whose resize restarts the container


PLAIN_LIFE = ContainerLifecycle()


def matching_action(rules: tuple[RestartRule, ...], exit_code: int) -> str:
    """Return the action of the first rule that matches, "" when none does."""
    return next((rule.action for rule in rules if rule.matches(exit_code)), "")
