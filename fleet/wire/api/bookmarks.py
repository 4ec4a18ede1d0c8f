"""Bookmarks are told by their bytes: those of one kind differ in nothing but the version.

    {"type":"BOOKMARK","object":{...,"metadata":{"resourceVersion":"     1234     "...}}}
    ------------------------------ head ---------------------------     version     -- tail --

Of a first one, read in full, the bytes before and after its version are kept. What begins and ends
with the same, and has digits only between, is another one; the lengths that protobuf writes are
part of that, so a version that is longer by a digit is read in full once more, and learnt anew.
"""

from fleet.k8s.effects import WatchKind

_NONE = (b"", b"")


class Bookmarks:
    """The shapes of the bookmarks of one process, by the kind of what is watched."""

    __slots__ = ("_shapes",)

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
