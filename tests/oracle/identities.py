"""Words for what identifies one object: IP-1, UID-3, ID-2, one to one within a trace.

Two nodes give their pods other addresses, UIDs and container IDs, but each uses them in the same
places: a restarted container has a new ID, the address of a pod is not the node's. So an identity
becomes the word of the object in whose requests it first occurs, numbered there; in the requests of
another object the word names its owner: `IP-1 of NODE` is the podIP of a pod in the host's network.

An ID is numbered for each container by itself. So the words do not depend on which of two pods, or
which of two containers, came first: that is chance. A status that one node reports together with
the next one does not shift them either.

An address goes back to its range when its pod is over, and another pod may then have it.
"""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oracle.exchange import Exchange
    from oracle.normalisation import Leaf

IP, UID, ID = "IP", "UID", "ID"
_MARK = re.compile(r"\x1f(IP|UID|ID) (\d+)\x1f")
_CONTAINER = re.compile(r"ontainerStatuses\[name=([^\]]+)\]")
_OF_THE_NODE = ("nodes", "leases", "csinodes")
NODE = "NODE"
_ENDED = ("Succeeded", "Failed")


class Marks:
    """Gives each identity of a trace a mark that no other text has, until it gets its word."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}

    def mark(self, kind: str, raw: str) -> str:
        number = self._numbers.setdefault((kind, raw), len(self._numbers))
        return f"\x1f{kind} {number}\x1f"


@dataclass(frozen=True, slots=True)
class _Owner:
    scene: str
    name: str
    container: str = ""

    def __str__(self) -> str:
        return f"{self.name}/{self.container}" if self.container else self.name


@dataclass(frozen=True, slots=True)
class _Held:
    """Who has an identity, and from when to when."""

    owner: _Owner
    word: str
    since_s: float
    until_s: float


def owner_of_request(each: "Exchange") -> _Owner:
    """Return the object that a request is about: the pod for its Events and tokens, too."""
    kind = each.resource.partition("/")[0]
    name = each.name
    if kind == "events":
        kind, name = (str(each.body.get(f"involvedObject.{key}", "")) for key in ("kind", "name"))
        kind = f"{kind.lower()}s"
    elif kind == "serviceaccounts" and (pod := each.body.get("spec.boundObjectRef.name")):
        kind, name = "pods", str(pod)
    if kind in _OF_THE_NODE:
        return _Owner("", NODE)
    return _Owner(each.scene, name if kind == "pods" else f"{kind} {name}")


def with_words(exchanges: Sequence["Exchange"]) -> list["Exchange"]:
    """Return requests, in the order of time, with words in place of the marks of identities."""
    return _Naming(exchanges).named()


class _Naming:
    def __init__(self, exchanges: Sequence["Exchange"]) -> None:
        self._exchanges = exchanges
        self._held: dict[tuple[str, str], list[_Held]] = defaultdict(list)
        self._counts: dict[tuple[_Owner, str], int] = defaultdict(int)
        self._over_s: dict[_Owner, float] = {}

    def named(self) -> list["Exchange"]:
        groups: dict[_Owner, list[int]] = defaultdict(list)
        for place, each in enumerate(self._exchanges):
            groups[owner_of_request(each)].append(place)
        found: dict[int, Exchange] = {}
        # The node's own address and UID are known by its own requests. A status has everything,
        # an Event only what its message is about.
        for owner in sorted(groups, key=lambda each: each.name != NODE):
            places = groups[owner]
            self._since_s = self._exchanges[places[0]].at_s
            self._over_s[owner] = min(
                (self._exchanges[at].at_s for at in places if _is_over(self._exchanges[at])),
                default=math.inf,
            )
            for place in sorted(places, key=lambda at: (not self._exchanges[at].state, at)):
                found[place] = self._exchange(self._exchanges[place], owner)
        return [found[place] for place in range(len(self._exchanges))]

    def _exchange(self, each: "Exchange", owner: _Owner) -> "Exchange":
        def text(value: str) -> str:
            return self._text(value, owner, each.at_s)

        state = self._values(each.state, owner, each.at_s)
        body = self._values(each.body, owner, each.at_s)
        return dataclasses.replace(
            each,
            state=state,
            body=body,
            name=text(each.name),
            path=text(each.path),
            query=tuple((key, text(value)) for key, value in each.query),
            headers={key: text(value) for key, value in each.headers.items()},
        )

    def _values(
        self, values: Mapping[str, "Leaf"], owner: _Owner, at_s: float
    ) -> dict[str, "Leaf"]:
        """Name what values have, by the order of their paths, and keep their own order."""
        named: dict[str, tuple[str, Leaf]] = {}
        for path in sorted(values):
            found = _CONTAINER.search(path)
            value = values[path]
            holder = dataclasses.replace(owner, container=found[1]) if found else owner
            if isinstance(value, str):
                value = self._text(value, owner, at_s, holder)
            named[path] = self._text(path, owner, at_s), value
        return dict(named[path] for path in values)

    def _text(self, text: str, owner: _Owner, at_s: float, container: _Owner | None = None) -> str:
        if "\x1f" not in text:
            return text

        def word(match: re.Match[str]) -> str:
            kind, number = match.groups()
            mine = container if kind == ID and container is not None else owner
            return self._word(kind, number, mine, at_s)

        return _MARK.sub(word, text)

    def _word(self, kind: str, number: str, mine: _Owner, at_s: float) -> str:
        held = self._held[kind, number]
        for each in held:
            if each.owner == mine:
                return each.word
        for each in held:
            if each.since_s <= at_s < each.until_s:
                return f"{each.word} of {each.owner}"
        self._counts[mine, kind] += 1
        since_s, until_s = -math.inf, math.inf
        if kind == IP and mine.name != NODE:
            since_s, until_s = self._since_s, self._over_s[mine]
        held.append(_Held(mine, f"{kind}-{self._counts[mine, kind]}", since_s, until_s))
        return held[-1].word


def _is_over(each: "Exchange") -> bool:
    """Return whether a pod has no sandbox any more that could have an address."""
    if not each.resource.startswith("pods"):
        return False
    return each.verb == "delete" or each.state.get("status.phase") in _ENDED
