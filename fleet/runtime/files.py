"""The files of a node that somebody wrote: scripts of containers, `kubectl exec`, `kubectl cp`.

A file is a short history of (instant, writer, text), so that a script which is known in advance
writes when its time comes, and what somebody else writes in the meantime is seen by it when it is
run again. An emptyDir is kept while its pod is there, a container's own layer while that container
is, a host's directory or a claim as long as the node. All of it is bounded, and nothing is made
before something is written.
Differs: what images and claims of other nodes hold is unknown.
"""

import contextlib
import posixpath
import stat
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fleet.k8s.scripts import MountSpec
from fleet.runtime.servers import ServerRecords
from fleet.runtime.shell.surroundings import DIRECTORY, Look, ReadOnlyFileSystemError
from fleet.runtime.shell.syntax import UnknownScriptError

FILES_MAX = 1024
"""Files that are kept of one volume, one container's layer, or the host."""
BYTES_MAX = 16 << 20
"""How long all their texts together may be."""
VERSIONS_MAX = 64
_WRITABLE = ("/tmp", "/var/tmp", "/run", "/var/run", "/dev/shm")  # noqa: S108 - in a container
_SYSTEM = (
    *("/bin", "/dev", "/etc", "/home", "/lib", "/mnt", "/opt", "/proc", "/root", "/run", "/sbin"),
    *("/srv", "/sys", "/tmp", "/usr", "/var", "/var/run", "/var/tmp", "/dev/shm"),  # noqa: S108
)
"""What every image has."""


def writer_of(layer: tuple[str, str]) -> str:
    """Return by whom the script of a container writes."""
    return "/".join(layer)


class Version(NamedTuple):
    """What a file became: when, by whom; None: it was removed."""

    at_ns: int
    writer: str
    text: str | None


FILE_MODE, DIRECTORY_MODE, OPEN_MODE = 0o644, 0o755, 0o777
NO_MODES: Mapping[str, int] = {}
NO_TEXTS: Mapping[str, str] = {}
_GROUP_READS, _GROUP_WRITES = 0o440, 0o660
"""What the group of a volume may do. Source: pkg/volume/volume_linux.go, roMask, rwMask."""

Writing = tuple[str, int]
"""What somebody wrote from an instant on."""
NOBODY: Writing = ("", 0)


class VolumePlace(NamedTuple):
    """Where the files of a volume are: what was written, over what it shows by itself."""

    key: tuple[str, str]  # whose they are, and the volume's name
    root: str = ""  # the path of the volume in that store
    shown: Mapping[str, str] | None = None  # of a ConfigMap, Secret, ...: texts by path
    read_only: bool = False
    mode: int = FILE_MODE  # of files that it shows
    modes: Mapping[str, int] = NO_MODES  # of some, by path
    group: int | None = None  # fsGroup, if the volume is given to it
    in_memory: bool = False
    is_open: bool = False  # for everybody to write
    is_locked: bool = False  # mounted so that this container cannot write


HOST = ("host", "")
KUBELET = "kubelet"
"""Who makes what volumes need."""
HOST_FILES = {"/etc/hosts": "127.0.0.1\tlocalhost\n"}
"""What the machine has that pods mount of it."""


def layer_of(uid: str, container: str) -> tuple[str, str]:
    """Return whose a container's own files are; no volume has such a name."""
    return uid, f"/{container}"


class FileStore:
    """The files of one volume, one container's layer, or the host."""

    __slots__ = ("_files", "_size")

    def __init__(self) -> None:
        self._files: dict[str, list[Version]] = {}
        self._size = 0

    def read(self, path: str, at_ns: int, without: Writing = NOBODY) -> Version | None:
        """Return what a file is at an instant, None if nobody wrote it by then.

        `without` is whose writing, and from when on, is not seen.
        """
        found = _at(self._files.get(path, ()), at_ns, without)
        if found is not None and found.text is not None:
            return found
        start = f"{path}/"
        for name, versions in self._files.items():
            if name.startswith(start):
                inner = _at(versions, at_ns, without)
                if inner is not None and inner.text is not None:
                    return Version(inner.at_ns, inner.writer, DIRECTORY)
        return found

    def write(self, path: str, text: str | None, at_ns: int, writer: str) -> None:
        """Make or replace a file at an instant; None removes it, and what is below it."""
        if text is None:
            below = [n for n in self._files if n == path or n.startswith(f"{path}/")]
            for name in below or (path,):
                self._add(name, Version(at_ns, writer, None))
            return
        if path not in self._files and len(self._files) >= FILES_MAX:
            raise UnknownScriptError("No space left on device")
        if self._size + len(text) > BYTES_MAX:
            raise UnknownScriptError("No space left on device")
        self._add(path, Version(at_ns, writer, text))

    def _add(self, path: str, version: Version) -> None:
        versions = self._files.setdefault(path, [])
        at = bisect_right(versions, version.at_ns, key=_instant)
        if at and versions[at - 1].at_ns == version.at_ns:
            at -= 1
            self._size -= len(versions.pop(at).text or "")
        versions.insert(at, version)
        self._size += len(version.text or "")
        if len(versions) > VERSIONS_MAX:
            self._size -= len(versions.pop(0).text or "")

    def names(self, path: str, at_ns: int) -> set[str]:
        """Return the names in a directory at an instant."""
        start = f"{path}/"
        found = set()
        for name, versions in self._files.items():
            if name.startswith(start):
                version = _at(versions, at_ns)
                if version is not None and version.text is not None:
                    found.add(name[len(start) :].partition("/")[0])
        return found - {""}

    def instants(self) -> set[int]:
        """Return when files changed, or will."""
        return {each.at_ns for versions in self._files.values() for each in versions}

    def undo(self, writer: str, after_ns: int) -> None:
        """Forget what somebody would have written after an instant."""
        for path, versions in list(self._files.items()):
            kept = [v for v in versions if v.writer != writer or v.at_ns <= after_ns]
            if len(kept) == len(versions):
                continue
            self._size -= sum(len(v.text or "") for v in versions if v not in kept)
            if kept:
                self._files[path] = kept
            else:
                del self._files[path]


def _instant(version: Version) -> int:
    return version.at_ns


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
    """All that was written on one node, and what its servers were told."""

    __slots__ = ("_stores", "records")

    def __init__(self) -> None:
        self._stores: dict[tuple[str, str], FileStore] = {}
        self.records = ServerRecords()

    def view(
        self,
        mounts: Iterable[MountSpec],
        places: Mapping[str, VolumePlace],
        layer: tuple[str, str] = ("", "/"),
        start_ns: int = 0,
        *,
        known: Mapping[str, str] = NO_TEXTS,
        system: Mapping[str, str] | None = None,
        is_locked: bool = False,
        is_plain: bool = False,
    ) -> "ContainerFiles":
        """Return the file system of a container that started at an instant.

        `layer` names its own files. `known` has the texts of what a kubelet puts there; where they
        are given as `system`, no other file is unknown. `is_locked`: only volumes can be written.
        `is_plain`: the image has nothing but what every image has directories for.
        """
        found = []
        for mount in mounts:
            place = places.get(mount.volume)
            if place is not None and mount.read_only:
                place = place._replace(is_locked=True)
            if place is not None and mount.inner:
                place = place._replace(root=posixpath.normpath(f"{place.root}/{mount.inner}"))
                self._make_directory(place, start_ns)
            found.append((posixpath.normpath(mount.path), place))
        found.sort(key=lambda each: -len(each[0]))
        texts = known if system is None else system
        return ContainerFiles(
            self._stores,
            found,
            layer,
            start_ns,
            texts,
            is_whole=system is not None,
            is_locked=is_locked,
            is_plain=is_plain,
        )

    def read_host(self, path: str, at_ns: int) -> Version | None:
        """Return what a path of the machine is at an instant, None if nobody wrote it."""
        store = self._stores.get(HOST)
        return None if store is None else store.read(path, at_ns)

    def write_host(self, path: str, text: str, at_ns: int) -> None:
        """Have a kubelet make a path of the machine."""
        self._stores.setdefault(HOST, FileStore()).write(path, text, at_ns, KUBELET)

    def text(self, key: tuple[str, str], path: str, at_ns: int) -> str | None:
        """Return the text of a file of a volume at an instant, None if it has no such file."""
        store = self._stores.get(key)
        found = None if store is None else store.read(posixpath.normpath(path), at_ns)
        return None if found is None or found.text == DIRECTORY else found.text

    def _make_directory(self, place: VolumePlace, at_ns: int) -> None:
        """Make the part of a volume that a container mounts, if it is not there.

        Source: pkg/volume/util/subpath/subpath_linux.go, SafeMakeDir.
        """
        if place.shown is not None or place.read_only:
            return
        store = self._stores.get(place.key)
        if store is None:
            store = self._stores[place.key] = FileStore()
        found = store.read(place.root, at_ns)
        if found is None or found.text is None:
            with contextlib.suppress(UnknownScriptError):  # it is full
                store.write(place.root, DIRECTORY, at_ns, KUBELET)

    def undo(self, layer: tuple[str, str], after_ns: int) -> None:
        """Forget what a container would have written after an instant."""
        for store in self._stores.values():
            store.undo(writer_of(layer), after_ns)

    def forget_layer(self, layer: tuple[str, str]) -> None:
        """Drop what a container wrote beside its volumes."""
        self._stores.pop(layer, None)

    def forget(self, owner: str) -> None:
        """Drop the volumes and layers of a pod."""
        for key in [key for key in self._stores if key[0] == owner]:
            del self._stores[key]
        self.records.forget(owner)


class ContainerFiles:
    """The files that one container sees: its mounts, and a layer of its own."""

    __slots__ = (
        "_is_locked",
        "_is_plain",
        "_is_whole",
        "_layer",
        "_mounts",
        "_now_ns",
        "_overlay",
        "_own",
        "_start_ns",
        "_stores",
        "_system",
        "writer",
    )

    def __init__(
        self,
        stores: dict[tuple[str, str], FileStore],
        mounts: list[tuple[str, VolumePlace | None]],
        layer: tuple[str, str],
        start_ns: int,
        system: Mapping[str, str],
        *,
        is_whole: bool,
        is_locked: bool,
        is_plain: bool,
    ) -> None:
        self._stores = stores
        self._mounts = mounts  # the deepest first
        self._layer = layer
        self._start_ns = start_ns
        self._now_ns = start_ns
        self._system = system
        self._is_whole = is_whole
        self._is_locked = is_locked
        self._is_plain = is_plain
        self._overlay: dict[tuple[tuple[str, str], str], Version] | None = None
        self._own = NOBODY
        self.writer = writer_of(layer)

    def written_by(self, writer: str) -> "ContainerFiles":
        """Have what is written be somebody else's than the container's own script's."""
        self.writer = writer
        return self

    def as_replay(self) -> "ContainerFiles":
        """Have what is written seen by nobody else: it was, or will be, when it really happens."""
        self._overlay = {}
        return self

    def as_run_again(self) -> "ContainerFiles":
        """Have a script run that ran before: it finds nothing of what it wrote then."""
        self._own = (self.writer, self._start_ns)
        self.as_replay()
        return self

    def at(self, after_ns: int) -> None:
        """Let time pass: so long after the start it reads and writes now."""
        self._now_ns = self._start_ns + after_ns

    def read(self, path: str) -> str | None:
        """Return a file's text, DIRECTORY for a directory, None if there is none."""
        path = posixpath.normpath(path)
        place, inner, is_mount = self._find(path)
        if place is None:
            if any(path == mount for mount, _ in self._mounts):
                return DIRECTORY
            raise UnknownScriptError(path)
        if is_mount and inner == place.root:
            return self._read_mount(place)
        version = self._version(place.key, inner)
        if version is not None and not (version.text is None and self._is_below_mount(path)):
            return version.text
        if place.shown is not None:
            return _look_up(place.shown, inner)
        if is_mount:
            return DIRECTORY if self._is_below_mount(path) else None
        return self._read_image(path)

    def look(self, path: str) -> Look | None:
        """Return what is said of a file, None if there is none. Raises UnknownScriptError.

        Source: pkg/volume/emptydir; util/atomic_writer.go; volume_linux.go, changeFilePermission.
        """
        path = posixpath.normpath(path)
        text = self.read(path)
        if text is None:
            return None
        place, inner, _ = self._find(path)
        if place is None:
            return Look(stat.S_IFDIR | DIRECTORY_MODE)
        is_root = not inner.strip("/")
        if text == DIRECTORY:
            is_open = is_root and (place.is_open or place.shown is not None)
            mode = stat.S_IFDIR | (OPEN_MODE if is_open else DIRECTORY_MODE)
        else:
            mode = stat.S_IFREG | place.modes.get(inner, place.mode)
        if place.group is not None:
            mode |= _GROUP_READS if place.read_only else _GROUP_WRITES
            mode |= stat.S_ISGID if text == DIRECTORY else 0
        return Look(mode, 0, place.group or 0, place.in_memory)

    def _read_mount(self, place: VolumePlace) -> str:
        """Return the text of a file that is mounted by itself, else DIRECTORY."""
        if not place.root:
            return DIRECTORY
        version = self._version(place.key, place.root)
        if version is not None and version.text is not None:
            return version.text
        if place.key == HOST and place.root in HOST_FILES:
            return HOST_FILES[place.root]
        return (place.shown or {}).get(place.root, DIRECTORY)

    def _read_image(self, path: str) -> str | None:
        if path == "/" or path in _WRITABLE or self._is_below_mount(path):
            return DIRECTORY
        if self._is_whole or path in self._system:
            return DIRECTORY if path in _SYSTEM else _look_up(self._system, path)
        if path.startswith(tuple(f"{each}/" for each in _WRITABLE)):
            return None
        if self._is_plain and not path.startswith(tuple(f"{each}/" for each in _SYSTEM)):
            return DIRECTORY if path in _SYSTEM else None
        raise UnknownScriptError(path)  # the image may have it

    def _is_below_mount(self, path: str) -> bool:
        """Return whether a path leads to a mount: then it is a directory."""
        start = path.rstrip("/") + "/"
        return any(mount.startswith(start) for mount, _ in self._mounts)

    def _is_of_image(self, path: str) -> bool:
        """Return whether a path is in the root file system: not in a mount, nor in /dev."""
        return not path.startswith("/dev/") and not self._find(path)[2]

    def _find(self, path: str) -> tuple[VolumePlace | None, str, bool]:
        """Return where a path is, its path there, and whether that is a volume."""
        for mount, place in self._mounts:
            if path == mount or path.startswith(f"{mount}/"):
                root = "" if place is None else place.root
                return place, root + path[len(mount) :], True
        return VolumePlace(self._layer), path, False

    def _version(self, key: tuple[str, str], path: str) -> Version | None:
        store = self._stores.get(key)
        found = None if store is None else store.read(path, self._now_ns, self._own)
        own = None if self._overlay is None else self._overlay.get((key, path))
        if own is not None and (found is None or found.at_ns <= own.at_ns):
            return own
        return found

    def is_removed(self, path: str) -> bool:
        """Return whether somebody removed a file."""
        found = self._written(path)
        return found is not None and found.text is None

    def is_written(self, path: str) -> bool:
        """Return whether somebody wrote a file that is there still."""
        found = self._written(path)
        return found is not None and found.text is not None

    def _written(self, path: str) -> Version | None:
        place, inner, _ = self._find(posixpath.normpath(path))
        return None if place is None else self._version(place.key, inner)

    def changes_after(self) -> list[int]:
        """Return how long after now scripts that are known in advance change files, in order."""
        keys = {self._layer, *(place.key for _, place in self._mounts if place is not None)}
        found = {
            at_ns - self._now_ns
            for key in sorted(keys)
            if key in self._stores
            for at_ns in self._stores[key].instants()
            if at_ns > self._now_ns
        }
        return sorted(found)

    def write(self, path: str, text: str | None) -> None:
        """Make or replace a file; None removes it, and what is below it."""
        path = posixpath.normpath(path)
        place, inner, _ = self._find(path)
        if place is None:
            raise UnknownScriptError(path)
        if place.read_only or place.is_locked or (self._is_locked and self._is_of_image(path)):
            raise ReadOnlyFileSystemError(path)
        if self._overlay is not None:
            self._overlay[place.key, inner] = Version(self._now_ns, self.writer, text)
            return
        store = self._stores.get(place.key)
        if store is None:
            store = self._stores[place.key] = FileStore()
        store.write(inner, text, self._now_ns, self.writer)

    def commit(self) -> None:
        """Let others see what a replay has written by now."""
        overlay, self._overlay = self._overlay or {}, None
        for (key, path), version in overlay.items():
            store = self._stores.get(key)
            if store is None:
                store = self._stores[key] = FileStore()
            store.write(path, version.text, version.at_ns, version.writer)

    def names(self, path: str) -> list[str]:
        """Return what is in a directory, sorted."""
        path = posixpath.normpath(path)
        place, inner, _ = self._find(path)
        if place is None:
            raise UnknownScriptError(path)
        found: set[str] = set()
        store = self._stores.get(place.key)
        start = f"{path.rstrip('/')}/"
        if place.shown is not None:
            found |= _below(place.shown, f"{inner}/")
        elif place.key == self._layer:
            found |= _below(self._system, start) | _below(_SYSTEM, start)
        found |= _below((mount for mount, _ in self._mounts), start)
        if store is not None:
            prefix = inner.rstrip("/")
            hidden = {
                name
                for name in found
                if (gone := store.read(f"{prefix}/{name}", self._now_ns)) and gone.text is None
            }
            found = (found - hidden) | store.names(prefix, self._now_ns)
        return sorted(found)


def _below(paths: Iterable[str], start: str) -> set[str]:
    """Return the names in a directory, of the paths of files."""
    return {path[len(start) :].partition("/")[0] for path in paths if path.startswith(start)} - {""}


def _look_up(texts: Mapping[str, str], path: str) -> str | None:
    text = texts.get(path)
    if text is None and any(name.startswith(f"{path}/") for name in texts):
        return DIRECTORY
    return text
