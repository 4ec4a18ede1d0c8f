"""A list-watch of a node agent: the whole protocol, but what comes is counted and dropped.

Source: client-go/tools/cache/reflector.go, as of `wire/watch.py`.
"""

import sys

from fleet.clock import Draws
from fleet.profile.agent_behavior import NODE, AgentModel, AgentWatch, Method
from fleet.wire.api.scan import NOTHING, Passed, scan_chunk, scan_list
from fleet.wire.api.watch import ListWatch, WatchPhase
from fleet.wire.http2.messages import Request


class AgentReflector(ListWatch):
    """Keeps one list-watch of one agent going. `at` is its place among the agent's watches."""

    __slots__ = ("_rest", "at", "model", "name")

    def __init__(self, node: int, name: str, model: AgentModel, at: int, seed: int) -> None:
        super().__init__(node, seed + at)
        self.name = name  # of the node
        self.model = model
        self.at = at
        self._rest = NOTHING

    @property
    def watch(self) -> AgentWatch:
        """What it is about."""
        return self.model.watches[self.at]

    @property
    def resource(self) -> str:
        """What it is about, as the API server's metrics name it."""
        return self.watch.resource

    @property
    def is_generic(self) -> bool:
        """Whether the client asks by a generic list-watch, not by that of its type."""
        return not self.watch.typed_client

    def target(self) -> tuple[bytes, bytes]:
        """Return path and encoded selector, b"" for none."""
        watch = self.watch
        return watch.path, watch.selector.replace(NODE, self.name.encode())

    def timeouts_s(self) -> tuple[int, int]:
        """Return between which ages the server is to end a watch."""
        return self.watch.timeouts_s

    def backoff_ns(self) -> tuple[int, int]:
        """Return the first and the longest back-off."""
        return self.model.backoff_ns

    def open(self, draws: Draws, now_ns: int) -> Request:
        """Return the next request; clients without watch-lists always begin with a LIST."""
        self._rest = NOTHING
        if self.phase is WatchPhase.IDLE and self.watch.method is Method.LIST_WATCH:
            self.phase = WatchPhase.LIST
        return super().open(draws, now_ns)

    def on_chunk(self, data: bytes) -> Passed:
        """Take bytes of the stream; return what went by."""
        passed, self._rest = scan_chunk(data, self._rest)
        self._events += passed.events
        if passed.is_synced:
            self._synced()
        if passed.version and self.phase is WatchPhase.STREAM:
            self.version = sys.intern(passed.version)  # of thousands of nodes the same
        return passed

    def on_page(self, body: bytes) -> bool:
        """Take one page of a LIST; return whether it was the last."""
        version, token = scan_list(body)
        return self._on_page(sys.intern(version), token)
