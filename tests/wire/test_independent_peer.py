"""Our client against `h2` in memory: bytes of both sides are cut anywhere; h2 forgives nothing."""

from random import Random

import pytest
from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes
from hyperframe.frame import ExtensionFrame, PriorityFrame
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet.wire.http2 import hpack
from fleet.wire.http2.http2_codec import Http2Codec, Inbox, Stream
from fleet.wire.http2.messages import ContentType, Request, Response

TOKEN = b"Bearer " + b"t" * 900
USER = b"system:node:a"
GET = Request(b"GET", b"/version")
FRAME_BYTES = 16384


def post(size: int) -> Request:
    return Request(b"POST", b"/pods", Random(size).randbytes(size), ContentType.JSON)


class Pair:
    """A client of ours and a server of h2, and how their bytes are cut."""

    def __init__(
        self,
        asked: dict[int, int] | None = None,
        token: bytes = TOKEN,
        seed: int = 0,
        piece_max: int = 100_000,
    ) -> None:
        self.random = Random(seed)
        self.piece_max = piece_max
        self.token = token
        plan = hpack.HeaderPlan(b"host:6443", token, b"agent", b"accept")
        self.client = Http2Codec(plan, USER)
        self.inbox: Inbox = []
        self.server = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self.server.initiate_connection()
        self.got: dict[int, tuple[dict[bytes, bytes], bytearray]] = {}
        self.ended: list[int] = []
        self.pings = 0
        self.unread: dict[int, int] = {}  # bytes of uploads that no window was given for
        self.raw = b""
        self.pump()  # h2 takes any ACK for one of the newest settings: one at a time
        if asked:
            self.announce(asked)

    def announce(self, settings: dict[int, int]) -> None:
        """Let the server change its settings.

        h2 allows larger frames from the chunk on that follows our ACK; they may be in the same one.
        """
        self.server.update_settings(settings)
        size = settings.get(SettingCodes.MAX_FRAME_SIZE, 0)
        self.server.max_inbound_frame_size = max(size, self.server.max_inbound_frame_size)

    def ask(self, request: Request, token: object = "a") -> Stream:
        stream = Stream(token, request, request.stream)
        self.client.open_stream(stream)
        return stream

    def pump(self) -> None:
        """Carry bytes both ways until nobody has anything to say."""
        while True:
            outbound = self.client.outbound
            sent = bytes(outbound.out)
            outbound.out.clear()
            outbound.on_written(1)
            for piece in self._pieces(sent):
                for event in self.server.receive_data(piece):
                    self._on_event(event)
            back = self.server.data_to_send() + self.raw
            self.raw = b""
            for piece in self._pieces(back):
                self.inbox += self.client.receive(piece, 2)
            if not sent and not back:
                return

    def _pieces(self, data: bytes) -> list[bytes]:
        found, at = [], 0
        while at < len(data):
            size = self.random.randrange(1, self.piece_max)
            found.append(data[at : at + size])
            at += size
        return found

    def _on_event(self, event: events.Event) -> None:
        match event:
            case events.RequestReceived(stream_id=int(sid), headers=list(headers)):
                self.got[sid] = ({bytes(n): bytes(v) for n, v in headers}, bytearray())
            case events.DataReceived(stream_id=int(sid), data=bytes(data)):
                self.got[sid][1].extend(data)
                self.unread[sid] = self.unread.get(sid, 0) + (event.flow_controlled_length or 0)
            case events.StreamEnded(stream_id=int(sid)):
                self.ended.append(sid)
            case events.PingReceived() | events.PingAckReceived():
                self.pings += 1

    def widen(self) -> bool:
        """Give back a part of the windows that uploads used; return whether there was any."""
        for sid, size in list(self.unread.items()):
            part = self.random.randrange(1, size + 1)
            self.server.acknowledge_received_data(part, sid)
            self.unread[sid] = size - part
            if part == size:
                del self.unread[sid]
        return bool(self.unread)

    def upload(self) -> None:
        """Let all bodies arrive, a part of a window at a time."""
        self.pump()
        while self.unread:
            self.widen()
            self.pump()

    def answer(self, sid: int, body: bytes, *, trailers: bool = False) -> None:
        """Answer in pieces, padded now and then, informed before, with trailers behind."""
        random, server = self.random, self.server
        for _ in range(random.randrange(3)):
            server.send_headers(sid, [(":status", "103"), ("link", "x" * random.randrange(99))])
        fields = [(":status", "200"), ("content-type", "application/json")]
        fields += [
            (f"x-{each}", "v" * random.randrange(300)) for each in range(random.randrange(9))
        ]
        server.send_headers(sid, fields)
        at = 0
        while at < len(body):
            padding = random.choice((None, None, 0, 7, 255))
            room = server.local_flow_control_window(sid) - 256
            size = min(len(body) - at, random.randrange(1, FRAME_BYTES - 256), room)
            assert size > 0, "our windows never fill"
            server.send_data(sid, body[at : at + size], pad_length=padding)
            at += size
            if random.randrange(4) == 0:
                self.pump()
        if trailers:
            server.send_headers(sid, [("grpc-status", "0")], end_stream=True)
        else:
            server.send_data(sid, b"", end_stream=True)

    def answers(self) -> dict[object, Response]:
        return {token: entry for token, entry in self.inbox if isinstance(entry, Response)}


def unknown_frame(size: int) -> bytes:
    frame = ExtensionFrame(0xBE, stream_id=0, body=b"?" * size)
    frame.body_len = size  # hyperframe knows it only of frames that it has read
    return frame.serialize()


asks = st.lists(st.integers(0, 3_000) | st.sampled_from((0, 70_000)), min_size=1, max_size=6)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        SettingCodes.HEADER_TABLE_SIZE: st.sampled_from((0, 33, 150, 1100, 4096, 65536)),
        SettingCodes.INITIAL_WINDOW_SIZE: st.sampled_from((400, 5_000, 65_535, 2**20)),
        SettingCodes.MAX_FRAME_SIZE: st.sampled_from((16384, 20_000, 2**24 - 1)),
        SettingCodes.MAX_CONCURRENT_STREAMS: st.sampled_from((6, 100)),
    },
)

SMALLER_FRAMES = (
    {
        SettingCodes.HEADER_TABLE_SIZE: 0,
        SettingCodes.MAX_CONCURRENT_STREAMS: 6,
        SettingCodes.MAX_FRAME_SIZE: 20_000,
        SettingCodes.INITIAL_WINDOW_SIZE: 400,
    },
    {
        SettingCodes.HEADER_TABLE_SIZE: 0,
        SettingCodes.MAX_CONCURRENT_STREAMS: 6,
        SettingCodes.INITIAL_WINDOW_SIZE: 65_535,
        SettingCodes.MAX_FRAME_SIZE: 16_384,
    },
)
"""Windows grow, and then frames must be smaller, in the same SETTINGS."""


@settings(max_examples=60, deadline=None)
@given(asks, SETTINGS, SETTINGS, st.integers(0, 2**32), st.sampled_from((2, 9, 700, 100_000)))
@example([70_000], *SMALLER_FRAMES, 0, 2)
def test_requests_and_answers_in_any_order_and_any_cut(
    bodies: list[int],
    asked: dict[int, int],
    later: dict[int, int],
    seed: int,
    piece_max: int,
) -> None:
    pair = Pair(asked, seed=seed, piece_max=max(piece_max, sum(bodies) // 500))
    random = pair.random
    if random.randrange(2):
        pair.pump()  # else requests leave before the settings are known
    sids = {}
    for number, size in enumerate(bodies):
        sids[pair.ask(post(size) if size else GET, number).sid] = number
        if random.randrange(3) == 0:
            pair.pump()
        if random.randrange(4) == 0:
            pair.raw += PriorityFrame(random.choice(list(sids)), depends_on=0).serialize()
            pair.raw += unknown_frame(40)
    pair.pump()
    pair.announce(later)
    pair.server.ping(b"12345678")
    pair.upload()
    assert sorted(pair.ended) == sorted(sids)
    for sid, number in sids.items():
        headers, body = pair.got[sid]
        request = post(bodies[number]) if bodies[number] else GET
        assert bytes(body) == request.body
        assert (headers[b":method"], headers[b":path"]) == (request.method, request.path)
        assert (headers[b"authorization"], headers[b"impersonate-user"]) == (TOKEN, USER)
    order = list(sids)
    random.shuffle(order)
    sent = {sids[sid]: random.randbytes(random.choice((0, 9, 900, 9_000))) for sid in order}
    for sid in order:
        pair.answer(sid, sent[sids[sid]], trailers=bool(random.randrange(2)))
    pair.pump()
    assert {number: each.body for number, each in pair.answers().items()} == sent
    assert all(each.code == 200 for each in pair.answers().values())
    assert pair.pings == 1
    assert not pair.client.streams


def test_settings_that_change_between_requests() -> None:
    """Tables, windows and frames of every size, each in force from the next request on."""
    pair = Pair()
    for number, (table, window, size) in enumerate(
        (
            (4096, 65535, 16384),
            (0, 1, 16384),
            (150, 10, 2**14),
            (65536, 2**20, 2**24 - 1),
            (33, 7, 2**20),
        )
    ):
        pair.server.update_settings({1: table, 4: window, 5: size})
        pair.pump()
        sid = pair.ask(post(3000), number).sid
        pair.upload()
        assert pair.got[sid][0][b"authorization"] == TOKEN
        assert len(pair.got[sid][1]) == 3000


@pytest.mark.parametrize("size", [5_000, 16_384, 40_000])
def test_headers_above_a_frame_go_and_come_in_continuations(size: int) -> None:
    pair = Pair(token=b"T" * size, piece_max=999)
    pair.server.decoder.max_header_list_size = 10**6
    sid = pair.ask(GET).sid
    pair.ask(post(5), "b")
    pair.pump()
    assert [each[0][b"authorization"] for each in pair.got.values()] == [b"T" * size] * 2
    pair.server.send_headers(sid, [(":status", "429"), ("retry-after", "7"), ("x", "y" * size)])
    pair.server.end_stream(sid)
    pair.pump()
    assert pair.answers()["a"][:2] + pair.answers()["a"][4:5] == (429, b"", 7)
