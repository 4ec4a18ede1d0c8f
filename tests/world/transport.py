"""A transport in virtual time: what the reactor knows as `Wire`, with seeded latencies.

    flush -> half a latency -> SimApiServer -> the other half -> the inbox

Every `send` is answered by exactly one Response unless it is cancelled, as by the real one. A pool
is one connection; chunks of a watch keep their order, and some are cut in two.
"""

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qs

from fleet.clock import NS_PER_MS, NS_PER_S, Draws
from fleet.wire.http2.http2_codec import Inbox
from fleet.wire.http2.messages import (
    Cut,
    Failure,
    Request,
    Response,
    StreamOpened,
    swallows_input,
    swallows_output,
)
from world.api_server import UNAUTHORIZED, Answer, SimApiServer, Watch
from world.sim_clock import SimClock

BOOKMARK_NS = 60 * NS_PER_S
GIVEN_UP_NS = 45 * NS_PER_S  # a connection in a black hole: 30 s of silence, 15 s for a ping
Pools = frozenset[int] | None
"""Whose connections a fault is of; None for all."""


Content = bytes | Response | StreamOpened


class Link(Protocol):
    """What answers, and pieces of them, go through on their way; it calls `SimTransport.take`."""

    def carry(
        self, pool: int, number: int, request: Request, sent_ns: int, what: Content
    ) -> None: ...


class Sent(NamedTuple):
    """One line of the trace; `t_ns` is when the request left, code 0 means no answer."""

    t_ns: int
    node: str
    verb: str
    path: str
    code: int


class _Exchange:
    """One request from `flush` to its answer."""

    __slots__ = ("done", "last_ns", "pool", "request", "sent_ns", "token", "watch")

    def __init__(self, pool: int, request: Request, token: object) -> None:
        self.pool = pool
        self.request = request
        self.token = token
        self.sent_ns = 0
        self.last_ns = 0  # chunks keep their order
        self.watch: Watch | None = None
        self.done = False


class SimTransport:
    """A transport with one connection per pool and seeded latencies; see reactor.Wire."""

    def __init__(
        self,
        server: SimApiServer,
        clock: SimClock,
        inbox: Inbox,
        draws: Draws,
        names: list[str],
    ) -> None:
        self.server = server
        self.trace: list[Sent] = []
        # What goes wrong now: faults of several kinds, and of several nodes, may overlap.
        self.refusing: list[Pools] = []
        self.silent: list[Pools] = []
        self.slow: list[tuple[Pools, int]] = []
        self.events_late_ns = 0  # how far the watches lag behind the answers
        self.refusals: list[tuple[Pools, Answer]] = []
        self.hung_up: list[int] = []
        self.has_token = True
        self.link: Link | None = None
        self._cuts: dict[int, Cut] = {}
        self._over: set[int] = set()  # pools whose token is over
        self._stalled: dict[int, list[tuple[Callable[..., None], tuple[Any, ...]]]] = {}
        self.clock = clock
        self._inbox = inbox
        self._draws = draws
        self._names = names
        self._queue: list[_Exchange] = []
        self._open: dict[int, _Exchange] = {}  # by a number of their own, in order
        self._numbers: dict[object, int] = {}  # of watches, by token
        self._due: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._seq = 0

    # ---- what the reactor calls ----

    def send(self, pool: int, request: Request, token: object) -> None:
        """Ask; it leaves with the next `flush`."""
        self._queue.append(_Exchange(pool, request, token))

    def cancel(self, pool: int, token: object) -> None:
        """Take a request or a watch back: it is not answered."""
        del pool
        self._queue = [each for each in self._queue if each.token != token]
        number = self._numbers.pop(token, None)
        if number is not None:
            self._end(number)

    def abandon(self, is_unwanted: Callable[[object], bool]) -> None:
        """Take back all that somebody does not want any more."""
        self._queue = [each for each in self._queue if not is_unwanted(each.token)]
        for number in [n for n, each in self._open.items() if is_unwanted(each.token)]:
            self._end(number)

    def hang_up(self, pool: int) -> None:
        """Close the connection of a pool from this side."""
        self.hung_up.append(pool)
        for number in [n for n, each in self._open.items() if each.pool == pool]:
            self.fail(number, Failure.LOST)

    def cut(self, pool: int, cut: Cut | None) -> None:
        """Separate a pool from the server, or None: join them again."""
        self._cuts.pop(pool, None)
        if cut is not None:
            self._cuts[pool] = cut
        if cut is Cut.RESET:
            self.drop(frozenset((pool,)))
        if cut is not None and cut is not Cut.RESET:
            for number, each in self._open.items():
                if each.pool == pool:
                    now_ns = self.clock.now_ns()
                    limit_ns, failure = _given_up(each.request, now_ns, each.sent_ns)
                    self._later(limit_ns, self._give_up, number, failure)
        if not (swallows_input(cut) or swallows_output(cut)):
            for action, arguments in self._stalled.pop(pool, ()):
                self._later(self.clock.now_ns() + NS_PER_MS, action, *arguments)

    def expire_token(self, pool: int, *, is_over: bool) -> None:
        """Answer 401 to what a pool asks for, or no more; what is open goes on."""
        if is_over:
            self._over.add(pool)
        else:
            self._over.discard(pool)

    def _give_up(self, number: int, failure: Failure) -> None:
        exchange = self._open.get(number)
        if exchange is not None and self._cuts.get(exchange.pool) not in {None, Cut.RESET}:
            self.fail(number, failure)

    def on_edge(self, *, rests: bool) -> None:
        """Do nothing: what comes is there at its time."""
        del rests

    def flush(self) -> None:
        """Let go what was asked for."""
        if not self._queue:
            return
        queue, self._queue = self._queue, []
        now_ns = self.clock.now_ns()
        for exchange in queue:
            self._seq += 1
            exchange.sent_ns = now_ns
            self._open[self._seq] = exchange
            if exchange.request.stream:
                assert exchange.token not in self._numbers, exchange.request.path
                self._numbers[exchange.token] = self._seq
            cut = self._cuts.get(exchange.pool)
            if cut is Cut.RESET or _is_hit(exchange.pool, self.refusing):
                self._later(now_ns + NS_PER_MS, self.fail, self._seq, Failure.DIAL)
            elif swallows_output(cut):
                limit_ns, failure = _given_up(exchange.request, now_ns, now_ns)
                self._later(limit_ns, self.fail, self._seq, failure)
            elif _is_hit(exchange.pool, self.silent):  # pings are answered, requests are not
                late_ns = exchange.request.timeout_ns or GIVEN_UP_NS
                self._later(now_ns + late_ns, self.fail, self._seq, Failure.TIMEOUT)
            else:
                half_ns = self._latency_ns(exchange.pool) // 2
                number = self._seq
                self._later(now_ns + half_ns, self._arrive, number, exchange, half_ns)
                if swallows_input(cut):
                    limit_ns, failure = _given_up(exchange.request, now_ns, now_ns)
                    self._later(limit_ns, self._give_up, number, failure)

    def sweep(self, now_ns: int) -> None:
        """Do nothing: connections here have no health of their own."""
        del now_ns

    # ---- what the simulation calls ----

    def next_ns(self) -> int | None:
        """Return when something is due next, None if nothing is."""
        return self._due[0][0] if self._due else None

    def advance(self) -> None:
        """Do what is due by now."""
        due, now_ns = self._due, self.clock.now_ns()
        while due and due[0][0] <= now_ns:
            _, _, action, arguments = heapq.heappop(due)
            self._act(action, arguments)

    def _act(self, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Do it, unless a black hole swallows it: then once it is over."""
        if not self._cuts:
            action(*arguments)
            return
        exchange = self._open.get(arguments[0])
        cut = None if exchange is None else self._cuts.get(exchange.pool)
        is_swallowed = swallows_output(cut) if action == self._arrive else swallows_input(cut)
        passes = action in (self.fail, self._give_up) or not is_swallowed
        if exchange is None or passes:
            action(*arguments)
        else:
            self._stalled.setdefault(exchange.pool, []).append((action, arguments))

    def drop(self, pools: Pools = None) -> None:
        """Lose connections; requests on their way still reach the server."""
        for number in [n for n, each in self._open.items() if _is_hit(each.pool, [pools])]:
            self.fail(number, Failure.LOST)

    # ---- a request's life ----

    def _later(self, due_ns: int, action: Callable[..., None], *arguments: Any) -> None:
        self._seq += 1
        heapq.heappush(self._due, (due_ns, self._seq, action, arguments))

    def _latency_ns(self, pool: int) -> int:
        """Draw 1 to 5 ms, and what faults add."""
        share = self._draws.uniform(pool, 0x1A7, self._seq)
        added_ns = (
            sum(by_ns for pools, by_ns in self.slow if _is_hit(pool, [pools])) if self.slow else 0
        )
        return int((1 + 4 * share) * NS_PER_MS) + added_ns

    def _refusal(self, pool: int) -> Answer | None:
        """Return what a fault has this node's requests answered with."""
        if pool in self._over:
            return self.server.encoded(UNAUTHORIZED)
        if not self.refusals:
            return None
        found = (answer for pools, answer in self.refusals if _is_hit(pool, [pools]))
        return next(found, None)

    def _note(self, exchange: _Exchange, code: int) -> None:
        request = exchange.request
        node = request.user.removeprefix(b"system:node:").decode() or self._names[exchange.pool]
        verb = "WATCH" if request.stream else request.method.decode()
        path = request.path.decode()
        if verb == "DELETE" and "fieldSelector" in path:
            verb = "DELETECOLLECTION"
        self.trace.append(Sent(exchange.sent_ns, node, verb, path, code))

    def _arrive(self, number: int, exchange: _Exchange, half_ns: int) -> None:
        request = exchange.request
        path = request.path.decode()
        if request.stream:
            if not exchange.done:
                self._open_watch(number, exchange, path, half_ns)
            return
        answer = self._refusal(exchange.pool)
        if answer is None:
            answer = self.server.handle(request.method.decode(), path, request.body)
        if exchange.done:
            return
        due_ns = self.clock.now_ns() + half_ns
        limit_ns = exchange.sent_ns + request.timeout_ns
        if request.timeout_ns and due_ns > limit_ns:
            self._later(limit_ns, self.fail, number, Failure.TIMEOUT)
        else:
            self._later(due_ns, self._answer, number, answer)

    def _open_watch(self, number: int, exchange: _Exchange, path: str, half_ns: int) -> None:
        now_ns = self.clock.now_ns()
        exchange.last_ns = now_ns + half_ns
        refused = self._refusal(exchange.pool) or self.server.refuse_watch(path)
        if refused is not None:
            self._later(exchange.last_ns, self._answer, number, refused)
            return
        self._later(exchange.last_ns, self._opened, number)
        exchange.watch = self.server.watch(
            path, partial(self._push, number), partial(self._ended, number)
        )
        timeout_s = int(parse_qs(path.partition("?")[2])["timeoutSeconds"][0])
        self._later(now_ns + timeout_s * NS_PER_S, self._time_out, number)
        self._later(now_ns + BOOKMARK_NS, self._bookmark, number)

    def _ended(self, number: int) -> None:
        """Answer a watch that the server ends, after all that it has said."""
        exchange = self._open.get(number)
        if exchange is not None:
            exchange.last_ns = max(exchange.last_ns, self.clock.now_ns())
            self._later(exchange.last_ns, self._answer, number, Answer(200, b""))

    def _push(self, number: int, data: bytes) -> None:
        """Deliver bytes of a watch; now and then cut in two, where it hurts."""
        exchange = self._open.get(number)
        if exchange is None:
            return
        now_ns = self.clock.now_ns()
        due_ns = now_ns + self.events_late_ns + self._latency_ns(exchange.pool) // 2
        exchange.last_ns = max(exchange.last_ns, due_ns)
        # By share, so that the story is the same in each encoding.
        share = 8 * self._draws.uniform(exchange.pool, 0xC07, self._seq)
        cut = 1 + int(share * (len(data) - 1)) if share < 1 else 0
        for part in (data[:cut], data[cut:]) if 0 < cut < len(data) else (data,):
            self._later(exchange.last_ns, self._chunk, number, part)

    def _opened(self, number: int) -> None:
        exchange = self._open.get(number)
        if exchange is not None:
            self._bring(number, exchange, StreamOpened(exchange.sent_ns, self.clock.now_ns()))

    def _chunk(self, number: int, data: bytes) -> None:
        exchange = self._open.get(number)
        if exchange is not None:
            self._bring(number, exchange, data)

    def _bring(self, number: int, exchange: _Exchange, what: Content) -> None:
        if self.link is None:
            self.take(number, what)
        else:
            self.link.carry(exchange.pool, number, exchange.request, exchange.sent_ns, what)

    def is_open(self, number: int) -> bool:
        """Return whether somebody waits for an answer, or for more of it."""
        return number in self._open

    def take(self, number: int, what: Content) -> None:
        """Put an answer, or a piece of it, into the inbox."""
        exchange = self._open.get(number)
        if exchange is None:
            return
        if isinstance(what, Response):
            self._end(number)
            if not exchange.request.stream or what.code != 200:
                self._note(exchange, what.code)
        elif isinstance(what, StreamOpened):
            self._note(exchange, 200)
        self._inbox.append((exchange.token, what))

    def fail_later(self, number: int, due_ns: int) -> None:
        """Let a request time out if it is not answered by then."""
        if number in self._open:
            self._later(max(due_ns, self.clock.now_ns()), self.fail, number, Failure.TIMEOUT)

    def _time_out(self, number: int) -> None:
        exchange = self._open.get(number)
        if exchange is not None and exchange.watch is not None:
            self.server.close(exchange.watch)
            exchange.watch.end()

    def _bookmark(self, number: int) -> None:
        exchange = self._open.get(number)
        if exchange is not None and exchange.watch is not None:
            self.server.bookmark(exchange.watch)
            self._later(self.clock.now_ns() + BOOKMARK_NS, self._bookmark, number)

    def _answer(self, number: int, answer: Answer) -> None:
        exchange = self._open.get(number)
        if exchange is not None:
            now_ns = self.clock.now_ns()
            response = Response(
                answer.code, answer.body, exchange.sent_ns, now_ns, answer.retry_after_s
            )
            self._bring(number, exchange, response)

    def fail(self, number: int, failure: Failure) -> None:
        exchange = self._end(number)
        if exchange is None:
            return
        self._note(exchange, 0)
        sent_ns = 0 if failure is Failure.DIAL else exchange.sent_ns
        response = Response(0, b"", sent_ns, self.clock.now_ns(), -1, failure, failure.name)
        self._inbox.append((exchange.token, response))

    def _end(self, number: int) -> _Exchange | None:
        exchange = self._open.pop(number, None)
        if exchange is None:
            return None
        exchange.done = True
        if exchange.request.stream and self._numbers.get(exchange.token) == number:
            del self._numbers[exchange.token]
        if exchange.watch is not None:
            self.server.close(exchange.watch)
        return exchange


def _given_up(request: Request, silent_ns: int, sent_ns: int) -> tuple[int, Failure]:
    """Return when a request without an answer is over, on a connection that is silent since then.

    Its own time-out may be first; that of a watch is for its beginning only.
    """
    limit_ns = silent_ns + GIVEN_UP_NS
    if not request.timeout_ns or (request.stream and sent_ns < silent_ns):
        return limit_ns, Failure.SILENT
    own_ns = sent_ns + request.timeout_ns
    if own_ns >= limit_ns:
        return limit_ns, Failure.SILENT
    return max(silent_ns, own_ns), Failure.TIMEOUT


def _is_hit(pool: int, faults: Sequence[Pools]) -> bool:
    return bool(faults) and any(pools is None or pool in pools for pools in faults)
