"""The files of a node that somebody wrote: programs of containers, hooks, `kubectl exec`.

A file is a short history of (instant, writer, text), so that a program which is known in advance
writes when its time comes, and what others write in the meantime is seen when it is run again. An
emptyDir is kept while its pod is there, a container's own layer while that container is, a host's
directory or a claim as long as the node. All of it is bounded, and nothing is made before something
is written.
Differs: what images, and claims of other nodes, hold is unknown.
"""

import contextlib
import posixpath
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

FILES_MAX = 1024  # files that are kept of one volume, one container's layer, or the host
BYTES_MAX = 16 << 20  # how long all their texts together may be
VERSIONS_MAX = 64
DIRECTORY = "/"  # the text of a directory
ANY_FILE = ""  # the path of a change that an unknown command may have made
HOST = ("host", "")
KUBELET = "kubelet"  # who makes what volumes need
_SCRATCH = ("/tmp", "/var/tmp", "/run", "/var/run", "/dev/shm")  # noqa: S108 - in a container
_TERMINATION_LOG = "/dev/termination-log"


class UnknownFileError(Exception):
    """Nobody knows whether a file is there: its image may have it."""


class NoSpaceError(Exception):
    """A volume is full."""


class FileChange(NamedTuple):
    """A file that a program made, replaced or removed (None), and when since its start."""

    after_ns: int
    path: str
    text: str | None


class Version(NamedTuple):
    """What a file became: when, by whom; None: it was removed."""

    at_ns: int
    writer: str
    text: str | None


Writing = tuple[str, int]  # what somebody wrote from an instant on
NOBODY: Writing = ("", 0)


class Mounted(NamedTuple):
    """Where a container has the files of a volume."""

    path: str  # in the container
    key: tuple[str, str] | None  # whose files they are, and their volume; None: nothing is known
    root: str = ""  # the path in that volume
    read_only: bool = False


def layer_of(uid: str, container: str) -> tuple[str, str]:
    """Return whose a container's own files are; no volume has such a name."""
    return uid, f"/{container}"


def writer_of(layer: tuple[str, str]) -> str:
    """Return by whom the program of a container writes."""
    return "/".join(layer)


class FileStore:
    """The files of one volume, one container's layer, or the host."""

    __slots__ = ("_size", "versions")

    def __init__(self) -> None:
        self.versions: dict[str, list[Version]] = {}
        self._size = 0

    def read(self, path: str, at_ns: int, without: Writing = NOBODY) -> Version | None:
        """Return what a file is at an instant, None if nobody wrote it by then.

        `without` is whose writing, and from when on, is not seen.
        """
        found = _at(self.versions.get(path, ()), at_ns, without)
        if found is not None and found.text is not None:
            return found
        start = f"{path}/"
        for name, versions in self.versions.items():
            if name.startswith(start):
                inner = _at(versions, at_ns, without)
                if inner is not None and inner.text is not None:
                    return Version(inner.at_ns, inner.writer, DIRECTORY)
        return found

    def write(self, path: str, text: str | None, at_ns: int, writer: str) -> None:
        """Make or replace a file at an instant; None removes it, and what is below it.

        Raises NoSpaceError.
        """
        if text is None:
            below = [n for n in self.versions if n == path or n.startswith(f"{path}/")]
            for name in below or (path,):
                self._add(name, Version(at_ns, writer, None))
            return
        is_full = path not in self.versions and len(self.versions) >= FILES_MAX
        if is_full or self._size + len(text) > BYTES_MAX:
            raise NoSpaceError(path)
        self._add(path, Version(at_ns, writer, text))

    def _add(self, path: str, version: Version) -> None:
        versions = self.versions.setdefault(path, [])
        at = bisect_right(versions, version.at_ns, key=lambda each: each.at_ns)
        if at and versions[at - 1].at_ns == version.at_ns:
            at -= 1
            self._size -= len(versions.pop(at).text or "")
        versions.insert(at, version)
        self._size += len(version.text or "")
        if len(versions) > VERSIONS_MAX:
            self._size -= len(versions.pop(0).text or "")

    def instants(self) -> set[int]:
        """Return when files changed, or will."""
        return {each.at_ns for versions in self.versions.values() for each in versions}

    def undo(self, writer: str, after_ns: int) -> None:
        """Forget what somebody would have written after an instant."""
        for path, versions in list(self.versions.items()):
            kept = [v for v in versions if v.writer != writer or v.at_ns <= after_ns]
            if len(kept) == len(versions):
                continue
            self._size -= sum(len(v.text or "") for v in versions if v not in kept)
            if kept:
                self.versions[path] = kept
            else:
                del self.versions[path]


def _at(versions: Iterable[Version], at_ns: int, without: Writing = NOBODY) -> Version | None:
    found = None
    writer, from_ns = without
    for version in versions:
        if version.at_ns > at_ns:
            break
        if version.writer != writer or version.at_ns < from_ns:
            found = version
    return found


class NodeFiles:
    """All that was written on one node."""

    __slots__ = ("stores",)

    def __init__(self) -> None:
        self.stores: dict[tuple[str, str], FileStore] = {}

    def record(
        self,
        mounts: Iterable[Mounted],
        layer: tuple[str, str],
        start_ns: int,
        changes: Iterable[FileChange],
        writer: str,
    ) -> None:
        """Keep what a program changed that started at an instant; what does not fit is lost."""
        for change in changes:
            place = locate(mounts, layer, posixpath.normpath(change.path or "/"))
            if change.path == ANY_FILE or place.key is None:
                continue
            at_ns = start_ns + change.after_ns
            with contextlib.suppress(NoSpaceError):
                store = self.stores.setdefault(place.key, FileStore())
                store.write(place.root, change.text, at_ns, writer)

    def text(self, key: tuple[str, str], path: str, at_ns: int) -> str | None:
        """Return the text of a file of a volume at an instant, None if there is none."""
        found = self.version(key, path, at_ns)
        return None if found is None or found.text == DIRECTORY else found.text

    def version(
        self, key: tuple[str, str], path: str, at_ns: int, without: Writing = NOBODY
    ) -> Version | None:
        """Return what a file is at an instant, None if nobody wrote it by then."""
        store = self.stores.get(key)
        return None if store is None else store.read(path, at_ns, without)

    def instants(self, owner: str, after_ns: int) -> list[int]:
        """Return when programs that are known in advance change files of a pod after an instant."""
        stores = [store for key, store in self.stores.items() if key[0] == owner]
        return sorted({at for store in stores for at in store.instants() if at > after_ns})

    def write_host(self, path: str, text: str, at_ns: int) -> None:
        """Make a file or a directory of the machine, as a volume may. Raises NoSpaceError."""
        self.stores.setdefault(HOST, FileStore()).write(path, text, at_ns, KUBELET)

    def undo(self, layer: tuple[str, str], after_ns: int) -> None:
        """Forget what a container would have written after an instant."""
        for store in self.stores.values():
            store.undo(writer_of(layer), after_ns)

    def forget(self, owner: str) -> None:
        """Drop the volumes and layers of a pod."""
        for key in [key for key in self.stores if key[0] == owner]:
            del self.stores[key]


def locate(mounts: Iterable[Mounted], layer: tuple[str, str], path: str) -> Mounted:
    """Return where a path of a container is: in the deepest mount of it, else in its own layer."""
    for mount in mounts:
        if path == mount.path or path.startswith(f"{mount.path}/"):
            return mount._replace(root=mount.root + path[len(mount.path) :])
    return Mounted(path, layer, path)


class ProcessFiles:
    """The files that one process of a container sees; what it writes only it sees.

    It finds nothing of what its program wrote when it ran before: it writes that again.
    """

    def __init__(
        self,
        files: NodeFiles | None,
        mounts: tuple[Mounted, ...],
        layer: tuple[str, str],
        start_ns: int,
        *,
        is_locked: bool,
        is_own: bool,
    ) -> None:
        self._files = files
        self._mounts = mounts
        self._layer = layer
        self._start_ns = start_ns
        self._is_locked = is_locked  # its root file system is read-only
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
            found = self._files.version(place.key, place.root, at_ns, self._own)
            if found is not None:
                return found.text
        if any(f"{each.path}/".startswith(f"{path.rstrip('/')}/") for each in self._mounts):
            return DIRECTORY
        if place.key != self._layer or path.startswith(tuple(f"{each}/" for each in _SCRATCH)):
            return None
        if path in _SCRATCH:
            return DIRECTORY
        if path == _TERMINATION_LOG:
            return ""
        raise UnknownFileError(path)

    def write(self, path: str, text: str | None) -> bool:
        """Make or replace a file, None removes it; return whether it can be written."""
        place = locate(self._mounts, self._layer, path)
        is_of_image = place.key == self._layer and not path.startswith("/dev/")
        if place.read_only or (self._is_locked and is_of_image):
            return False
        self._written[path] = text
        return True
