"""List-watches over a wire: opened, counted, closed, and when to ask again.

The kubelets' reflectors and those of node agents are kept going by these functions; who takes what
a stream brings, and where its requests go (its `Lane`), is known to who calls them.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Protocol

from fleet.clock import Draws
from fleet.errors import RemoteProtocolError
from fleet.metrics import Requests
from fleet.wire.api.watch import ListWatch, Next, WatchPhase
from fleet.wire.http2.messages import Cut, Failure, Request, Response, StreamOpened

NOT_AGAIN = -1
UNREADABLE_CODE = 500
"""Of the ERROR that client-go makes of an event which it cannot read: NewClientErrorReporter."""
UNREADABLE = Response(UNREADABLE_CODE, b"", 0, 0, -1)
REJECTIONS_SHOWN_MAX = 5  # in the log: a fleet that is refused is refused thousands of times

log = logging.getLogger(__name__)


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

    def cut(self, pool: int, cut: Cut | None) -> None:
        """Cut an identity off from the server, or None: let its packets through again."""
        ...

    @property
    def has_token(self) -> bool:
        """Whether what is sent carries a bearer token."""
        ...

    def expire_token(self, pool: int, *, is_over: bool) -> None:
        """Let an identity send a token that is over, or again a good one."""
        ...

    def on_edge(self, *, rests: bool) -> None:
        """Take what has come, if it was left until now; with `rests`, leave what comes again."""
        ...

    def flush(self) -> None:
        """Write what was queued."""
        ...

    def sweep(self, now_ns: int) -> None:
        """Look for what has timed out."""
        ...


class Rejecting(Protocol):
    """Who counts what nobody can read."""

    rejected: Counter[str]


class WatchCounts(Rejecting, Protocol):
    """The counters of whoever owns a list-watch."""

    requests: Requests
    watches_open: int
    watch_restarts: int
    watch_events: int


class Lane(NamedTuple):
    """Where the requests of a list-watch go, where they are counted, and its chance."""

    wire: Wire
    pool: int
    counts: WatchCounts
    draws: Draws
    user: bytes = b""  # that each request names, on a connection of several users


class Opening(NamedTuple):
    """One request of a list-watch; what still comes of an earlier one is ignored."""

    reflector: ListWatch
    number: int


class Step(NamedTuple):
    """What the owner of a list-watch does next: take a page, ask again after `wait_ns`."""

    wait_ns: int = NOT_AGAIN
    page: bytes | None = None  # of a LIST, to be taken before the next request


_WAIT = Step()


def open_watch(watch: ListWatch, lane: Lane, now_ns: int) -> None:
    """Send the next request of a list-watch."""
    request = watch.open(lane.draws, now_ns)
    if lane.user:
        request = request._replace(user=lane.user)
    lane.wire.send(lane.pool, request, Opening(watch, watch.opens))


def on_message(watch: ListWatch, lane: Lane, message: StreamOpened | Response, now_ns: int) -> Step:
    """Take all that the transport brings for the newest request, but the bytes of a stream."""
    counts = lane.counts
    took_us = message.took_us
    if isinstance(message, StreamOpened):
        counts.requests.record(("WATCH", watch.resource), 200, took_us)
        watch.is_open = True
        counts.watches_open += 1
        return _WAIT
    if message.failure is Failure.OVERSIZED:
        counts.rejected[message.detail] += 1
    if watch.phase is WatchPhase.LIST:
        row = ("LIST", watch.resource)
        if message.failure is not Failure.OWN_LIMIT:  # the transport has counted it
            counts.requests.record(row, message.code, took_us, len(message.body))
        if message.code == 200:
            return Step(0, message.body)
        return _again(watch, lane, watch.on_list_failed(message, lane.draws, now_ns))
    if message.code != 200 and message.failure is not Failure.OWN_LIMIT:
        # An accepted one was counted as it opened.
        counts.requests.record(("WATCH", watch.resource), message.code, took_us)
    return _again(watch, lane, watch.on_end(message, lane.draws, now_ns))


def on_error_event(watch: ListWatch, lane: Lane, code: int, now_ns: int) -> Step:
    """End a stream that brought an ERROR event."""
    lane.wire.cancel(lane.pool, Opening(watch, watch.opens))
    watch.opens += 1  # the close that follows an ERROR must not end the back-off
    return _again(watch, lane, watch.on_error_event(code, lane.draws, now_ns))


def on_unreadable(watch: ListWatch, lane: Lane, error: RemoteProtocolError, now_ns: int) -> Step:
    """Take what cannot be read of a page, or of a stream, for a refusal."""
    reject(lane.counts, error)
    if watch.phase is WatchPhase.LIST:
        return _again(watch, lane, watch.on_list_failed(UNREADABLE, lane.draws, now_ns))
    return on_error_event(watch, lane, UNREADABLE_CODE, now_ns)


def reject(counts: Rejecting, error: RemoteProtocolError) -> None:
    """Count what the server sent and nobody can read; the connection goes on."""
    counts.rejected[str(error)] += 1
    if counts.rejected.total() <= REJECTIONS_SHOWN_MAX:
        log.warning("the server sent %s: %r", error, error.__cause__)


def hang_up(watch: ListWatch, lane: Lane) -> None:
    """End a list-watch for good; nothing more of it is delivered."""
    lane.wire.cancel(lane.pool, Opening(watch, watch.opens))
    end(watch, lane.counts)


def end(watch: ListWatch, counts: WatchCounts) -> None:
    """Take note that a list-watch is over, with its connection."""
    closed(watch, counts)
    watch.stop()


def closed(watch: ListWatch, counts: WatchCounts) -> None:
    """Count an open watch no longer."""
    if watch.is_open:
        watch.is_open = False
        counts.watches_open -= 1


def _again(watch: ListWatch, lane: Lane, later: Next) -> Step:
    closed(watch, lane.counts)
    lane.counts.watch_restarts += 1
    return Step(later.delay_ns)
