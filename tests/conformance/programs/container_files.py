"""The files that a process of a container sees: its volumes, its layer, what a kubelet puts there.

What the process writes it alone sees: fleet has others see it, by the changes of its run.
Differs: what images and claims of other nodes hold is unknown.
"""

import posixpath
import stat
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fleet.k8s.pods import MountSpec
from fleet.runtime.files import (
    HOST,
    NOBODY,
    NodeFiles,
    Version,
    writer_of,
)

from .surroundings import DIRECTORY, Look, ReadOnlyFileSystemError
from .syntax import UnknownScriptError

WRITER = "own"
"""Of what a process wrote itself."""
_WRITABLE = ("/tmp", "/var/tmp", "/run", "/var/run", "/dev/shm")
_SYSTEM = (
    *("/bin", "/dev", "/etc", "/home", "/lib", "/mnt", "/opt", "/proc", "/root", "/run", "/sbin"),
    *("/srv", "/sys", "/tmp", "/usr", "/var", "/var/run", "/var/tmp", "/dev/shm"),
)
"""What every image has."""


FILE_MODE, DIRECTORY_MODE, OPEN_MODE = 0o644, 0o755, 0o777
NO_MODES: Mapping[str, int] = {}
NO_TEXTS: Mapping[str, str] = {}
_GROUP_READS, _GROUP_WRITES = 0o440, 0o660
"""What the group of a volume may do. Source: pkg/volume/volume_linux.go, roMask, rwMask."""


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


HOST_FILES = {"/etc/hosts": "127.0.0.1\tlocalhost\n"}
"""What the machine has that pods mount of it."""


def view(
    files: NodeFiles | None,
    mounts: Iterable[MountSpec],
    places: Mapping[str, VolumePlace],
    layer: tuple[str, str],
    start_ns: int,
    *,
    known: Mapping[str, str] = NO_TEXTS,
    system: Mapping[str, str] | None = None,
    is_locked: bool = False,
    is_plain: bool = False,
    is_own: bool = False,
) -> "ContainerFiles":
    """Return the file system of a process that starts at an instant.

    `layer` names its container's own files. `known` has the texts of what a kubelet puts there;
    where they are given as `system`, no other file is unknown. `is_locked`: only volumes can be
    written. `is_plain`: the image has nothing but what every image has directories for. `is_own`:
    the process is the container's own, and finds nothing of what it wrote when it ran before.
    """
    found = []
    for mount in mounts:
        place = places.get(mount.volume)
        if place is not None and mount.read_only:
            place = place._replace(is_locked=True)
        if place is not None and mount.inner:
            place = place._replace(root=posixpath.normpath(f"{place.root}/{mount.inner}"))
        found.append((posixpath.normpath(mount.path), place))
    found.sort(key=lambda each: -len(each[0]))
    return ContainerFiles(
        files or NodeFiles(),
        found,
        layer,
        start_ns,
        known if system is None else system,
        is_whole=system is not None,
        is_locked=is_locked,
        is_plain=is_plain,
        is_own=is_own,
    )


class ContainerFiles:
    """The files that one container sees: its mounts, and a layer of its own."""

    __slots__ = (
        "_files",
        "_is_locked",
        "_is_plain",
        "_is_whole",
        "_layer",
        "_mounts",
        "_now_ns",
        "_overlay",
        "_own",
        "_start_ns",
        "_system",
    )

    def __init__(
        self,
        files: NodeFiles,
        mounts: list[tuple[str, VolumePlace | None]],
        layer: tuple[str, str],
        start_ns: int,
        system: Mapping[str, str],
        *,
        is_whole: bool,
        is_locked: bool,
        is_plain: bool,
        is_own: bool,
    ) -> None:
        self._files = files
        self._mounts = mounts  # the deepest first
        self._layer = layer
        self._start_ns = start_ns
        self._now_ns = start_ns
        self._system = system
        self._is_whole = is_whole
        self._is_locked = is_locked
        self._is_plain = is_plain
        self._overlay = NodeFiles()  # what this process wrote
        self._own = (writer_of(layer), start_ns) if is_own else NOBODY

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
            is_directory = self._is_below_mount(path) or self._is_sub_path(place.key, inner)
            return DIRECTORY if is_directory else None
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

    def _is_sub_path(self, key: tuple[str, str], inner: str) -> bool:
        """Return whether a path of a volume leads to a subPath that is mounted.

        Source: pkg/volume/util/subpath/subpath_linux.go, SafeMakeDir.
        """
        places = [each for _, each in self._mounts if each is not None and each.key == key]
        return any(f"{each.root}/".startswith(f"{inner}/") for each in places if each.root)

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
        found = self._files.read(key, path, self._now_ns, self._own)
        own = self._overlay.read(key, path, self._now_ns)
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

    def write(self, path: str, text: str | None) -> None:
        """Make or replace a file; None removes it, and what is below it."""
        path = posixpath.normpath(path)
        place, inner, _ = self._find(path)
        if place is None:
            raise UnknownScriptError(path)
        if place.read_only or place.is_locked or (self._is_locked and self._is_of_image(path)):
            raise ReadOnlyFileSystemError(path)
        self._overlay.write(place.key, inner, text, self._now_ns, WRITER)

    def names(self, path: str) -> list[str]:
        """Return what is in a directory, sorted."""
        path = posixpath.normpath(path)
        place, inner, _ = self._find(path)
        if place is None:
            raise UnknownScriptError(path)
        found: set[str] = set()
        start = f"{path.rstrip('/')}/"
        if place.shown is not None:
            found |= _below(place.shown, f"{inner}/")
        elif place.key == self._layer:
            found |= _below(self._system, start) | _below(_SYSTEM, start)
        found |= _below((mount for mount, _ in self._mounts), start)
        prefix = inner.rstrip("/")
        for each in (self._files, self._overlay):
            hidden = {
                name
                for name in found
                if (gone := each.read(place.key, f"{prefix}/{name}", self._now_ns))
                and gone.text is None
            }
            found = (found - hidden) | _names(each, place.key, prefix, self._now_ns)
        return sorted(found)


def _names(files: NodeFiles, key: tuple[str, str], path: str, at_ns: int) -> set[str]:
    """Return the names in a directory at an instant."""
    start = f"{path}/"
    changes = files.changes.get(key, ())
    found = (each.path for each in changes if each.path.startswith(start))
    names = {name[len(start) :].partition("/")[0] for name in found} - {""}
    versions = ((name, files.read(key, start + name, at_ns)) for name in names)
    return {name for name, version in versions if version is not None and version.text is not None}


def _below(paths: Iterable[str], start: str) -> set[str]:
    """Return the names in a directory, of the paths of files."""
    return {path[len(start) :].partition("/")[0] for path in paths if path.startswith(start)} - {""}


def _look_up(texts: Mapping[str, str], path: str) -> str | None:
    text = texts.get(path)
    if text is None and any(name.startswith(f"{path}/") for name in texts):
        return DIRECTORY
    return text
