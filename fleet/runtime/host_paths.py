"""The type of a path of the node's machine, as a hostPath volume asks for it.

The machine has what its profile says, what scripts of pods wrote, and what volumes made.
Source: pkg/volume/hostpath/host_path.go, checkTypeInternal, makeDir, makeFile.
Differs: a path of no type is made with its volume; upstream's runtime makes it with the container.
"""

import posixpath
from collections.abc import Mapping

from fleet.profile.machine import DIRECTORY, real_path
from fleet.runtime import files
from fleet.runtime.files import HOST, NodeFiles

OR_CREATE = "OrCreate"
_NAMES = {
    "Directory": "a directory",
    "File": "a file",
    "Socket": "a socket file",
    "CharDevice": "a character device",
    "BlockDevice": "a block device",
}
_TYPES = frozenset((*_NAMES, "DirectoryOrCreate", "FileOrCreate"))


class HostPaths:
    """What one machine has, at one instant."""

    def __init__(self, files: NodeFiles | None, machine: Mapping[str, str], now_ns: int) -> None:
        self._files = files
        self._machine = machine
        self._now_ns = now_ns

    def type_of(self, path: str) -> str:
        """Return the type of a path, "" if there is nothing."""
        path = real_path(path)
        found = None if self._files is None else self._files.read(HOST, path, self._now_ns)
        if found is None:
            return self._machine.get(path, "")
        if found.text is None:
            return ""
        return DIRECTORY if found.text == files.DIRECTORY else "File"

    def problem(self, path: str, kind: str, *, names_type: bool) -> str:
        """Return why a volume of a type cannot be set up, "" if it can or may make the path.

        `names_type`: the error names the type that the path has.
        """
        if ".." in path.split("/"):
            return f"invalid HostPath `{path}`: must not contain '..'"
        if kind and kind not in _TYPES:
            return f"{kind} is an invalid volume type"
        found, wanted = self.type_of(path), kind.removesuffix(OR_CREATE)
        if found or not kind.endswith(OR_CREATE):
            is_right = not wanted or found == wanted
            return "" if is_right else _wrong_type(path, wanted, found if names_type else None)
        parent = posixpath.dirname(real_path(path))
        if wanted == "File":
            error = {"": "no such file or directory", DIRECTORY: ""}
            why = error.get(self.type_of(parent), "not a directory")
            return f"open {path}: {why}" if why else ""
        while not self.type_of(parent):
            parent = posixpath.dirname(parent)
        return "" if self.type_of(parent) == DIRECTORY else f"mkdir {parent}: not a directory"


def _wrong_type(path: str, wanted: str, found: str | None) -> str:
    """Return the error; `found` is the type of the path, "" for no path, None to leave it out.

    Source: typeMatchedOrError of 1.37.
    """
    text = f"{path} is not {_NAMES[wanted]}"
    if found is None:
        return f"hostPath type check failed: {text}"
    if found:
        return f"hostPath type check failed: {text}, it's a {found}"
    lost = f'unable to determine its type: path "{path}" does not exist'
    return f"hostPath type check failed, {text}, {lost}"
