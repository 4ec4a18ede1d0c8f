"""What the script of a container may look at, from JSON: its variables and its mounts."""

from typing import Any

from fleet.objects.scripts import UNREAD, MountSpec, ScriptSpec
from fleet.runtime.known_images import entry_point
from fleet.runtime.script import PROGRAMS


def container_script(obj: dict[str, Any]) -> ScriptSpec | None:
    """Return the surroundings of a container's command, None if it needs none."""
    words = [*obj.get("command", ()), *obj.get("args", ())]
    own = () if words or obj.get("stdin") else entry_point(obj.get("image", ""))
    mounts = obj.get("volumeMounts", ())
    has_expressions = any("subPathExpr" in each for each in mounts)
    if not words or words[0].rpartition("/")[2] not in PROGRAMS:
        words = []
    has_variables = has_expressions or any("$" in word or "date" in word for word in words)
    has_files = has_expressions or any("/" in word for word in words[1:])
    if not has_variables and not has_files and not own:
        return None
    return ScriptSpec(
        tuple(map(_variable, obj.get("env", ()) if has_variables else ())),
        tuple(map(_mount, mounts if has_files else ())),
        own,
    )


def _mount(obj: dict[str, Any]) -> MountSpec:
    return MountSpec(
        obj["mountPath"], obj["name"], obj.get("subPath", ""), obj.get("subPathExpr", "")
    )


def _variable(obj: dict[str, Any]) -> tuple[str, str, str]:
    source = obj.get("valueFrom")
    if not source:
        return obj["name"], obj.get("value", ""), ""
    field = source.get("fieldRef")
    return obj["name"], "", field["fieldPath"] if field else UNREAD
