"""What the script of a container says of its variables and of the paths that it mounts.

Source: pkg/kubelet/kubelet_pods.go, makeEnvironmentVariables, podFieldSelectorRuntimeValue;
third_party/forked/golang/expansion/expand.go.
"""

import re
from collections.abc import Callable, Mapping

from fleet.objects.scripts import ScriptSpec
from fleet.runtime.shell.process import SHELLS

PROGRAMS = SHELLS | {"cat", "touch", "test", "rm", "mkdir", "echo", "exit", "sleep"}
"""Whatever else a container runs needs no variables and no files."""
_REFERENCE = re.compile(r"\$(?:\$|\(([^()\s]+)\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")


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
