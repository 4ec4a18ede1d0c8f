"""What the command of a container may look at, from JSON: its variables and its mounts."""

import re
from typing import Any

from fleet.k8s.scripts import EnvFrom, EnvRef, MountSpec, ScriptSpec, Variable
from fleet.runtime.known_images import NOTHING, entry_point, runs_its_args
from fleet.runtime.script import LOOKERS, PROGRAMS
from fleet.runtime.shell.agnhost import is_agnhost
from fleet.runtime.shell.file_programs import FILE_PROGRAMS
from fleet.runtime.shell.process import is_shell

_LOOKS = re.compile(rf"[/$>]|\b(?:{'|'.join(sorted(LOOKERS | set(FILE_PROGRAMS)))})\b")


def container_script(obj: dict[str, Any], *, has_service_links: bool = True) -> ScriptSpec | None:
    """Return the surroundings of a container's command, None if there are none."""
    words = [*obj.get("command", ()), *obj.get("args", ())]
    image, has_input = obj.get("image", ""), obj.get("stdin", False)
    asked = bool(obj.get("command")) or (has_input and not words)
    own = () if asked else entry_point(image, words)
    if not has_input and is_shell(words) and (asked or runs_its_args(image)):
        own = NOTHING  # its script is the standard input, which is /dev/null
    mounts = obj.get("volumeMounts", ())
    is_read = bool(own) or any("subPathExpr" in each for each in mounts)
    is_read = is_read or is_agnhost(words)
    if words and (name := words[0].rpartition("/")[2]) in PROGRAMS:
        is_read = is_read or any(_LOOKS.search(word) for word in (name, *words[1:]))
    found = ScriptSpec(
        tuple(map(_variable, obj.get("env", ()))),
        tuple(map(_mount, mounts)),
        own,
        tuple(from_ for each in obj.get("envFrom", ()) for from_ in _env_from(each)),
        has_service_links,
        is_read,
        obj.get("workingDir", ""),
    )
    return None if found == ScriptSpec(is_read=False) else found


def _mount(obj: dict[str, Any]) -> MountSpec:
    return MountSpec(
        obj["mountPath"],
        obj["name"],
        obj.get("subPath", ""),
        obj.get("subPathExpr", ""),
        obj.get("readOnly", False),
        recursive=obj.get("recursiveReadOnly") == "Enabled",
    )


def _variable(obj: dict[str, Any]) -> Variable:
    source = obj.get("valueFrom")
    if obj.get("value") or not source:
        return Variable(obj["name"], obj.get("value", ""))
    return Variable(obj["name"], source=env_reference(source))


def env_reference(source: dict[str, Any]) -> EnvRef:
    """Return where a value comes from, of a variable or of a file of the downward API."""
    for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if field in source:
            return EnvRef(kind, source[field].get("key", ""), source[field].get("name", ""))
    if "fieldRef" in source:
        return EnvRef("Field", source["fieldRef"].get("fieldPath", ""))
    if "resourceFieldRef" in source:
        ref = source["resourceFieldRef"]
        return EnvRef(
            "Resource",
            ref.get("resource", ""),
            ref.get("containerName", ""),
            str(ref.get("divisor", "")),
        )
    if "fileKeyRef" in source:
        ref = source["fileKeyRef"]
        return EnvRef(
            "File",
            ref.get("key", ""),
            ref.get("volumeName", ""),
            path=ref.get("path", ""),
            optional=ref.get("optional") or False,
        )
    return EnvRef("")


def _env_from(obj: dict[str, Any]) -> list[EnvFrom]:
    prefix = obj.get("prefix", "")
    return [
        EnvFrom(kind, obj[field].get("name", ""), prefix)
        for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret"))
        if field in obj
    ]
