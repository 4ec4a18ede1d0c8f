"""The client's side of SPDY/3.1, as github.com/moby/spdystream writes and reads it."""

import struct
import zlib

from fleet.server.spdy import CONTROL, DICTIONARY, SYN_REPLY, SYN_STREAM


class Client:
    """One connection: what it says, and how it reads."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=DICTIONARY)
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)

    def control(self, kind: int, content: bytes, flags: int = 0) -> bytes:
        return struct.pack(">II", CONTROL | 3 << 16 | kind, flags << 24 | len(content)) + content

    def block(self, headers: dict[str, str]) -> bytes:
        plain = struct.pack(">I", len(headers))
        for name, value in headers.items():
            for each in (name.encode(), value.encode()):
                plain += struct.pack(">I", len(each)) + each
        return self._deflate.compress(plain) + self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def open(self, stream: int, headers: dict[str, str], flags: int = 0) -> bytes:
        content = struct.pack(">IIBB", stream, 0, 0, 0) + self.block(headers)
        return self.control(SYN_STREAM, content, flags)

    def data(self, stream: int, content: bytes, flags: int = 0) -> bytes:
        return struct.pack(">II", stream, flags << 24 | len(content)) + content

    def read(self, received: bytes) -> list[tuple[int, bytes]]:
        """Return (kind or -stream, content) of each frame."""
        frames = []
        while received:
            first, second = struct.unpack_from(">II", received)
            size = second & 0xFFFFFF
            content, received = received[8 : 8 + size], received[8 + size :]
            assert len(content) == size
            if first & CONTROL:
                assert first >> 16 & 0x7FFF == 3
                kind = first & 0xFFFF
                if kind == SYN_REPLY:
                    assert self._inflate.decompress(content[4:]) == b"\0\0\0\0"
                    content = content[:4]
                frames.append((kind, content))
            else:
                frames.append((-first, bytes((second >> 24,)) + content))
        return frames
