"""What differs between two runs of one thing, and is therefore not compared: one table.

A rule names where it holds (a regular expression for the path of a value, or "" for all texts),
what it replaces and the word that stands for it. Nothing else is changed. Times keep their value:
they are compared with a tolerance, which is a row of differences.md. What is left out has rows
there, too: left_out.py.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from oracle.identities import ID, IP, UID, Marks

Json = dict[str, Any]
Leaf = str | int | float | bool | None
UID_PATTERN = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
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
    is_identity: bool = False
    """The word is a kind of identity: which one it is, is compared. See identities.py."""


TABLE = (
    Rule(
        "machine",
        r"nodeInfo\.(machineID|systemUUID|bootID)$",
        r"^[0-9a-fA-F-]+$",
        "ID",
        "each machine has its own",
    ),
    Rule(
        "run of fleet",
        r"fleet\.emulator/(owner|run)$",
        r"^\S+$",
        "RUN",
        "each run of fleet has an ID of its own, and its owner a UID",
    ),
    Rule(
        "uid",
        "",
        UID_PATTERN,
        UID,
        "made at random by the API server for each object",
        is_identity=True,
    ),
    Rule(
        "hash of a static pod",
        "",
        r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])",
        UID,
        "of the manifest, its path and the name of the node: it is the uid of the pod",
        is_identity=True,
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
    Rule(
        "container",
        "",
        r"(?<=containerd://)[0-9a-f]{64}",
        ID,
        "made by the runtime",
        is_identity=True,
    ),
    Rule(
        "sandbox", "", r"(?<!sha256:)\b[0-9a-f]{64}\b", ID, "made by the runtime", is_identity=True
    ),
    Rule(
        "address", "", r"\b\d{1,3}(?:\.\d{1,3}){3}\b", IP, "each pod has its own", is_identity=True
    ),
    Rule(
        "token of a client",
        r"^spec\.token$",
        r"^\S+$",
        ID,
        "each client has its own",
        is_identity=True,
    ),
    Rule("port of a connection", "", r"(?<=\x1f:)\d{5}(?=->)", "PORT", "the kernel picks it"),
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
_COMPILED = [(re.compile(rule.where), re.compile(rule.pattern), rule) for rule in TABLE]


class Normaliser:
    """Applies the table to what one node sends; `used` has the rules that changed something.

    An identity gets a mark, which `identities.with_words` replaces by its word once all requests
    of a trace are known.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = sorted(names.items(), key=lambda each: -len(each[0]))
        self._marks = Marks()
        self.used: set[str] = set()

    def text(self, value: str, path: str = "") -> str:
        """Return a text as it is compared; `path` says where it was found."""
        for name, word in self._names:
            value = value.replace(name, word)
        for where, pattern, rule in _COMPILED:
            if where.search(path):
                value, count = pattern.subn(self._replacement(rule), value)
                if count:
                    self.used.add(rule.what)
        return value

    def _replacement(self, rule: Rule) -> str | Callable[[re.Match[str]], str]:
        if not rule.is_identity:
            return rule.word
        return lambda match: self._marks.mark(rule.word, match[0])

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
            found[plain] = self.leaf(leaf, plain)
        return found


SETS = ("status.declaredFeatures",)
"""Lists of words, of which each goes by itself: one more does not move those behind it."""

UNORDERED = ("status.volumesAttached",)
"""Lists in no order: the attach-detach controller writes them from a map."""


def leaves(value: object, at: str) -> list[tuple[str, Leaf]]:
    """Return each leaf with its path; an item of a list goes by its merge key, else by its place.

    Where it goes by a key, the order of the keys is one leaf more.
    """
    found: list[tuple[str, Leaf]] = []
    if isinstance(value, dict) and value:
        for key, each in value.items():
            found += leaves(each, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list) and value:
        is_set = at in SETS
        keys = [str(each) if is_set else _item(each, place) for place, each in enumerate(value)]
        for key, each in zip(keys, value, strict=True):
            found += leaves(each, f"{at}[{key}]")
        if len(keys) > 1 and not keys[0].isdigit() and not is_set and at not in UNORDERED:
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
