"""HTTP/2 in between: what the server answers goes through frames that are changed on their way.

    SimTransport -> HEADERS, DATA -> Mangler -> Http2Codec of fleet -> SimTransport.take

A pool has one connection, with a codec on fleet's side. A breach, a GOAWAY or a frame that is cut
off ends it, and what is open on it is lost. An answer of which nothing comes is waited for as long
as its request's time-out. What fleet sends is not read: the transport passes requests on.
"""

from functools import cache
from random import Random

from chaos.answer_proxy import DATA, HEADERS, SETTINGS, Frame, Mangler
from hpack import Encoder

from fleet.wire.http2.hpack import HeaderPlan
from fleet.wire.http2.http2_codec import Http2Codec, Stream
from fleet.wire.http2.messages import Failure, Request, Response, StreamOpened
from world.transport import GIVEN_UP_NS, Content, SimTransport

PLAN = HeaderPlan(b"server", b"Bearer token", b"kubelet", b"application/json")
PIECE = 16_384
END_STREAM, END_HEADERS = 0x1, 0x4
LIMITS = Frame(SETTINGS, 0, 0, b"\x00\x03\x00\x00\x00\xfa")  # MAX_CONCURRENT_STREAMS 250


@cache
def head(code: int, retry_after_s: int) -> bytes:
    """Return a header block as an API server writes it. Of a table no block makes use."""
    fields = [(":status", str(code)), ("cache-control", "no-cache, private")]
    if retry_after_s >= 0:
        fields.append(("retry-after", str(retry_after_s)))
    encoder = Encoder()
    encoder.header_table_size = 0
    return encoder.encode(fields)


class Connection:
    """Fleet's end of one."""

    def __init__(self) -> None:
        self.codec = Http2Codec(PLAN)
        self.late: list[Frame] = []
        self.streams: dict[int, Stream] = {}
        """By the number of the exchange."""

    def stream(self, number: int, request: Request, sent_ns: int) -> Stream | None:
        """Return the stream of a request, opened when its answer begins; None: it is over."""
        stream = self.streams.get(number)
        if stream is None:
            stream = self.streams[number] = Stream(number, request, request.stream)
            self.codec.open_stream(stream)
            self.codec.outbound.out.clear()
            self.codec.outbound.on_written(sent_ns)
        return stream if stream.sid else None

    def forget(self, transport: SimTransport) -> None:
        """Cancel the streams of which nobody wants more."""
        for number in [each for each in self.streams if not transport.is_open(each)]:
            stream = self.streams.pop(number)
            if stream.sid:
                self.codec.cancel(stream)


class MangledLink:
    """The connections of one transport."""

    def __init__(self, transport: SimTransport, mangler: Mangler) -> None:
        self._transport = transport
        self._mangler = mangler
        self._connections: dict[int, Connection] = {}

    def carry(self, pool: int, number: int, request: Request, sent_ns: int, what: Content) -> None:
        """Bring a piece of an answer, or all of it, to fleet."""
        connection = self._connections.get(pool)
        if connection is not None:
            connection.forget(self._transport)
            if number not in connection.streams and not connection.codec.has_room():
                self._lose(pool)
                connection = None
        if connection is None:
            connection = self._connections[pool] = Connection()
            if not self._receive(pool, connection, LIMITS):
                return
            if not connection.codec.has_room():  # as a changed limit says
                self._lose(pool)
                self._transport.fail(number, Failure.LOST)
                return
        stream = connection.stream(number, request, sent_ns)
        if stream is None:
            return
        for frame in frames(stream, what):
            if not self._receive(pool, connection, frame):
                return
        if isinstance(what, Response):
            self._transport.fail_later(number, sent_ns + (request.timeout_ns or GIVEN_UP_NS))

    def _receive(self, pool: int, connection: Connection, frame: Frame) -> bool:
        """Let fleet read what becomes of a frame; return whether the connection is still there."""
        now_ns, codec = self._transport.clock.now_ns(), connection.codec
        sent, begun = self._mangler.mangle(frame, connection.late)
        data = b"".join(each.encoded() for each in sent) + begun
        for number, message in codec.receive(data, now_ns):
            assert isinstance(number, int)
            assert isinstance(message, Content), message
            self._transport.take(number, message)
        codec.outbound.out.clear()
        news = codec.take_news()
        for stream in news.refused:
            assert isinstance(stream.token, int)
            self._transport.fail(stream.token, Failure.LOST)
        if begun or news.breach is not None or codec.goaway:
            self._lose(pool)
            return False
        return True

    def _lose(self, pool: int) -> None:
        for number in list(self._connections.pop(pool).streams):
            self._transport.fail(number, Failure.LOST)


def frames(stream: Stream, what: Content) -> list[Frame]:
    """Return the frames in which a server says something."""
    if isinstance(what, StreamOpened):
        return [Frame(HEADERS, END_HEADERS, stream.sid, head(200, -1))]
    if isinstance(what, bytes):
        return pieces(stream.sid, what, 0)
    found = pieces(stream.sid, what.body, END_STREAM)
    if stream.watch and what.code == 200:
        return found
    return [Frame(HEADERS, END_HEADERS, stream.sid, head(what.code, what.retry_after_s)), *found]


def pieces(sid: int, data: bytes, flags: int) -> list[Frame]:
    """Cut data as a frame has room for it; the last one ends the stream if `flags` says so."""
    parts = [data[at : at + PIECE] for at in range(0, len(data), PIECE)] or [b""]
    last = len(parts) - 1
    return [Frame(DATA, flags * (at == last), sid, part) for at, part in enumerate(parts)]


class FramesMangled:
    """A share of all frames of the server is changed; see chaos/answer_proxy.py for how."""

    def __init__(self, seed: int, share: float) -> None:
        self.mangler = Mangler(Random(seed))
        self.mangler.share = share

    def inject(self, transport: SimTransport) -> None:
        transport.link = MangledLink(transport, self.mangler)
        transport.server.expects_nonsense = True

    def heal(self, transport: SimTransport) -> None:
        """Connections end with it: a watch whose end was lost would wait for ever."""
        transport.link = None
        transport.drop()
