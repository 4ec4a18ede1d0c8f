"""What the scripts of containers find around them: variables of the pod, files in its volumes.

Only what scripts wrote is kept: an emptyDir while its pod is there, a host's directory or a claim
as long as the node. All of it is bounded, and nothing is made before a script writes.
Source: pkg/kubelet/kubelet_pods.go, makeEnvironmentVariables, podFieldSelectorRuntimeValue;
third_party/forked/golang/expansion/expand.go.
Differs: what images, ConfigMaps, Secrets and claims of other nodes hold is unknown.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from fleet.objects.scripts import MountSpec, ScriptSpec
from fleet.runtime.shell.shell import SHELLS
from fleet.runtime.shell.syntax import UnknownScriptError

FILES_MAX = 256
"""Files that are kept of one volume, or of the host."""
PROGRAMS = SHELLS | {"cat", "touch", "test", "rm", "mkdir", "echo", "exit", "sleep"}
"""Whatever else a container runs needs no variables and no files."""
DIRECTORY = "/"
_WRITABLE = ("/tmp", "/var/tmp")  # noqa: S108 - in the emulated container
_REFERENCE = re.compile(r"\$(?:\$|\(([^()\s]+)\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")

Store = dict[str, str]
"""The texts of files by their paths within a volume, or on the host."""


class VolumePlace(NamedTuple):
    """Where the files of a volume are."""

    key: tuple[str, str]  # whose they are, and the volume's name
    root: str = ""  # the path of the volume in that store


HOST = ("host", "")


class NodeFiles:
    """The files that scripts left on one node."""

    __slots__ = ("_stores",)

    def __init__(self) -> None:
        self._stores: dict[tuple[str, str], Store] = {}

    def view(
        self, mounts: Iterable[MountSpec], places: Mapping[str, VolumePlace]
    ) -> "ContainerFiles":
        """Return the file system of a container that starts."""
        found = []
        for mount in mounts:
            place = places.get(mount.volume)
            key, root = place if place is not None else (None, "")
            inner = posixpath.normpath(f"{root}/{mount.inner}") if mount.inner else root
            found.append((posixpath.normpath(mount.path), key, inner))
        found.sort(key=lambda each: -len(each[0]))
        return ContainerFiles(self._stores, found)

    def forget(self, owner: str) -> None:
        """Drop the volumes of a pod."""
        for key in [key for key in self._stores if key[0] == owner]:
            del self._stores[key]


class ContainerFiles:
    """The files that one run of a container sees: its mounts, and a layer of its own."""

    __slots__ = ("_layer", "_mounts", "_stores")

    def __init__(
        self,
        stores: dict[tuple[str, str], Store],
        mounts: list[tuple[str, tuple[str, str] | None, str]],
    ) -> None:
        self._stores = stores
        self._mounts = mounts  # the deepest first
        self._layer: Store = {}

    def read(self, path: str) -> str | None:
        """Return a file's text, DIRECTORY for a directory, None if there is none."""
        path = posixpath.normpath(path)
        for mount, key, root in self._mounts:
            if path == mount:
                return DIRECTORY
            if path.startswith(f"{mount}/"):
                if key is None:
                    raise UnknownScriptError(path)
                return _look_up(self._stores.get(key, {}), root + path[len(mount) :])
        if path in _WRITABLE:
            return DIRECTORY
        text = _look_up(self._layer, path)
        if text is None and not path.startswith(tuple(f"{each}/" for each in _WRITABLE)):
            raise UnknownScriptError(path)  # the image may have it
        return text

    def write(self, path: str, text: str | None) -> None:
        """Make or replace a file; None removes it, and what is below it."""
        path = posixpath.normpath(path)
        store = self._layer
        for mount, key, root in self._mounts:
            if path.startswith(f"{mount}/"):
                if key is None:
                    raise UnknownScriptError(path)
                store = self._stores.setdefault(key, {})
                path = root + path[len(mount) :]
                break
        if text is None:
            for name in [name for name in store if name == path or name.startswith(f"{path}/")]:
                del store[name]
        elif path in store or len(store) < FILES_MAX:
            store[path] = text
        else:
            raise UnknownScriptError("too many files")


def _look_up(store: Store, path: str) -> str | None:
    text = store.get(path)
    if text is None and any(name.startswith(f"{path}/") for name in store):
        return DIRECTORY
    return text


def variables_of(spec: ScriptSpec, field: Callable[[str], str | None]) -> dict[str, str]:
    """Return the variables that are known; `field` returns the value of a field of the pod.

    A value may refer to the variables before it.
    """
    known: dict[str, str] = {}
    for name, value, path in spec.variables:
        found = field(path) if path else expand(value, known)
        if found is not None:
            known[name] = found
    return known


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by the variable of that name, if there is one, and `$$` by `$`."""

    def replace(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(replace, text) if "$" in text else text


def sub_path_error(spec: ScriptSpec, variables: Mapping[str, str]) -> str:
    """Return what is wrong with the paths that a container mounts of its volumes, "" if nothing.

    Source: pkg/kubelet/kubelet_pods.go, makeMounts; container/helpers.go,
    ExpandContainerVolumeMounts; pkg/volume/validation, ValidatePathNoBacksteps.
    """
    unread = {name for name, _, path in spec.variables if path and name not in variables}
    for mount in spec.mounts:
        names = {match[1] for match in _REFERENCE.finditer(mount.expression) if match[1]}
        if names & unread:
            continue
        missing = sorted(name for name in names if not variables.get(name))
        if missing:
            return f"missing value for {', '.join(missing)}"
        path = expand(mount.expression, variables) if mount.expression else mount.inner
        if path.startswith("/"):
            return f"error SubPath `{path}` must not be an absolute path"
        if ".." in path.split("/"):
            return f"unable to provision SubPath `{path}`: must not contain '..'"
    return ""


def subscripted(path: str) -> tuple[str, str] | None:
    """Return ("labels" or "annotations", key) of a field path that names one of them."""
    match = _SUBSCRIPT.fullmatch(path)
    return None if match is None else (match[1], match[2])
