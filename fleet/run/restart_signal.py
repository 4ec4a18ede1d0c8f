"""SIGHUP: a share of the kubelets restarts, in every process of the run.

A terminal that is closed sends the same signal; then the run ends, as by Ctrl-C.
"""

import os
import sys
from collections.abc import Callable

from fleet.host.node_host import NodeHost
from fleet.host.siblings import Siblings


class RestartSignal:
    """What SIGHUP does. `node_host` and `siblings` are set while there are any."""

    def __init__(
        self, share: float, end_run: Callable[[], None], note: Callable[[str], None]
    ) -> None:
        self._share = share
        self._end_run = end_run
        self._note = note
        self._had_terminal = _has_terminal()
        self.node_host: NodeHost | None = None
        self.siblings: Siblings | None = None

    def __call__(self) -> None:
        """Take the signal."""
        if self._had_terminal and not _has_terminal():
            self._end_run()
            return
        if self.node_host is None:
            self._note("SIGHUP: no kubelet runs that could restart")
            return
        restarted = self.node_host.restart(self.node_host.chosen(self._share))
        if self.siblings is not None:
            self.siblings.restart_kubelets()
        self._note(f"SIGHUP: restarting {restarted} of {self.node_host.size} kubelets")


def _has_terminal() -> bool:
    try:
        return os.isatty(sys.stdin.fileno())
    except (OSError, ValueError):  # closed, or replaced by something without a descriptor
        return False
