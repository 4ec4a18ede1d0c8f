"""The files of a node that somebody wrote: programs of containers, hooks, `kubectl exec`.

What was written is kept as changes, each with its instant and its writer, so that a program which
is known in advance writes when its time comes, and what others write in the meantime is seen when
it is run again. An emptyDir is kept while its pod is there, a container's own layer while that
container is, a host's directory or a claim as long as the node.
Differs: what images, and claims of other nodes, hold is unknown, and every volume can be written.
"""

import posixpath
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

CHANGES_MAX = 1024  # that are kept of one volume, one container's layer, or the host
BYTES_MAX = 16 << 20  # how long all their texts together may be
DIRECTORY = "/"  # the text of a directory
ANY_FILE = ""  # the path of a change that an unknown command may have made
_SCRATCH = ("/tmp", "/var/tmp", "/run", "/var/run", "/dev/shm")  # noqa: S108 - in a container
_TERMINATION_LOG = "/dev/termination-log"


class UnknownFileError(Exception):
    """Nobody knows whether a file is there: its image may have it."""


class FileChange(NamedTuple):
    """A file that a program made, replaced or removed (None), and when since its start."""

    after_ns: int
    path: str
    text: str | None


class Version(NamedTuple):
    """What a file became: when, by whom; None: it was removed, with all that was below it."""

    at_ns: int
    writer: str
    path: str
    text: str | None


Key = tuple[str, str]  # whose files they are, and their volume
HOST: Key = ("host", "")
Writing = tuple[str, int]  # what somebody wrote from an instant on
NOBODY: Writing = ("", 0)


class Mounted(NamedTuple):
    """Where a container has the files of a volume."""

    path: str  # in the container
    key: Key | None  # None: nothing is known
    root: str = ""  # the path in that volume


def layer_of(uid: str, container: str) -> Key:
    """Return whose a container's own files are; no volume has such a name."""
    return uid, f"/{container}"


def writer_of(layer: Key) -> str:
    """Return by whom the program of a container writes."""
    return "/".join(layer)


class NodeFiles:
    """All that was written on one node."""

    __slots__ = ("changes",)

    def __init__(self) -> None:
        self.changes: dict[Key, list[Version]] = {}  # by time

    def read(self, key: Key, path: str, at_ns: int, without: Writing = NOBODY) -> Version | None:
        """Return what a file is at an instant, None if nobody wrote it by then.

        `without` is whose writing, and from when on, is not seen.
        """
        writer, from_ns = without
        removed = set[str]()
        for each in reversed(self.changes.get(key, ())):
            if each.at_ns > at_ns or (each.writer == writer and each.at_ns >= from_ns):
                continue
            if each.path == path or (each.text is None and path.startswith(f"{each.path}/")):
                return each
            if each.path.startswith(f"{path}/"):
                if each.text is not None and each.path not in removed:
                    return each._replace(path=path, text=DIRECTORY)
                removed.add(each.path)
        return None

    def write(self, key: Key, path: str, text: str | None, at_ns: int, writer: str) -> None:
        """Make or replace a file at an instant; None removes it, and what is below it.

        Of more than fits, the oldest is forgotten.
        """
        changes = self.changes.setdefault(key, [])
        at = bisect_right(changes, at_ns, key=lambda each: each.at_ns)
        changes.insert(at, Version(at_ns, writer, path, text))
        is_long = len(text or "") > BYTES_MAX // CHANGES_MAX  # or else all of them fit
        size = sum(len(each.text or "") for each in changes) if is_long else 0
        while len(changes) > CHANGES_MAX or size > BYTES_MAX:
            size -= len(changes.pop(0).text or "")

    def record(
        self,
        mounts: Iterable[Mounted],
        layer: Key,
        start_ns: int,
        changes: Iterable[FileChange],
        writer: str,
    ) -> None:
        """Keep what a program changed that started at an instant."""
        for change in changes:
            place = locate(mounts, layer, posixpath.normpath(change.path or "/"))
            if change.path != ANY_FILE and place.key is not None:
                at_ns = start_ns + change.after_ns
                self.write(place.key, place.root, change.text, at_ns, writer)

    def instants(self, owner: str, after_ns: int) -> set[int]:
        """Return when programs that are known in advance change files of a pod after an instant."""
        found = (each for key, each in self.changes.items() if key[0] == owner)
        return {v.at_ns for changes in found for v in changes if v.at_ns > after_ns}

    def undo(self, layer: Key, after_ns: int) -> None:
        """Forget what a container would have written after an instant."""
        writer = writer_of(layer)
        for key, changes in self.changes.items():
            self.changes[key] = [v for v in changes if v.writer != writer or v.at_ns <= after_ns]

    def forget(self, owner: str) -> None:
        """Drop the volumes and layers of a pod."""
        for key in [key for key in self.changes if key[0] == owner]:
            del self.changes[key]


def locate(mounts: Iterable[Mounted], layer: Key, path: str) -> Mounted:
    """Return where a path of a container is: in the deepest mount of it, else in its own layer."""
    for mount in mounts:
        if path == mount.path or path.startswith(f"{mount.path}/"):
            return mount._replace(root=mount.root + path[len(mount.path) :])
    return Mounted(path, layer, path)


class ProcessFiles:
    """The files that one process of a container sees; what it writes only it sees.

    A program that `is_own` to the container finds nothing of what it wrote when it ran before.
    """

    def __init__(
        self,
        files: NodeFiles | None,
        mounts: tuple[Mounted, ...],
        layer: Key,
        start_ns: int,
        *,
        is_own: bool,
    ) -> None:
        self._files = files
        self._mounts = mounts
        self._layer = layer
        self._start_ns = start_ns
        self._own = (writer_of(layer), start_ns) if is_own else NOBODY
        self._written: dict[str, str | None] = {}

    def read(self, path: str, after_ns: int) -> str | None:
        """Return a file's text, None if there is none. Raises UnknownFileError."""
        if path in self._written:
            return self._written[path]
        place = locate(self._mounts, self._layer, path)
        if place.key is None:
            raise UnknownFileError(path)
        if self._files is not None:
            at_ns = self._start_ns + after_ns
            found = self._files.read(place.key, place.root, at_ns, self._own)
            if found is not None:
                return found.text
        mounts = (f"{each.path}/" for each in self._mounts)
        if path in _SCRATCH or any(each.startswith(f"{path.rstrip('/')}/") for each in mounts):
            return DIRECTORY
        if place.key != self._layer or path.startswith(tuple(f"{each}/" for each in _SCRATCH)):
            return None
        if path == _TERMINATION_LOG:
            return ""
        raise UnknownFileError(path)

    def write(self, path: str, text: str | None) -> None:
        """Make or replace a file, for this process; None removes it."""
        self._written[path] = text
