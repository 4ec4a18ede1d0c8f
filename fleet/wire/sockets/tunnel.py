"""The way through an HTTP proxy: CONNECT, then TLS with the server as if there were none.

Source: net/http/transport.go, dialConn.
"""

from typing import NamedTuple

REPLY_BYTES_MAX = 16_384
END = b"\r\n\r\n"


class Proxy(NamedTuple):
    """A proxy that speaks HTTP/1.1 without TLS. `authorization` is the value of its header."""

    host: str
    port: int
    authorization: bytes = b""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def connect(self, authority: bytes) -> bytes:
        """Return the request for a tunnel to a server, by its host and port."""
        head = b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n" % (authority, authority)
        if self.authorization:
            head += b"Proxy-Authorization: %b\r\n" % self.authorization
        return head + b"\r\n"


def refusal_of(reply: bytes) -> str:
    """Return why a proxy gave no tunnel, "" if it gave one; the reply is whole."""
    line = reply.partition(b"\r\n")[0][:200].decode("latin-1")
    version, _, status = line.partition(" ")
    if version.startswith("HTTP/1.") and status[:1] == "2":
        return ""
    shown = status if version.startswith("HTTP/") else "what is not HTTP"
    return f"the proxy answered {shown.strip()} to CONNECT"
