"""What differs between two runs of one thing, and is therefore not compared: one table.

A rule names where it holds (a regular expression for the path of a value, or "" for all texts),
what it replaces and the word that stands for it. Nothing else is left out or changed. Times keep
their value: they are compared with a tolerance, which is a row of differences.md.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Json = dict[str, Any]
Leaf = str | int | float | bool | None
UID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
MERGE_KEYS = ("type", "name", "key", "containerPort", "ip", "names")
"""By which the items of a list are told apart, as a strategic merge patch does; images by names."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table."""

    what: str
    where: str
    """A regular expression that is searched in the path of a value; "" is everywhere."""
    pattern: str
    word: str
    why: str


NO_LIMIT_OF_V1 = "9007199254740988Ki"
TABLE = (
    Rule(
        "limit of cgroup v1",
        r"^status\.resources(\.limits(\.memory)?)?$",
        rf"^({NO_LIMIT_OF_V1}|\{{\}}|None)$",
        "",
        "a running pod without a memory limit has the largest number that v1 knows as one; with v2 "
        "it has none (pkg/kubelet/cm/helpers_linux.go, MemoryLimitsFromConfig)",
    ),
    Rule(
        "machine",
        r"nodeInfo\.(machineID|systemUUID|bootID)$",
        r"^[0-9a-fA-F-]+$",
        "ID",
        "each machine has its own",
    ),
    Rule("uid", "", UID, "UID", "made at random by the API server for each object"),
    Rule(
        "hash of a static pod",
        "",
        r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])",
        "UID",
        "of the manifest, its path and the name of the node: it is the uid of the pod",
    ),
    Rule(
        "resource version",
        r"resourceVersion$",
        r"^[1-9]\d*$",
        "N",
        "counts the writes of all objects; 0 and none stay",
    ),
    Rule(
        "token volume", "", r"(?<=kube-api-access-)[a-z0-9]{5}", "X", "made by an admission plug-in"
    ),
    Rule(
        "event name", r"^(metadata\.name|uri)$", r"(?<=\.)[0-9a-f]{12,16}$", "HEX", "the time in ns"
    ),
    Rule("container", "", r"(?<=containerd://)[0-9a-f]{64}", "ID", "made by the runtime"),
    Rule("sandbox", "", r"(?<!sha256:)\b[0-9a-f]{64}\b", "ID", "made by the runtime"),
    Rule("address", "", r"\b\d{1,3}(?:\.\d{1,3}){3}\b", "IP", "each pod has its own"),
    Rule("port of a connection", "", r"(?<=IP:)\d{5}(?=->)", "PORT", "the kernel picks it"),
    Rule(
        "port of a kubelet", r"kubeletEndpoint\.Port$", r"^\d+$", "PORT", "each kubelet has its own"
    ),
    Rule(
        "time of a pull",
        r"^message$",
        r"(?<= in )[\d.ms\u00b5]+ \([\d.ms\u00b5]+ including waiting\)",
        "T",
        "measured by the kubelet in ms; when the event came is compared",
    ),
    Rule("build", r"^user-agent$", r"(?<=kubernetes/)\S+$", "HASH", "the commit of the build"),
    Rule("length", r"^content-length$", r"^\d+$", "N", "follows from names and times in the body"),
)
"""Beside it only names are replaced: of the node, of a scene's namespace, of controllers' pods."""
_COMPILED = [(re.compile(rule.where), re.compile(rule.pattern), rule.word) for rule in TABLE]


class Normaliser:
    """Applies the table to what one node sends."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = sorted(names.items(), key=lambda each: -len(each[0]))

    def text(self, value: str, path: str = "") -> str:
        """Return a text as it is compared; `path` says where it was found."""
        for name, word in self._names:
            value = value.replace(name, word)
        for where, pattern, word in _COMPILED:
            if where.search(path):
                value = pattern.sub(word, value)
        return value

    def leaf(self, value: Leaf, path: str) -> Leaf:
        if isinstance(value, str):
            return self.text(value, path)
        if isinstance(value, int) and not isinstance(value, bool):
            plain = self.text(str(value), path)
            return value if plain == str(value) else plain
        return value

    def flat(self, value: object) -> dict[str, Leaf]:
        """Return the leaves of an object by their paths, normalised."""
        found: dict[str, Leaf] = {}
        for path, leaf in leaves(value, ""):
            plain = self.text(path)
            value = self.leaf(leaf, plain)
            if self.text(str(value), plain) or leaf == "":  # a rule without a word leaves it out
                found[plain] = value
        return found


def leaves(value: object, at: str) -> list[tuple[str, Leaf]]:
    """Return each leaf with its path; an item of a list goes by its merge key, else by its place.

    Where it goes by a key, the order of the keys is one leaf more.
    """
    found: list[tuple[str, Leaf]] = []
    if isinstance(value, dict) and value:
        for key, each in value.items():
            found += leaves(each, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list) and value:
        keys = [_item(each, place) for place, each in enumerate(value)]
        for key, each in zip(keys, value, strict=True):
            found += leaves(each, f"{at}[{key}]")
        if len(keys) > 1 and not keys[0].isdigit():
            found.append((f"{at}.order", ", ".join(keys)))
    else:
        leaf = value if isinstance(value, str | int | float | bool | None) else str(value)
        found.append((at, leaf))
    return found


def _item(value: object, place: int) -> str:
    if isinstance(value, dict):
        key = next((key for key in MERGE_KEYS if value.get(key)), "")
        if key == "names":
            return f"image={value[key][-1]}"
        return f"{key}={value[key]}" if key else str(place)
    return str(place)


def is_time(value: Leaf) -> bool:
    return isinstance(value, str) and TIME.fullmatch(value) is not None


def seconds(value: str) -> float:
    """Return a time since the epoch."""
    return datetime.fromisoformat(value).timestamp()
