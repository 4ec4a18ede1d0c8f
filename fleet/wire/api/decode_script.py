"""What the command of a container may look at, from JSON: its variables and its mounts."""

from typing import Any

from fleet.k8s.scripts import EnvFrom, EnvRef, MountSpec, ScriptSpec, Variable


def container_script(obj: dict[str, Any], *, has_service_links: bool = True) -> ScriptSpec | None:
    """Return the surroundings of a container's command, None if there are none."""
    found = ScriptSpec(
        tuple(map(_variable, obj.get("env", ()))),
        tuple(map(_mount, obj.get("volumeMounts", ()))),
        tuple(from_ for each in obj.get("envFrom", ()) for from_ in _env_from(each)),
        has_service_links,
        obj.get("workingDir", ""),
        obj.get("stdin", False),
    )
    return None if found == ScriptSpec() else found


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
