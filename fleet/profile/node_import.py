"""Make NodeProfiles of Nodes that exist: what makes the kind of machine, not the one machine.

Nodes that differ in nothing that a scheduler or a workload asks for become one profile, whose
weight is their number. It has the labels that all of them have, and their zones in turn.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import orjson
import yaml

from fleet.errors import UsageError
from fleet.k8s.schema import part_of
from fleet.k8s.well_known import REGION_LABEL, ZONE_LABEL
from fleet.profile.loader import parse_documents, yaml_mappings
from fleet.profile.node_profile import PASTED_ANNOTATIONS, SERVER_TAINT_PREFIXES, WEIGHT_MAX
from fleet.profile.release import is_version
from fleet.profile.schema import API_VERSION

Mapped = Mapping[str, object]

STATUS = ("capacity", "allocatable", "nodeInfo", "images", "runtimeHandlers", "features")
INFO = ("kernelVersion", "osImage", "containerRuntimeVersion", "operatingSystem", "architecture")
ONE_NODES_LABELS = ("kubernetes.io/hostname", "fleet.emulator/")
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
SPREAD = (ZONE_LABEL, REGION_LABEL)
FLUID = frozenset({"memory", "ephemeral-storage"})
"""Resources of which machines of one type have a few KiB more or less."""
EXPECTED = "expected Nodes as `kubectl get nodes -o yaml` (or -o json) prints them"


class Imported(NamedTuple):
    """The profiles, as the text of one file, and what a user must know of them."""

    text: str
    notices: tuple[str, ...]


def import_nodes(text: str, name: str = "") -> Imported:
    """Return the profiles of all Nodes in a text: one or several documents, lists too.

    Raises UsageError for a text that holds anything else, or no Node.
    """
    groups: dict[str, list[Mapped]] = {}
    for node in _nodes(text):
        groups.setdefault(_kind_of(node), []).append(node)
    if not groups:
        raise UsageError(f"node: holds no Node; {EXPECTED}")
    names: dict[str, int] = {}
    documents = []
    for nodes in groups.values():
        document = _profile_of(nodes, name)
        if len(groups) > 1:
            document["spec"] |= {"weight": min(len(nodes), WEIGHT_MAX)}
        own = str(document["metadata"]["name"])
        names[own] = names.get(own, 0) + 1
        if names[own] > 1:
            document["metadata"]["name"] = f"{own[:58].rstrip('-')}-{names[own]}"
        documents.append(document)
    made: str = yaml.safe_dump_all(documents, sort_keys=False, width=1000)
    parse_documents(made, "node")
    return Imported(made, tuple(_notices(groups)))


def _notices(groups: Mapping[str, list[Mapped]]) -> Iterator[str]:
    versions = [
        str(version)
        for nodes in groups.values()
        for node in nodes
        if (version := part_of(part_of(node, "status"), "nodeInfo").get("kubeletVersion"))
        and not is_version(version)
    ]
    if versions:
        count = "1 Node" if len(versions) == 1 else f"{len(versions):,} Nodes"
        shown = ", ".join(dict.fromkeys(map(repr, versions)))
        yield (
            f"kubeletVersion {shown} of {count} is no version: the profile names none, so its "
            "nodes emulate a kubelet of the API server's version"
        )


def _nodes(text: str) -> Iterator[Mapped]:
    for value in _documents(text):
        kind = value.get("kind")
        if kind == "Node":
            yield value
            continue
        items = value.get("items")
        if kind not in ("List", "NodeList") or not isinstance(items, list):
            raise UsageError(
                f"node: a document is of {f'kind {kind}' if kind else 'no kind'}; {EXPECTED}"
            )
        for item in items:
            if not isinstance(item, dict) or item.get("kind", "Node") != "Node":
                raise UsageError(f"node: the list holds what is no Node; {EXPECTED}")
            yield item


def _documents(text: str) -> list[Mapped]:
    """Read JSON at its own pace: of a large cluster YAML takes minutes."""
    if text.lstrip().startswith("{"):
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            pass  # a mapping in braces is YAML too
        else:
            return [value]
    return list(yaml_mappings(text, "node"))


def _kind_of(node: Mapped) -> str:
    """Return equal texts for Nodes that one profile stands for."""
    labels = part_of(part_of(node, "metadata"), "labels")
    status = part_of(node, "status")
    info = part_of(status, "nodeInfo")
    capacity = {
        key: str(value) for key, value in part_of(status, "capacity").items() if key not in FLUID
    }
    taints = _own_taints(part_of(node, "spec").get("taints"))
    what = (labels.get(INSTANCE_TYPE), [info.get(key) for key in INFO[3:]], capacity, taints)
    return orjson.dumps(what, option=orjson.OPT_SORT_KEYS, default=str).decode()


def _profile_of(nodes: list[Mapped], name: str) -> dict[str, dict[str, object]]:
    node = nodes[0]
    metadata, spec, status = (part_of(node, key) for key in ("metadata", "spec", "status"))
    labels = _common(nodes, "labels", ONE_NODES_LABELS)
    template: dict[str, object] = {
        "metadata": {
            "labels": labels,
            "annotations": _common(nodes, "annotations", tuple(PASTED_ANNOTATIONS)),
        },
        "spec": {"providerID": "fleet://{{name}}", "taints": _own_taints(spec.get("taints"))},
    }
    imported = {key: status[key] for key in STATUS if status.get(key)}
    info = part_of(status, "nodeInfo")
    if info:
        imported["nodeInfo"] = {key: info[key] for key in INFO if key in info}
    template["status"] = imported
    profile: dict[str, object] = {"template": template}
    if spread := _spread(nodes, labels):
        profile["topologySpread"] = spread
    version = info.get("kubeletVersion")
    if version and is_version(version):
        profile["kubeletVersion"] = version
    own = name or _profile_name(part_of(metadata, "labels"), str(metadata.get("name", "")))
    head: dict[str, object] = {"apiVersion": API_VERSION, "kind": "NodeProfile"}
    return {**head, "metadata": {"name": own}, "spec": profile}  # type: ignore[dict-item]


def _common(nodes: list[Mapped], member: str, dropped: tuple[str, ...]) -> dict[str, object]:
    """Return the labels or annotations that all of some Nodes have."""
    first, *others = (part_of(part_of(node, "metadata"), member) for node in nodes)
    return {
        key: value
        for key, value in first.items()
        if not str(key).startswith(dropped) and all(each.get(key) == value for each in others)
    }


def _spread(nodes: list[Mapped], labels: Mapped) -> list[dict[str, object]]:
    """Return the zones, or the regions, that the Nodes are in if they are several."""
    for key in SPREAD:
        found = (part_of(part_of(node, "metadata"), "labels").get(key) for node in nodes)
        values = sorted({str(value) for value in found if value})
        if key not in labels and len(values) > 1:
            return [{"topologyKey": key, "values": values}]
    return []


def _own_taints(taints: object) -> list[object]:
    """Keep the taints that someone chose, not those that a controller set."""
    return [
        taint
        for taint in (taints if isinstance(taints, list) else [])
        if not (
            isinstance(taint, dict) and str(taint.get("key", "")).startswith(SERVER_TAINT_PREFIXES)
        )
    ]


def _profile_name(labels: Mapped, node: str) -> str:
    """Name a profile after its instance type, else after the node."""
    kind = str(labels.get(INSTANCE_TYPE, "")) or node or "imported"
    name = "".join(char if char.isascii() and char.isalnum() else "-" for char in kind.lower())
    return name.strip("-")[:63].strip("-") or "imported"
