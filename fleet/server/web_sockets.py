"""Sessions over WebSockets: numbered channels in one message each.

    v5.channel.k8s.io          binary; channel 255 closes another one
    v4.channel.k8s.io          binary; the status is JSON
    channel.k8s.io, no name    binary; the status is plain text
    (v4.)base64.channel.k8s.io the same in text: a digit, then base64

Source: streaming/pkg/httpstream/wsstream/conn.go; cri-streaming/.../remotecommand/websocket.go;
apiserver/pkg/util/proxy/websocket.go.
"""

import base64
import binascii
import contextlib

from aiohttp import WSMsgType, web

from fleet.server.remote_command import Channel, Ended

V5 = "v5.channel.k8s.io"
V4_BASE64 = "v4.base64.channel.k8s.io"
BASE64 = "base64.channel.k8s.io"
PROTOCOLS = (V5, "v4.channel.k8s.io", V4_BASE64, "channel.k8s.io", BASE64)
MESSAGE_BYTES_MAX = 1 << 20
WRITE_BYTES_MAX = 64 << 10
"""What may wait for a slow client before `send` waits."""
INPUT = frozenset((Channel.STDIN, Channel.RESIZE))


def is_web_socket(request: web.BaseRequest) -> bool:
    """Source: wsstream.IsWebSocketRequest."""
    upgrade = request.headers.get("Upgrade", "").lower()
    return upgrade == "websocket" and "upgrade" in request.headers.get("Connection", "").lower()


def offered(request: web.BaseRequest) -> list[str]:
    """Return the protocols that a client offers inside of a WebSocket."""
    lines = request.headers.getall("Sec-WebSocket-Protocol", [])
    return [each.strip() for line in lines for each in line.split(",") if each.strip()]


class WebSocketClient:
    """The client of a session, over a WebSocket."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        protocol = socket.ws_protocol or ""
        self._is_text = protocol in {V4_BASE64, BASE64}
        self._has_close = protocol == V5
        self._has_status = protocol.startswith(("v4.", "v5."))

    async def receive(self) -> tuple[Channel, bytes] | None:
        """Return the next input, None at the end. What is no input is ignored, as upstream does."""
        while True:
            message = await self._socket.receive()
            if message.type is WSMsgType.BINARY and not self._is_text:
                found = self._read(bytes(message.data))
            elif message.type is WSMsgType.TEXT and self._is_text:
                found = self._decode(str(message.data))
            elif message.type in {WSMsgType.BINARY, WSMsgType.TEXT}:
                found = None
            else:
                return None
            if found is not None:
                return found

    async def send(self, channel: Channel, data: bytes) -> None:
        """Send output; returns once there is room for more."""
        if self._is_text:
            await self._socket.send_str(f"{channel.value}{base64.b64encode(data).decode()}")
        else:
            await self._socket.send_bytes(bytes((channel,)) + data)

    async def finish(self, ended: Ended) -> None:
        """Say how it ended, and close."""
        text = ended.status() if self._has_status else ended.text()
        if text:
            await self.send(Channel.ERROR, text)
        with contextlib.suppress(ConnectionError):
            await self._socket.close()

    def _read(self, data: bytes) -> tuple[Channel, bytes] | None:
        if not data:
            return None
        if data[0] == Channel.CLOSE:
            if self._has_close and data[1:2] == bytes((Channel.STDIN,)):
                return Channel.CLOSE, b""
            return None
        return (Channel(data[0]), data[1:]) if data[0] in INPUT else None

    def _decode(self, text: str) -> tuple[Channel, bytes] | None:
        try:
            channel = int(text[:1])
            data = base64.b64decode(text[1:], validate=True)
        except (ValueError, binascii.Error):
            return None
        return (Channel(channel), data) if channel in INPUT else None
