"""List and watch as a machine: one `ListWatch` per resource and client, of kubelets `Reflector`s.

    LIST_STREAM --bookmark "initial events end"--> STREAM --closed--> RESUME -> STREAM ...
         |refused                                    |410, error, closed within 1 s
         v                                           v
        LIST --last page--> RESUME               back-off, then LIST_STREAM again

A closed watch goes on from the last version; an expired one starts again after a back-off of 0.8 s
doubling to 30 s. The initial events are passed on as they come, between `restarted` and SYNCED,
where upstream gathers them first: nothing here needs the whole at once.
Source: client-go/tools/cache/reflector.go, ListAndWatchWithContext, watchList, watch.
"""

import enum
import logging
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from urllib.parse import quote

from fleet.clock import NS_PER_MS, NS_PER_S, Draws
from fleet.errors import RemoteProtocolError
from fleet.k8s.effects import WatchKind
from fleet.k8s.pods import EventType
from fleet.metrics import Requests
from fleet.quantity import format_duration
from fleet.wire.api.framing import Partial, Split, split_lines
from fleet.wire.api.requests import SLICES, list_page, watch_from, watch_list
from fleet.wire.http2.messages import Cut, Failure, Request, Response, StreamOpened

# Source: client-go/tools/cache/reflector.go, defaultBackoffInit and the constants after it.
BACKOFF_FIRST_NS = 800 * NS_PER_MS
BACKOFF_MAX_NS = 30 * NS_PER_S
SHARED_BACKOFF_MAX_NS = 2 * NS_PER_S
BACKOFF_RESET_NS = 120 * NS_PER_S  # then the first wait is the short one again
DOUBLINGS_MAX = 20  # 2^20 of any first back-off is beyond every longest one
CALL_TRIES_MAX = 11  # client-go/rest/request.go, NewRequest: maxRetries, and the first one
RETRY_LEAST_S = 1
"""The shortest wait before client-go's REST client repeats a request by itself.

Source: client-go/rest/with_retry.go, retryAfterResponse: what it makes of a lost connection.
Differs: client-go does not wait at all after `Retry-After: 0`, ten times. With thousands of
kubelets that would be a flood on a server that is already refusing requests.
"""
NO_FAILURES: frozenset[Failure] = frozenset()
_ASKED_FOR_AGAIN = frozenset((Failure.LOST, Failure.UNREACHABLE))
"""Before a stream is open. Source: rest.Request.Watch: a probable EOF, or a time-out."""
LOST_FAILURES = frozenset((Failure.LOST, Failure.SILENT))
"""Source: rest.Request.request: a reset, a probable EOF, or an HTTP/2 connection that was lost."""
_BREAKS = frozenset((Failure.RESET, Failure.SILENT))
"""Ends of an open stream that its reader takes for errors. Source: StreamWatcher.receive."""
PAGES_MAX = 10_000  # so many pages of a list are read: 5 million objects, which no etcd holds
ENDLESS_LIST = "a list that does not end"
TOO_LARGE = b"ResourceVersionTooLarge"  # CauseTypeResourceVersionTooLarge, in a 504
SHORT_WATCH_NS = 1 * NS_PER_S  # reflector.go, VeryShortWatchError
OPEN_TIMEOUT_NS = 70 * NS_PER_S  # the API server answers a watch-list once its cache is fresh
_STREAM_TIMEOUT = 0x7A7C4
_STREAM_BACKOFF = 0xBAC0FF

_PATHS: dict[WatchKind, bytes] = {
    WatchKind.NODE: b"/api/v1/nodes",
    WatchKind.SERVICES: b"/api/v1/services",
    WatchKind.PODS: b"/api/v1/pods",
    WatchKind.RUNTIME_CLASSES: b"/apis/node.k8s.io/v1/runtimeclasses",
    WatchKind.CSI_DRIVERS: b"/apis/storage.k8s.io/v1/csidrivers",
    WatchKind.CONFIG_MAP: b"/api/v1/namespaces/%b/configmaps",
    WatchKind.SECRET: b"/api/v1/namespaces/%b/secrets",
    WatchKind.RESOURCE_SLICES: SLICES,
    WatchKind.CERTIFICATE_REQUESTS: b"/apis/certificates.k8s.io/v1/podcertificaterequests",
}
WATCH_RESOURCES = {kind: path.rpartition(b"/")[2].decode() for kind, path in _PATHS.items()}
_ALL_BOUND = b"fieldSelector=spec.nodeName%21%3D"
_OF_NODE = b"fieldSelector=spec.nodeName%3D"
_TIMEOUTS_S: dict[WatchKind, tuple[int, int]] = {
    WatchKind.CONFIG_MAP: (1800, 3600),  # pkg/kubelet/util/manager/watch_based_manager.go
    WatchKind.SECRET: (1800, 3600),
}
_TIMEOUT_S = (300, 600)  # reflector.go: from minWatchTimeout, 5 minutes, to twice that

Decode = Callable[[bytes, WatchKind | None], tuple[EventType, str, object]]
"""Turn one event into its type, the object's version and its record."""


DecodeList = Callable[[bytes, WatchKind | None], tuple[str, str, list[object]]]
"""Turn one page of a LIST into its version, the next page's token and its records."""


class WatchPhase(enum.IntEnum):
    """Where a reflector stands."""

    IDLE = 0
    LIST_STREAM = 1
    LIST = 2
    STREAM = 3
    BACK_OFF = 4
    STOPPED = 5


class Next(NamedTuple):
    """What to do after a request ended: ask again after `delay_ns`."""

    delay_ns: int
    expired: bool = False


@dataclass(slots=True, eq=False)
class ListWatch(ABC):
    """Keeps one list-watch going; what it is about stands in the classes below.

    `kind` distinguishes the requests of one client in seeded draws.
    """

    node: int
    kind: int
    phase: WatchPhase = WatchPhase.IDLE
    version: str = ""
    opens: int = 0
    waits: int = 0  # the number of its wait for the next request, 0 while there is one
    is_open: bool = False  # the server has accepted the stream
    lists_first: bool = False  # a snapshot is a LIST: the client does not ask for watch-lists
    resets_backoff: bool = True  # every two minutes of an outage; else after two without a failure
    _is_refused: bool = False  # its last version: any snapshot will do
    _partial: Partial = b""
    _token: str = ""
    _opened_ns: int = 0
    _events: int = 0  # of the stream; pages of a list
    _backoffs: int = 0
    _backoff_ns: int = 0
    _retries: int = 0  # how often the newest request was repeated, as it was

    @property
    def begins(self) -> bool:
        """Whether the newest request is the first one of a snapshot."""
        return self.phase is WatchPhase.LIST_STREAM or (
            self.phase is WatchPhase.LIST and not self._token
        )

    @property
    def reads(self) -> WatchKind | None:
        """Return of which kind the objects are read, None if nobody looks at them."""
        return None

    @property
    @abstractmethod
    def resource(self) -> str:
        """What it is about, as the API server's metrics name it."""

    @property
    @abstractmethod
    def is_generic(self) -> bool:
        """Whether the client asks by a generic list-watch, not by that of its type."""

    @abstractmethod
    def target(self) -> tuple[bytes, bytes]:
        """Return path and encoded selector, b"" for none."""

    def timeouts_s(self) -> tuple[int, int]:
        """Return between which ages the server is to end a watch."""
        return _TIMEOUT_S

    def backoff_ns(self) -> tuple[int, int]:
        """Return the first and the longest back-off."""
        return BACKOFF_FIRST_NS, BACKOFF_MAX_NS

    def open(self, draws: Draws, now_ns: int) -> Request:
        """Return the next request; `phase` says whether it starts a snapshot."""
        assert self.phase is not WatchPhase.STOPPED, self.resource
        self.opens += 1
        self.waits = 0
        self._opened_ns = now_ns
        self._backoff_ns = self._backoff_ns or now_ns
        if self.phase is not WatchPhase.LIST or not self._token:
            self._events = 0
        self.is_open = False
        self._partial = b""
        path, selector = self.target()
        version = self.version.encode()
        if self.phase is WatchPhase.IDLE and self.lists_first:
            self.phase = WatchPhase.LIST
        if self.phase is WatchPhase.STREAM:
            return self._request(watch_from, path, selector, version, draws)
        if self.phase is WatchPhase.LIST:
            # Version 0 comes out of the server's cache, however old: the cheapest list there is.
            version = version or (b"" if self._is_refused else b"0")
            page = list_page(path, selector, version, self._token.encode())
            return Request(b"GET", page, timeout_ns=OPEN_TIMEOUT_NS)
        self.phase = WatchPhase.LIST_STREAM
        return self._request(watch_list, path, selector, version, draws)

    def stop(self) -> None:
        """Forget what is open; the owner cancels the stream."""
        self.phase = WatchPhase.STOPPED
        self.waits = 0
        self._partial = b""

    def on_error_event(self, code: int, draws: Draws, now_ns: int) -> Next:
        """Decide after an ERROR event in the stream."""
        self._retries = 0
        if code == 429:  # the server is busy: how far we have read stays good
            return self._back_off(draws, now_ns)
        if self.phase is WatchPhase.LIST_STREAM:
            return self._refused(code, draws, now_ns)
        self.phase = WatchPhase.IDLE
        return self._back_off(draws, now_ns, expired=code == 410)

    def on_end(self, response: Response, draws: Draws, now_ns: int) -> Next:
        """Decide after the stream ended or the request was refused."""
        self._partial = b""
        if self.is_open:
            self._retries = 0
            return self._on_closed(response.failure, draws, now_ns)
        if (again := self._again(response, _ASKED_FOR_AGAIN)) is not None:
            return again
        if response.failure in _ASKED_FOR_AGAIN:
            return Next(0)  # Request.Watch, NewEmptyWatch: a watch that ended, after ten seconds
        if response.code == 429 or response.failure is Failure.DIAL:
            return self._back_off(draws, now_ns)
        return self._refused(response.code, draws, now_ns, response.body)

    def _on_closed(self, failure: Failure, draws: Draws, now_ns: int) -> Next:
        """Decide after an open stream ended; one that ends at once has brought nothing."""
        if failure in _BREAKS:
            return self.on_error_event(500, draws, now_ns)
        if now_ns - self._opened_ns >= SHORT_WATCH_NS or self._events:
            return Next(0)
        if self.phase is WatchPhase.LIST_STREAM:
            return self._refused(0, draws, now_ns)
        self.phase = WatchPhase.IDLE
        return self._back_off(draws, now_ns)

    def on_list_failed(self, response: Response, draws: Draws, now_ns: int) -> Next:
        """Decide after a LIST was refused: ask again, or for a watch-list, later."""
        if (again := self._again(response, LOST_FAILURES)) is not None:
            return again
        self._token = ""
        if self._refuses_version(response.code, response.body):
            return Next(0)
        self.phase = WatchPhase.IDLE
        return self._back_off(draws, now_ns)

    def _again(self, response: Response, failures: frozenset[Failure]) -> Next | None:
        """Return when client-go repeats a request by itself; None once it gives up."""
        wait_s = told_again_s(response, self._retries + 1, failures)
        self._retries = self._retries + 1 if wait_s >= 0 else 0  # what follows then is another one
        return Next(wait_s * NS_PER_S) if wait_s >= 0 else None

    def _refused(self, code: int, draws: Draws, now_ns: int, body: bytes = TOO_LARGE) -> Next:
        """Give up this way of asking: without a version, by LIST, or from the start."""
        if self.phase is WatchPhase.LIST_STREAM:
            if not self._refuses_version(code, body):
                self.phase = WatchPhase.LIST
            return Next(0, expired=code == 410)
        self.phase = WatchPhase.IDLE
        return self._back_off(draws, now_ns, expired=code == 410)

    def _refuses_version(self, code: int, body: bytes) -> bool:
        """Return whether the version was the reason: then the same is asked for without one.

        It has expired, or is newer than what a server that has just started knows.
        Source: reflector.go, watchList and list: isExpiredError, isTooLargeResourceVersionError.
        """
        is_told = code == 410 or (code == 504 and TOO_LARGE in body)
        if not is_told or not self.version:
            return False
        self.version, self._is_refused = "", True
        return True

    def _back_off(self, draws: Draws, now_ns: int, *, expired: bool = False) -> Next:
        """Back off with factor 2 and jitter 1.0.

        Source: backoffManager.Step, which notes only when it was reset; before 1.36
        exponentialBackoffManagerImpl.getNextBackoff, which notes each back-off.
        """
        is_reset = now_ns - self._backoff_ns > BACKOFF_RESET_NS
        if is_reset:
            self._backoffs = 0
        if is_reset or not self.resets_backoff:
            self._backoff_ns = now_ns
        first_ns, max_ns = self.backoff_ns()
        base = min(first_ns << self._backoffs, max_ns)
        self._backoffs = min(self._backoffs + 1, DOUBLINGS_MAX)
        jitter = draws.uniform(self.node, _STREAM_BACKOFF + self.kind, self.opens)
        return Next(int(base * (1 + jitter)), expired)

    def on_chunk(
        self, data: bytes, decode: Decode, split: Split = split_lines
    ) -> list[tuple[EventType, object]]:
        """Take bytes of the stream; return the whole events in them.

        An ERROR event carries the Status's code as its record, and ends the stream for the owner.
        """
        events, self._partial = split(self._partial, data)
        found: list[tuple[EventType, object]] = []
        for event in events:
            kind, version, record = decode(event, self.reads)
            found.append((kind, record))
            self._on_event(kind, version)
            if kind is EventType.ERROR:
                break
        return found

    def on_page(self, body: bytes, decode: DecodeList) -> list[tuple[EventType, object]]:
        """Take one page of a LIST; SYNCED follows the last."""
        version, token, records = decode(body, self.reads)
        found: list[tuple[EventType, object]] = [(EventType.ADDED, each) for each in records]
        if self._on_page(version, token):
            found.append((EventType.SYNCED, None))
        return found

    def _on_event(self, event: EventType, version: str) -> None:
        """Note one event of the stream: initial ones are of no version to go on from."""
        self._events += 1
        if event is EventType.ERROR:
            return
        if self.phase is WatchPhase.STREAM or event is not EventType.ADDED:
            self.version = sys.intern(version)  # of thousands of nodes the same
        if event is EventType.SYNCED:
            self._synced()

    def _on_page(self, version: str, token: str) -> bool:
        """Note one page of a LIST; return whether it was the last.

        Raises RemoteProtocolError where pages do not end.
        """
        self._events += 1
        if token and (token == self._token or self._events >= PAGES_MAX):
            raise RemoteProtocolError(ENDLESS_LIST)
        self._token = token
        self._retries = 0
        if token:
            return False
        self.version = sys.intern(version)
        self._synced()
        return True

    def _synced(self) -> None:
        """All that there is has come; what changes follows."""
        self.phase = WatchPhase.STREAM
        self._events = 0
        self._is_refused = False

    def _request(
        self,
        render: Callable[[bytes, bytes, bytes, bytes], bytes],
        path: bytes,
        selector: bytes,
        version: bytes,
        draws: Draws,
    ) -> Request:
        low, high = self.timeouts_s()
        share = draws.uniform(self.node, _STREAM_TIMEOUT + self.kind, self.opens)
        timeout_s = int(low + share * (high - low))
        times = b"&timeoutSeconds=%d" % timeout_s
        if not self.is_generic:
            times = b"&timeout=%b" % format_duration(timeout_s * NS_PER_S).encode() + times
        url = render(path, selector, version, times)
        return Request(b"GET", url, stream=True, timeout_ns=OPEN_TIMEOUT_NS)


class Reflector(ListWatch):
    """A kubelet's list-watch. `name` is the object or node it is about, "" for all.

    Source: kubelet-reference 4.1. Without a name PODS asks for every pod that is bound. An encoded
    `selector` takes the place of the one that kind and name make.
    """

    __slots__ = ("_selector", "name", "namespace")
    kind: WatchKind

    def __init__(
        self, node: int, kind: WatchKind, name: str, namespace: str = "", selector: bytes = b""
    ) -> None:
        super().__init__(node, kind)
        self.name = name
        self.namespace = namespace
        self._selector = selector

    @property
    def reads(self) -> WatchKind | None:
        """Return of which kind the objects are read."""
        return None if self.kind is WatchKind.CERTIFICATE_REQUESTS else self.kind

    @property
    def resource(self) -> str:
        """Return what it is about, as the API server's metrics name it."""
        return WATCH_RESOURCES[self.kind]

    @property
    def is_generic(self) -> bool:
        """Whether the client asks by a generic list-watch, not by that of its type."""
        return self.kind is WatchKind.PODS

    def target(self) -> tuple[bytes, bytes]:
        """Return path and encoded selector, b"" for none."""
        path, name = _PATHS[self.kind], self.name.encode()
        if self._selector:
            return path, self._selector
        if self.kind is WatchKind.SERVICES:
            return path, b"fieldSelector=spec.clusterIP%21%3DNone"
        if self.kind is WatchKind.PODS:
            return path, _OF_NODE + name if name else _ALL_BOUND
        if self.kind is WatchKind.CERTIFICATE_REQUESTS:
            return path, _OF_NODE + name
        if self.namespace:
            path %= self.namespace.encode()
        return path, b"fieldSelector=metadata.name%3D" + name if name else b""

    def timeouts_s(self) -> tuple[int, int]:
        """Return between which ages the server is to end a watch."""
        return _TIMEOUTS_S.get(self.kind, _TIMEOUT_S)

    @property
    def is_between_events(self) -> bool:
        """Whether the stream brings changes, and the last event has come whole."""
        return self.phase is WatchPhase.STREAM and not self._partial

    def on_bookmark(self, version: str) -> None:
        """Take a bookmark that came whole, between two events."""
        self._events += 1
        self.version = sys.intern(version)


class SharedReflector(Reflector):
    """A list-watch of the whole process, by which its nodes see what they do not watch themselves.

    Differs: its back-off doubles to 2 s, with the jitter 4. A kubelet's doubles to 30 s, so that
    thousands of them do not ask at once; here thousands of nodes would wait for one draw, and
    blindly, though their Leases are renewed.
    """

    __slots__ = ()

    def backoff_ns(self) -> tuple[int, int]:
        """Return the first and the longest back-off."""
        return BACKOFF_FIRST_NS, SHARED_BACKOFF_MAX_NS


def label_selector(label: str) -> bytes:
    """Return the encoded selector of all objects with a label, given as `key=value` and so on."""
    return b"labelSelector=" + quote(label, safe="").encode()


def told_again_s(response: Response, tries: int, failures: frozenset[Failure] = NO_FAILURES) -> int:
    """Return after how many seconds client-go sends a request again by itself, -1 for never.

    `failures` are those after which it does so without an answer.
    Source: client-go/rest/with_retry.go, IsNextRetry, checkWait.
    """
    wait_s = RETRY_LEAST_S if response.failure in failures else -1
    if response.code == 429 or response.code >= 500:
        wait_s = response.retry_after_s
    return max(wait_s, RETRY_LEAST_S) if wait_s >= 0 and tries < CALL_TRIES_MAX else -1


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
    """The counters of the owner of a list-watch."""

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


_NONE = (b"", b"")


class Bookmarks:
    """The shapes of the bookmarks of one process, by the kind of what is watched."""

    def __init__(self) -> None:
        self._shapes: dict[WatchKind, tuple[bytes, bytes]] = {}

    def version_in(self, chunk: bytes, kind: WatchKind) -> str:
        """Return the version of a chunk that is one bookmark and nothing else; "" for any other."""
        head, tail = self._shapes.get(kind, _NONE)
        if head and chunk.startswith(head) and chunk.endswith(tail):
            digits = chunk[len(head) : len(chunk) - len(tail)]
            if digits.isdigit():
                return digits.decode()
        return ""

    def learn(self, chunk: bytes, kind: WatchKind, version: str) -> None:
        """Keep the shape of a chunk that was read as one bookmark, unless it is not clear."""
        digits = version.encode()
        if digits.isdigit() and chunk.count(digits) == 1:
            head, _, tail = chunk.partition(digits)
            self._shapes[kind] = head, tail
