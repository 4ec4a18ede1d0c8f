"""What the script of a container says of its variables and of the paths that it mounts.

Source: pkg/kubelet/kubelet_pods.go, makeEnvironmentVariables, podFieldSelectorRuntimeValue;
third_party/forked/golang/expansion/expand.go.
"""

import re
from collections.abc import Callable, Mapping

from fleet.k8s.scripts import EnvRef, ScriptSpec
from fleet.runtime.shell.budget import OverBudgetError
from fleet.runtime.shell.file_programs import FILE_PROGRAMS
from fleet.runtime.shell.process import SHELLS
from fleet.runtime.shell.programs import TEXT_PROGRAMS
from fleet.runtime.shell.shell import ARGUMENT_MAX, TOO_MANY_ARGUMENTS

LOOKERS = frozenset(("date", "env", "hostname", "id", "printenv", "pwd", "sysctl", "whoami"))
"""What these say follows from the pod, or from the instant."""
PROGRAMS = SHELLS | LOOKERS | {"echo", "exit", "sleep", "test"} | {*TEXT_PROGRAMS, *FILE_PROGRAMS}
"""Whatever else a container runs needs no variables and no files."""
STRINGS_MAX = 2 << 20
"""Of all together. Source: Linux, fs/exec.c, bprm_stack_limits, with a stack of 8 MiB."""
_REFERENCE = re.compile(r"\$(?:\$|\(([^()\s]+)\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")


def variables_of(spec: ScriptSpec, value: Callable[[EnvRef], str | None]) -> dict[str, str]:
    """Return the variables that are known; `value` returns that of a source, None if unknown.

    A value may refer to the variables before it. Raises OverBudgetError.
    """
    known: dict[str, str] = {}
    room = STRINGS_MAX
    for each in spec.variables:
        source = each.source
        found = expand(each.value, known) if source is None else value(source)
        if found is not None:
            known[each.name] = found
            room = left_of(room, each.name, found)
    return known


def left_of(room: int, *texts: str) -> int:
    """Return what is left for the variables and arguments of a process. Raises OverBudgetError."""
    room -= sum(map(len, texts))
    if room < 0 or any(len(text) > ARGUMENT_MAX for text in texts):
        raise OverBudgetError(TOO_MANY_ARGUMENTS)
    return room


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by the variable of that name, if there is one, and `$$` by `$`.

    Raises OverBudgetError before a text is made that no process can be given.
    """
    room = ARGUMENT_MAX

    def replace(match: re.Match[str]) -> str:
        nonlocal room
        found = "$" if match[1] is None else variables.get(match[1], match[0])
        room = left_of(room, found)
        return found

    return _REFERENCE.sub(replace, text) if "$" in text else text


def mount_error(spec: ScriptSpec, variables: Mapping[str, str], *, recursive: bool = True) -> str:
    """Return why a container cannot mount its volumes as it asks for, "" if it can.

    `recursive`: the runtime handler supports recursive read-only mounts.
    Source: pkg/kubelet/kubelet_pods.go, makeMounts, resolveRecursiveReadOnly; container/helpers.go,
    ExpandContainerVolumeMounts; pkg/volume/validation, ValidatePathNoBacksteps.
    """
    unread = {each.name for each in spec.variables if each.source and each.name not in variables}
    for mount in spec.mounts:
        names = {match[1] for match in _REFERENCE.finditer(mount.expression) if match[1]}
        if not names & unread:
            missing = sorted(name for name in names if not variables.get(name))
            if missing:
                return f"missing value for {', '.join(missing)}"
            path = expand(mount.expression, variables) if mount.expression else mount.inner
            if path.startswith("/"):
                return f"error SubPath `{path}` must not be an absolute path"
            if ".." in path.split("/"):
                return f"unable to provision SubPath `{path}`: must not contain '..'"
        if mount.recursive and not recursive:
            return (
                f'failed to resolve recursive read-only mode: volume "{mount.volume}" requested '
                "recursive read-only mode, but it is not supported by the runtime"
            )
    return ""


def subscripted(path: str) -> tuple[str, str] | None:
    """Return ("labels" or "annotations", key) of a field path that names one of them."""
    match = _SUBSCRIPT.fullmatch(path)
    return None if match is None else (match[1], match[2])
