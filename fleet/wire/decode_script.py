"""What the script of a container may look at, from JSON: its variables and its mounts."""

from typing import Any

from fleet.script import PROGRAMS, MountSpec, ScriptSpec, entry_point


def container_script(obj: dict[str, Any]) -> ScriptSpec | None:
    """Return the surroundings of a container's command, None if it needs none."""
    words = [*obj.get("command", ()), *obj.get("args", ())]
    if not words:
        own = () if obj.get("stdin") else entry_point(obj.get("image", ""))
        return ScriptSpec(entry_point=own) if own else None
    if words[0].rpartition("/")[2] not in PROGRAMS:
        return None
    has_variables = any("$" in word for word in words)
    has_files = any("/" in word for word in words[1:])
    if not has_variables and not has_files:
        return None
    variables = obj.get("env", ()) if has_variables else ()
    mounts = obj.get("volumeMounts", ()) if has_files else ()
    return ScriptSpec(
        tuple(each for each in map(_variable, variables) if each is not None),
        tuple(
            MountSpec(each["mountPath"], each["name"], each.get("subPath", "")) for each in mounts
        ),
    )


def _variable(obj: dict[str, Any]) -> tuple[str, str, str] | None:
    """Return a variable; None where its value comes from an object that is not read."""
    source = obj.get("valueFrom")
    if not source:
        return obj["name"], obj.get("value", ""), ""
    field = source.get("fieldRef")
    return (obj["name"], "", field["fieldPath"]) if field else None
