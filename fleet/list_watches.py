"""List-watches over a wire: open, count, close, and ask again when it is time to.

The kubelets' reflectors and those of node agents are kept going here; who takes what a stream
brings, and over which connection it comes, stands in the classes below.
"""

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from fleet.clock import Clock, Draws
from fleet.effects import Outbox
from fleet.errors import RemoteProtocolError
from fleet.metrics import Requests
from fleet.wire.messages import Failure, Request, Response, StreamOpened
from fleet.wire.watch import ListWatch, Next, Phase

UNREADABLE_CODE = 500
"""Of the ERROR that client-go makes of an event which it cannot read: NewClientErrorReporter."""
REJECTIONS_SHOWN_MAX = 5

log = logging.getLogger(__name__)

R = TypeVar("R", bound=ListWatch)


class Wire(Protocol):
    """What the reactor asks of a transport; the simulation has its own."""

    def send(self, pool: int, request: Request, token: object) -> None:
        """Queue one request; the answer comes to the inbox with the token."""
        ...

    def cancel(self, pool: int, token: object) -> None:
        """Give a request up: nothing of it is delivered any more."""
        ...

    def abandon(self, is_unwanted: Callable[[object], bool]) -> None:
        """Give up every request whose token says so."""
        ...

    def hang_up(self, pool: int) -> None:
        """Close the connections of a pool; its next request dials."""
        ...

    def flush(self) -> None:
        """Write what was queued."""
        ...

    def sweep(self, now_ns: int) -> None:
        """Look for what has timed out."""
        ...


class WatchCounts(Protocol):
    """The counters of whoever owns a list-watch."""

    requests: Requests
    watches_open: int
    watch_restarts: int
    watch_events: int
    rejected: Counter[str]


class Opening(NamedTuple):
    """One request of a list-watch; what still comes of an earlier one is ignored."""

    reflector: ListWatch
    number: int


class ListWatches(ABC, Generic[R]):
    """Keeps list-watches of one kind going."""

    def __init__(self, clock: Clock, draws: Draws) -> None:
        self.clock = clock
        self._draws = draws
        self._rejections_shown = 0

    @abstractmethod
    def _way(self, reflector: R) -> tuple[Wire, int]:
        """Return the connection that a list-watch uses: its wire and pool."""

    @abstractmethod
    def _counts_of(self, reflector: R) -> WatchCounts:
        """Return where a list-watch is counted."""

    @abstractmethod
    def _on_chunk(self, reflector: R, data: bytes, now_ns: int, out: Outbox) -> None:
        """Take bytes of a stream."""

    @abstractmethod
    def _on_page(self, reflector: R, body: bytes, now_ns: int, out: Outbox) -> None:
        """Take one page of a LIST."""

    @abstractmethod
    def _open_later(self, reflector: R, due_ns: int) -> None:
        """Call `_open` at an instant."""

    def _request(self, reflector: R) -> Request:
        return reflector.open(self._draws, self.clock.now_ns())

    def _open(self, reflector: R) -> None:
        request = self._request(reflector)
        wire, pool = self._way(reflector)
        wire.send(pool, request, Opening(reflector, reflector.opens))

    def _on_stream(self, reflector: R, message: object, now_ns: int, out: Outbox) -> None:
        """Take what the transport brought for the newest request of a list-watch."""
        if type(message) is bytes:
            try:
                self._on_chunk(reflector, message, now_ns, out)
            except RemoteProtocolError as error:
                self.reject(self._counts_of(reflector), error)
                self._on_error_event(reflector, UNREADABLE_CODE, now_ns)
            return
        counts = self._counts_of(reflector)
        if isinstance(message, StreamOpened):
            took_us = (message.arrived_ns - message.sent_ns) // 1000
            counts.requests.record(("WATCH", reflector.resource), 200, took_us)
            reflector.is_open = True
            counts.watches_open += 1
            return
        assert isinstance(message, Response), message
        if message.failure is Failure.OVERSIZED:
            counts.rejected[message.detail] += 1
        took_us = (message.arrived_ns - message.sent_ns) // 1000
        if reflector.phase is Phase.LIST:
            row = ("LIST", reflector.resource)
            counts.requests.record(row, message.code, took_us, len(message.body))
            if message.code == 200:
                try:
                    self._on_page(reflector, message.body, now_ns, out)
                except RemoteProtocolError as error:
                    self.reject(counts, error)
                    message = message._replace(code=UNREADABLE_CODE, retry_after_s=-1)
                else:
                    self._open(reflector)
                    return
            later = reflector.on_list_failed(message, self._draws, now_ns)
        else:
            if message.code != 200:
                counts.requests.record(("WATCH", reflector.resource), message.code, took_us)
            later = reflector.on_end(message, self._draws, now_ns)
        self._closed(reflector)
        self._reopen(reflector, later, now_ns)

    def _on_error_event(self, reflector: R, code: int, now_ns: int) -> None:
        """End a stream that brought an ERROR event, and ask again after the back-off."""
        wire, pool = self._way(reflector)
        wire.cancel(pool, Opening(reflector, reflector.opens))
        reflector.opens += 1  # the close that follows an ERROR must not end the back-off
        later = reflector.on_error_event(code, self._draws, now_ns)
        self._closed(reflector)
        self._reopen(reflector, later, now_ns)

    def reject(self, counts: WatchCounts, error: RemoteProtocolError) -> None:
        """Count what the server sent and nobody can read; the connection goes on."""
        counts.rejected[str(error)] += 1
        if self._rejections_shown < REJECTIONS_SHOWN_MAX:
            self._rejections_shown += 1
            log.warning("the server sent %s: %r", error, error.__cause__)

    def _closed(self, reflector: R) -> None:
        """Count an open watch no longer."""
        if reflector.is_open:
            reflector.is_open = False
            self._counts_of(reflector).watches_open -= 1

    def _reopen(self, reflector: R, later: Next, now_ns: int) -> None:
        """Ask again, now or after the back-off."""
        self._counts_of(reflector).watch_restarts += 1
        if later.delay_ns:
            self._open_later(reflector, now_ns + later.delay_ns)
        else:
            self._open(reflector)
