"""One request's life on the wire, and what flow control holds back of its body."""

from fleet.wire.http2.messages import Failure, Request, Response

Message = tuple[object, object]
"""The token of a request, and what came for it."""
Inbox = list[Message]
SENT_AGAIN_MAX = 7
"""How often a request is sent again that no server has seen. Source: x/net/http2, RoundTripOpt."""


class Stream:
    """One request from `send` to its answer."""

    __slots__ = (
        "body",
        "code",
        "deadline_ns",
        "done",
        "fd",
        "is_held",
        "received",
        "request",
        "retry_after_s",
        "sent_again",
        "sent_ns",
        "sid",
        "token",
        "watch",
    )

    def __init__(self, token: object, request: Request) -> None:
        self.token = token
        self.request: Request | None = request  # until the headers came; then never needed again
        self.watch = request.stream
        self.fd = -1  # of the connection that carries it, once one has
        self.is_held = False  # it waits because its pool may have no more connections
        self.sid = 0  # while it is open there; our numbers are odd
        self.code = 0
        self.retry_after_s = -1
        self.body: bytes | bytearray = b""
        self.received = 0  # bytes of the stream's window that the peer has used
        self.sent_ns = 0
        self.deadline_ns = 0  # of the request; of an open watch, when the server is to end it
        self.sent_again = 0  # how often
        self.done = False

    @property
    def is_answered(self) -> bool:
        """Tell whether the head of an answer came whose body is taken whole.

        Of such a one client-go does not send the request again: it reads bodies after its tries.
        """
        return self.code != 0 and not (self.watch and self.code == 200)

    @property
    def may_go_again(self) -> bool:
        """Tell whether it may be sent again, if no server has seen it."""
        return self.request is not None and self.sent_again < SENT_AGAIN_MAX

    def fail(self, failure: Failure, detail: str, now_ns: int) -> Message:
        """End the stream; return the answer that there is none."""
        assert not self.done, self.token
        self.done = True
        self.sid = 0
        self.body = b""
        return self.token, Response(0, b"", self.sent_ns, now_ns, -1, failure, detail)


class Upload:
    """What the windows have kept of a request's body."""

    __slots__ = ("body", "window")

    def __init__(self, body: bytes, window: int) -> None:
        self.body = memoryview(body)
        self.window = window


def watch_s(path: bytes) -> int:
    """Return the timeoutSeconds that a watch asked for, 0 if it did not."""
    at = path.find(b"timeoutSeconds=")
    if at < 0:
        return 0
    digits = path[at + 15 : at + 25].split(b"&", 1)[0]
    return int(digits) if digits.isdigit() else 0
