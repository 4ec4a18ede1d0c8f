"""Keeps the pods of a scenario on the nodes of its run, on a cluster that others use.

Each pod template of each object gets a node selector that only nodes of the run have, and the
toleration of fleet's taint. What the manifest selects and tolerates already stays: the scheduler
requires a node selector and a node affinity both.

Fleet knows where the workloads of Kubernetes have their template. For any other kind the scenario
file names the place (`podTemplates`). An object with a template elsewhere is refused: nobody could
say where its pods would run. A custom resource without a template may still make its controller
create pods, of which nobody but that controller knows.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fleet.cluster.daemonsets import FAKE_KEY, FAKE_TAINT, tolerates
from fleet.errors import UsageError
from fleet.scenario.scenario import Manifest, metadata_of

Json = dict[str, Any]

TEMPLATES = {
    ("", "Pod"): "",
    ("", "ReplicationController"): "spec.template",
    ("apps", "DaemonSet"): "spec.template",
    ("apps", "Deployment"): "spec.template",
    ("apps", "ReplicaSet"): "spec.template",
    ("apps", "StatefulSet"): "spec.template",
    ("batch", "CronJob"): "spec.jobTemplate.spec.template",
    ("batch", "Job"): "spec.template",
}
"""Where the pod templates of a group's kinds are; a Pod is its own."""
CONTAINING = frozenset((("", "Namespace"), ("apiextensions.k8s.io", "CustomResourceDefinition")))
"""Kinds whose objects take the objects of others with them when they are deleted."""
BUILT_IN = frozenset({"", "apps", "autoscaling", "batch", "policy"})
CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
HINTS = frozenset({"container", "image", "podSpec", "podTemplate", "podTemplateSpec"})
"""Keys by which a custom resource shows that its controller makes pods of it."""
TOLERATION = {"key": FAKE_KEY, "operator": "Exists", "effect": FAKE_TAINT.effect}
ANY = "*"
OUT = "--real-nodes plays the scenario without this protection"


class Placement(NamedTuple):
    """Which nodes the pods of a run may have."""

    node_selector: Mapping[str, str]
    owns: Callable[[str], bool]  # return whether a node of this name is of the run

    def placed(self, manifest: Manifest, paths: Sequence[str]) -> Manifest:
        """Return a copy of an object whose pods only run on these nodes.

        `paths` say where the object has pod templates, besides what fleet knows of its kind. Raises
        UsageError for an object of which fleet cannot say where its pods would run.
        """
        made = copy.deepcopy(manifest)
        name = metadata_of(manifest)["name"]
        about = f"{manifest['kind']} ({manifest['apiVersion']}) {name}"
        kind = (group_of(manifest), str(manifest["kind"]))
        if kind == ("", "Binding"):
            raise UsageError(f"{about}: a Binding sends a pod to a node past the scheduler; {OUT}")
        if kind in CONTAINING:
            raise UsageError(
                f"{about}: what others put in it would be deleted with it when the run ends; "
                f"create it yourself before the run, or {OUT}"
            )
        found = pod_specs(made, paths)
        for spec in found:
            self._place(spec, about)
        group = group_of(manifest)
        is_custom = group not in BUILT_IN and not group.endswith(".k8s.io")
        stray = _stray(made, found, hints=is_custom and not found)
        if stray is not None:
            raise UsageError(
                f"{about} has a pod template at {stray}: fleet does not know where its pods would "
                f"run. Name each template with podTemplates: [PATH], or {OUT}"
            )
        return made

    def _place(self, spec: Json, about: str) -> None:
        node = spec.get("nodeName")
        if node and not self.owns(str(node)):
            raise UsageError(f"{about}: nodeName {node} is not a node of this run; {OUT}")
        selector, tolerations = spec.get("nodeSelector") or {}, spec.get("tolerations") or []
        if not isinstance(selector, dict) or not isinstance(tolerations, list):
            raise UsageError(f"{about}: nodeSelector is a mapping, tolerations are a list")
        spec["nodeSelector"] = {**selector, **self.node_selector}
        named = [each for each in tolerations if isinstance(each, dict) and each.get("key")]
        if not any(tolerates(each, FAKE_TAINT) for each in named):
            tolerations = [*tolerations, dict(TOLERATION)]
        spec["tolerations"] = tolerations


def pod_specs(manifest: Manifest, paths: Sequence[str] = ()) -> list[Json]:
    """Return the pod specs of an object itself, to be read or changed.

    A change of an object may come without its template. Raises UsageError if a path leads to
    something else.
    """
    known = TEMPLATES.get((group_of(manifest), str(manifest["kind"])))
    found: list[Json] = []
    for path in ([known] if known is not None else []) + list(paths):
        for template in at_path(manifest, [part for part in path.split(".") if part]):
            is_spec = path in paths and CONTAINERS[0] in template
            spec = template if is_spec else template.get("spec")
            if isinstance(spec, dict):
                found.append(spec)
            elif path in paths:
                raise UsageError(f"podTemplates: {path} of {manifest['kind']} is no pod template")
    return found


def has_path(manifest: Manifest, path: str) -> bool:
    return any(True for _ in at_path(manifest, path.split(".")))


def at_path(value: object, parts: Sequence[str]) -> Iterator[Json]:
    """Yield the mappings at a path; `*` is each entry of a mapping or a list."""
    if not parts:
        if isinstance(value, dict):
            yield value
        return
    entries: list[object] = []
    if isinstance(value, dict):
        entries = list(value.values()) if parts[0] == ANY else [value.get(parts[0])]
    elif isinstance(value, list):
        if parts[0] == ANY:
            entries = value
        elif parts[0].isdecimal() and int(parts[0]) < len(value):
            entries = [value[int(parts[0])]]
    for entry in entries:
        yield from at_path(entry, parts[1:])


def _stray(manifest: Manifest, placed: Sequence[Json], *, hints: bool) -> str | None:
    """Return where an object has a pod template that is not among those placed, None if nowhere."""
    known = {id(spec) for spec in placed}
    seen: set[int] = set()
    left: list[tuple[str, object]] = [
        (key, value) for key, value in manifest.items() if key != "metadata"
    ]
    while left:
        path, value = left.pop()
        if not isinstance(value, dict | list) or id(value) in known | seen:
            continue
        seen.add(id(value))
        if isinstance(value, list):
            left += [(f"{path}[{at}]", each) for at, each in enumerate(value)]
            continue
        if any(isinstance(value.get(key), list) for key in CONTAINERS):
            return path
        for key, each in value.items():
            is_template = key == "template" and isinstance(each, dict) and "spec" in each
            if hints and (key in HINTS or is_template):
                return f"{path}.{key}"
            left.append((f"{path}.{key}", each))
    return None


def group_of(manifest: Manifest) -> str:
    """Return the API group of an object, "" for the core."""
    group, slash, _version = str(manifest.get("apiVersion", "")).rpartition("/")
    return group if slash else ""
