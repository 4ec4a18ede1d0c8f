"""The transport: pools of connections for thousands of identities, and one flush a turn.

    send -> a stream on a connection with room, or the pool's queue and a dial
    flush -> one write per connection that has something to say
    poller -> read, decode, inbox; then `on_ready` once per batch
    sweep -> time-outs, pings, dials that take too long: once a second, no timer per connection

Every `send` is answered by exactly one Response, whatever happens, unless it is cancelled.
Source: golang.org/x/net/http2/transport.go and client-go/transport for limits and retries.
Differs: accept-encoding is not announced (Go's client sends gzip; an API server compresses only
answers above 128 KB).
"""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable

from fleet.clock import NS_PER_S
from fleet.wire.http2.http2_codec import STREAMS_DEFAULT, ErrorCode, Inbox, Stream
from fleet.wire.http2.messages import Cut, Failure, Request, swallows_input, swallows_output
from fleet.wire.sockets import dials
from fleet.wire.sockets.connection import (
    DEFAULT_LIMITS,
    NEVER,
    UP,
    Connection,
    ConnectionHealth,
    ConnectionState,
    Descriptors,
    HeaderPlans,
    Pool,
    PoolLimits,
    TlsContext,
    UserAgent,
    explain,
    prepare_context,
)
from fleet.wire.sockets.poller import READ, WRITE, Poller

READS_PER_EVENT_MAX = 4  # of 64 KiB; then the next connection has its turn
READ_AGAIN_BYTES = 32_768  # more is likely to wait
RESET_BY_PEER = "connection reset by peer"
BEHIND_NS = 5_000_000_000  # a watch that ends this soon after a lag of ours was closed as slow


class Transport:
    """See the top of this file. One per process and endpoint; used from the loop's thread."""

    def __init__(
        self,
        endpoint: dials.Endpoint,
        ssl_context: ssl.SSLContext,
        *,
        user_agent: UserAgent,
        authorization: bytes | None,
        accept: bytes,
        now_ns: Callable[[], int],
        inbox: Inbox,
        on_ready: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
        impersonate_group: bytes = b"",
        health: ConnectionHealth = ConnectionHealth(),  # noqa: B008 - immutable
        look_up: dials.LookUp | None = None,
    ) -> None:
        prepare_context(ssl_context)
        self._context = ssl_context
        self._now_ns = now_ns
        self._inbox = inbox
        self._on_ready = on_ready
        self._idle_ns = health.idle_ns  # 0: what is silent is never pinged
        self._ping_ns = health.ping_ns
        self._plans = HeaderPlans(
            endpoint.authority(), user_agent, authorization, accept, impersonate_group
        )
        self._pools: dict[int, Pool] = {}
        self._cuts: dict[int, Cut] = {}  # by pool: those that a partition separates
        self._fifos: dict[int, deque[Stream]] = {}  # one per time-out value
        self._dirty: list[Connection] = []
        self._delayed: list[Pool] = []  # those that have requests to send again later
        self._poller = Poller(loop, now_ns, self._on_event, self._on_drained)
        self._descriptors = Descriptors(self._poller)
        self._by_fd = self._descriptors.by_fd  # looked up for each event
        self.stats = dials.TransportStats()
        self._dials = dials.Dials(
            endpoint,
            self._plans,
            now_ns,
            inbox,
            on_ready,
            loop,
            look_up,
            self._descriptors,
            self._pools,
            self._cuts,
            self.stats,
        )

    def open_pool(
        self,
        pool: int,
        user: bytes = b"",
        ssl_context: TlsContext | None = None,
        limits: PoolLimits = DEFAULT_LIMITS,
    ) -> None:
        """Add an identity. It dials at its first request, or by `connect`."""
        assert pool not in self._pools, pool
        if isinstance(ssl_context, ssl.SSLContext):
            prepare_context(ssl_context)
        self._pools[pool] = Pool(pool, user, ssl_context or self._context, limits)

    def drop_connections(self, pool: int, detail: str) -> None:
        """Close an identity's connections under what is on them; new ones are dialed as needed.

        Source: client-go/util/connrotation/connrotation.go, CloseAll.
        """
        for connection in self._pools[pool].connections:
            self._lose(connection, detail)
        self._notify()

    def close_pool(self, pool: int) -> None:
        """Remove an identity; what it still waits for is answered with CANCELLED."""
        entry = self._pools.pop(pool)
        now_ns = self._now_ns()
        self._dials.give_up(entry)
        wanted = [stream for stream in entry.requests() if not stream.done]
        connections, entry.connections = entry.connections, ()
        entry.waiting = entry.delayed = ()
        for connection in connections:
            self._part(connection, ErrorCode.NO_ERROR)
            self._descriptors.discard(connection)
            self.stats.connections -= 1
        for stream in wanted:
            failed = stream.fail(Failure.CANCELLED, "the pool was closed", now_ns)
            self._inbox.append(failed)
        self._notify()

    def hang_up(self, pool: int) -> None:
        """Close the connections of a pool; its next request dials. Its requests are CANCELLED."""
        entry = self._pools[pool]
        self.close_pool(pool)
        self.open_pool(pool, entry.user, entry.context, entry.limits)

    def cut(self, pool: int, cut: Cut | None) -> None:
        """Separate an identity from the server, or None: join it again.

        No end of a connection learns of a black hole. What waits in the kernel passes once
        it is over, as repeated packets would; a dial that hangs begins again.
        Differs: a connection that we give up in that time is closed for the server, too.
        """
        before = self._cuts.pop(pool, None)
        if cut is not None:
            self._cuts[pool] = cut
        entry = self._pools.get(pool)
        if entry is None or cut is before:
            return
        for connection in entry.connections:
            if swallows_input(before):
                self._poller.register(connection.fd, connection.mask)
            self._mark(connection)
        if entry.dialing is not None and entry.dialing.fd >= 0:
            self._dials.give_up(entry)
        if cut is Cut.RESET:
            for connection in entry.connections:
                self._lose(connection, RESET_BY_PEER)
        elif swallows_input(cut):
            for connection in entry.connections:
                self._poller.unregister(connection.fd)
        if entry.waiting:
            self._pump(entry)
        self._notify()

    # ---- requests ----

    def send(self, pool: int, request: Request, token: object) -> None:
        """Queue a request; its bytes leave at `flush`."""
        entry = self._pools[pool]
        stream = Stream(token, request, request.stream)
        if request.timeout_ns:
            stream.deadline_ns = self._now_ns() + request.timeout_ns
            fifo = self._fifos.get(request.timeout_ns)
            if fifo is None:
                fifo = self._fifos[request.timeout_ns] = deque()
            fifo.append(stream)
        self.stats.requests += 1
        connection = None if entry.waiting else entry.with_room()
        if connection is None:
            self._wait(entry, stream)
            return
        self._open(connection, stream)

    def is_asking(self) -> bool:
        """Return whether a server has requests to answer, but for watches and who is cut off."""
        return any(
            not stream.watch and not stream.done
            for entry in self._pools.values()
            if entry.number not in self._cuts
            for connection in entry.connections
            for stream in connection.http2.streams.values()
        )

    def cancel(self, pool: int, token: object) -> None:
        """Give a request up. Nothing of it is delivered any more."""
        entry = self._pools[pool]
        stream = entry.find(token)
        if stream is not None:
            self._give_up(stream)
            stream.done = True

    def abandon(self, is_unwanted: Callable[[object], bool]) -> None:
        """Give up every request whose token says so."""
        for entry in self._pools.values():
            for stream in entry.requests():
                if not stream.done and is_unwanted(stream.token):
                    self._give_up(stream)
                    stream.done = True

    def _give_up(self, stream: Stream) -> None:
        """Take a stream off its connection; the server learns its bytes at the next flush."""
        if stream.sid == 0:
            return  # it waits: what takes it from the queue sees that it is done
        connection = self._by_fd[stream.fd]
        connection.http2.cancel(stream)
        if connection.http2.news is not None:  # it may have been the last one there
            self._descriptors.look_at(connection, 0)
        self._mark(connection)

    def _wait(self, pool: Pool, stream: Stream) -> None:
        """Queue a request until a connection has room; dial for it."""
        if pool.wait(stream):
            self._pump(pool)
        else:
            self.stats.own_limits[dials.QUEUE] += 1
            failed = stream.fail(Failure.OWN_LIMIT, "too many requests wait", self._now_ns())
            self._inbox.append(failed)
        self._notify()

    def _send_again(self, pool: Pool, stream: Stream) -> None:
        """Send what no server has seen: at once, then after 1, 2, 4 seconds and so on.

        Source: x/net/http2/transport.go, RoundTripOpt. Differs: at the sweep after that.
        """
        self.stats.retries += 1
        stream.sent_again += 1
        if stream.sent_again == 1:
            self._wait(pool, stream)
            return
        if not pool.delayed:
            self._delayed.append(pool)
        pause_ns = NS_PER_S << (stream.sent_again - 2)
        pool.delayed = (*pool.delayed, (self._now_ns() + pause_ns, stream))

    def _send_delayed(self, now_ns: int) -> None:
        delayed, self._delayed = self._delayed, []
        for pool in delayed:
            for stream in pool.take_delayed(now_ns):
                self._wait(pool, stream)
            if pool.delayed:
                self._delayed.append(pool)

    def _pump(self, pool: Pool) -> None:
        """Open streams for what waits; dial if the room is not enough."""
        while pool.waiting:
            connection = pool.with_room()
            if connection is None:
                self._dials.dial(pool)
                if self._dials.is_full(pool):
                    self._hold(pool)
                return
            stream = pool.next_waiting()
            if stream is None:
                return
            self._open(connection, stream)

    def _hold(self, pool: Pool) -> None:
        """Count what waits because its pool may have no more connections, each request once."""
        for stream in reversed(pool.waiting):
            if stream.is_held:
                return
            stream.is_held = True
            self.stats.own_limits[dials.STREAMS] += 1

    def _open(self, connection: Connection, stream: Stream) -> None:
        """Put a request on a connection that has room."""
        connection.http2.open_stream(stream)
        stream.fd = connection.fd
        stream.is_held = False
        self._mark(connection)

    # ---- reading and writing ----

    def flush(self) -> None:
        """Write once per connection that has something to say."""
        if not self._dirty:
            return
        dirty, self._dirty = self._dirty, []
        self._poller.rest()
        for connection in dirty:
            connection.dirty = False
            if connection.state is UP and not connection.unsent:
                if self._cuts and swallows_output(self._cuts.get(connection.pool)):
                    continue
                self._write(connection)

    def on_edge(self, *, rests: bool) -> None:
        """Take what has come, if it was left until now; see `Poller.on_edge`."""
        self._poller.on_edge(sleeps=rests)

    def _mark(self, connection: Connection) -> None:
        """Remember that a connection has something to write."""
        if not connection.dirty:
            connection.dirty = True
            self._dirty.append(connection)

    def _on_event(self, fd: int, mask: int) -> None:
        connection = self._by_fd.get(fd)
        if connection is None:
            return
        if connection.state is not UP:
            if self._dials.advance(connection):
                self._watch_over(connection)
                self._pump(self._pools[connection.pool])
                self._mark(connection)  # the preface leaves also if nobody has a request
                if connection.early:
                    self._read(connection)
            return
        if mask & WRITE:
            self._write(connection)
        if mask != WRITE and connection.state is UP:
            self._read(connection)

    def _on_drained(self) -> None:
        self.flush()
        self._notify()

    def _notify(self) -> None:
        """Tell that something is in the inbox."""
        if self._inbox:
            self._on_ready()

    def _read(self, connection: Connection) -> None:
        http2, tries = connection.http2, READS_PER_EVENT_MAX
        now_ns = connection.read_ns = self._now_ns()
        try:
            while data := connection.read():
                self.stats.bytes_in += len(data)
                self._inbox += http2.receive(data, now_ns)
                if len(data) < READ_AGAIN_BYTES or http2.news is not None:  # epoll reports the rest
                    break
                tries -= 1
                if not tries:
                    connection.full_ns = now_ns
                    break
        except OSError as error:
            self._lose(connection, explain(error))
            return
        if data == b"":
            self._lose(connection, "the server closed the connection")
            return
        if http2.news is not None:
            self._attend(connection, now_ns)
        pool = self._pools[connection.pool]
        if pool.waiting:
            self._pump(pool)
        if connection.state is UP:
            if connection.unsent:
                self._write(connection)
            elif http2.outbound.out:
                self._mark(connection)

    def _write(self, connection: Connection) -> None:
        now_ns = self._now_ns()  # before: on a busy machine the server may answer first
        try:
            self.stats.bytes_out += connection.write_out()
        except OSError as error:
            self._lose(connection, explain(error))
            return
        if not connection.unsent:
            connection.http2.outbound.on_written(now_ns)
        mask = READ | WRITE if connection.unsent else READ
        if mask != connection.mask:
            connection.mask = mask
            self._poller.modify(connection.fd, mask)

    def _attend(self, connection: Connection, now_ns: int) -> None:
        """See to what is rare: a breach, a GOAWAY, refused streams, a changed limit."""
        http2, stats = connection.http2, self.stats
        news = http2.take_news()
        self._dials.streams_hint = http2.streams_max or STREAMS_DEFAULT
        if news.ended_early:
            behind_ns = self._poller.behind_ns
            # A server that has just started ends watches too, and greeting it makes us lag.
            is_young = now_ns - connection.up_ns < BEHIND_NS
            # What a socket holds for us does not make a server wait: more than that had to come.
            was_full = connection.full_ns and now_ns - connection.full_ns < BEHIND_NS
            if behind_ns and now_ns - behind_ns < BEHIND_NS and was_full and not is_young:
                stats.closed_slow += news.ended_early
        stats.resets += news.resets
        if news.breach is not None:
            stats.breaches += 1
            self._part(connection, news.breach.code)
            self._lose(connection, f"HTTP/2: {news.breach}")
        for stream in news.refused:
            self._send_again(self._pools[connection.pool], stream)
        if http2.is_spent():
            if not connection.leaving:
                connection.leaving = True
                stats.goaways += 1
            if not http2.streams:
                self._part(connection, ErrorCode.NO_ERROR)
                self._lose(connection, http2.goaway)

    # ---- time ----

    def sweep(self, now_ns: int) -> None:
        """Do what time asks for; called about once a second."""
        # First what is there: an answer in time must not time out because we were late.
        self._poller.drain()
        self._expire(now_ns)
        for connection in self._descriptors.due(now_ns):
            if connection.state is not UP:
                self._dials.look(connection, now_ns)
                continue
            self._check_alive(connection, now_ns)
            if connection.state is UP:
                self._watch_over(connection)
        self._send_delayed(now_ns)
        self.flush()
        self._notify()

    def _expire(self, now_ns: int) -> None:
        """Answer what took too long: one FIFO per time-out value, so its head is the oldest."""
        for fifo in self._fifos.values():
            while fifo:
                stream = fifo[0]
                is_open_watch = stream.watch and stream.code == 200
                if not stream.done and not is_open_watch:
                    if stream.deadline_ns > now_ns:
                        break
                    self._give_up(stream)
                    failure = Failure.OWN_LIMIT if stream.is_held else Failure.TIMEOUT
                    failed = stream.fail(failure, "no answer in time", now_ns)
                    self._inbox.append(failed)
                fifo.popleft()

    def _watch_over(self, connection: Connection) -> None:
        """Look at a connection that is up when a ping is due, or one is to be answered."""
        if not self._idle_ns:
            connection.look_s = NEVER
            return
        asked_ns = connection.ping_ns
        due_ns = asked_ns + self._ping_ns if asked_ns else connection.read_ns + self._idle_ns
        self._descriptors.look_at(connection, due_ns)

    def _check_alive(self, connection: Connection, now_ns: int) -> None:
        """Ping what was silent for long; close what did not answer, or has drained."""
        if connection.http2.news is not None:  # a request given up may have been the last one
            self._attend(connection, now_ns)
            if connection.state is not UP:
                return
        if connection.read_ns > connection.ping_ns:
            connection.ping_ns = 0
        if connection.ping_ns:
            if now_ns - connection.ping_ns > self._ping_ns:
                self.stats.pings_lost += 1
                self._lose(connection, "the server did not answer a ping", Failure.SILENT)
        elif self._idle_ns and now_ns - connection.read_ns > self._idle_ns:
            connection.http2.outbound.ping()
            connection.ping_ns = now_ns
            self._mark(connection)

    # ---- credentials ----

    def set_authorization(self, value: bytes | None, group: bytes | None = None) -> None:
        """Let new requests carry a rotated token, and impersonate another group if one is given."""
        self._plans.rotate(value, group)
        for connection in self._by_fd.values():
            connection.http2.outbound.use_plan(self._plans.of(connection.pool))

    def use_certificate(self, pair: tuple[str, str]) -> None:
        """Present another certificate, on new connections: a server looks at it as one begins.

        Source: client-go/transport/cert_rotation.go, loadClientCert.
        """
        self._context.load_cert_chain(*pair)
        for number, pool in self._pools.items():
            self._dials.give_up(pool)
            self.drop_connections(number, "the client certificate was replaced")
            self._pump(pool)

    @property
    def has_token(self) -> bool:
        """Return whether requests carry a bearer token."""
        return self._plans.authorization is not None

    def expire_token(self, pool: int, *, is_over: bool) -> None:
        """Let new requests of an identity carry a token that is over, or again the good one.

        What is open goes on: a server looks at a token when a request comes.
        """
        self._plans.expire(pool, is_over=is_over)
        entry = self._pools.get(pool)
        if entry is not None:  # else it is gone
            for connection in (*entry.connections, entry.dialing):
                if connection is not None:
                    connection.http2.outbound.use_plan(self._plans.of(pool))

    # ---- ends ----

    async def close(self) -> None:
        """Close everything; what waits is answered with CANCELLED."""
        for pool in list(self._pools):
            self.close_pool(pool)
        self._poller.close()
        await self._dials.close()

    def _lose(self, connection: Connection, detail: str, failure: Failure = Failure.LOST) -> None:
        """Answer for everything on a connection that is gone; dial again if requests wait."""
        if connection.state is ConnectionState.CLOSED:
            return
        now_ns = self._now_ns()
        untouched = not connection.unsent
        self._descriptors.discard(connection)
        self.stats.connections -= 1
        pool = self._pools[connection.pool]
        pool.connections = tuple(other for other in pool.connections if other is not connection)
        for stream in list(connection.http2.streams.values()):
            stream.sid = 0
            if untouched and stream.sent_ns == 0 and stream.may_go_again:
                self._send_again(pool, stream)
            else:
                why = Failure.RESET if stream.is_answered else failure
                self._inbox.append(stream.fail(why, detail, now_ns))
        connection.http2.streams.clear()
        if pool.waiting:
            self._pump(pool)

    def _part(self, connection: Connection, code: int) -> None:
        """Say GOAWAY, as far as the socket takes it at once."""
        is_cut = connection.pool in self._cuts
        if connection.state is UP and not connection.unsent and not is_cut:
            connection.http2.outbound.say_goodbye(code)
            with contextlib.suppress(OSError):
                self.stats.bytes_out += connection.write_out()
