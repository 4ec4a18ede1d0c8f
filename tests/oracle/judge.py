"""Plays scenes on both nodes, many at once, and says in what the nodes differ."""

import dataclasses
import gzip
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import orjson
from support.header_tap import Noted
from support.listed_differences import Listed, unlisted

from oracle.admin import Admin
from oracle.exchange import FORBIDDEN, NODE_SCOPE, Side, Trace, exchanges
from oracle.left_out import Ledger
from oracle.normalisation import Json
from oracle.oracle_limits import LIMITS
from oracle.orders import late
from oracle.request_streams import without_refusals
from oracle.scene import SIDES, Play, Scene, Stage, play
from oracle.totals import biases, totals
from oracle.value_comparison import Comparison

[REPLAYS_OF_SCENE_MAX] = LIMITS["replays_of_a_scene"]
AT_ONCE = 6
"""Scenes wait most of the time; more at once would make a node late on two cores."""
STAGGER_S = 1.0
"""Pods that all start at once make an API server slow, and two changes one."""
NOTED_S = 0.2
"""How long after its line in the audit log the headers of a request may be noted."""
READ = (
    "auditID",
    "impersonatedUser",
    "objectRef",
    "requestObject",
    "requestReceivedTimestamp",
    "requestURI",
    "responseStatus",
    "user",
    "userAgent",
    "verb",
)
Body = Callable[[Scene], None]


class RecordedStage(Stage, Protocol):
    """A stage of which all is written down."""

    @property
    def started_s(self) -> Mapping[str, Sequence[float]]: ...

    @property
    def noted(self) -> Mapping[str, Noted]: ...

    @property
    def outages_s(self) -> Sequence[tuple[float, float]]: ...

    def audit(self) -> list[Json]: ...


@dataclass(slots=True)
class Recording:
    """What was asked while the scenes were played, and how often each was."""

    events: list[Json]
    noted: dict[str, tuple[Json, Json, int]]
    nodes: dict[str, str]
    started_s: dict[str, list[float]]
    plays: dict[str, Play] = field(default_factory=dict)
    replays: dict[str, int] = field(default_factory=dict)
    outages_s: list[tuple[float, float]] = field(default_factory=list)
    earlier: dict[str, list[Play]] = field(default_factory=dict)
    """The plays of a scene before the one that counts."""
    is_part: bool = False
    """Others were played meanwhile, of which it does not know the namespaces."""

    def traces(self, scenes: Iterable[str] | None = None) -> tuple[Trace, Trace]:
        """Return what both nodes asked, in some scenes or in all."""
        names = [*self.plays] if scenes is None else [*scenes]
        real, fleet = (self._trace(side, names) for side in SIDES)
        return real, fleet

    def _trace(self, side: str, names: Sequence[str]) -> Trace:
        namespaces = {self.plays[name].namespaces[side]: name for name in names}
        named = {self.plays[name].namespaces[side]: self.plays[name].named for name in names}
        generated = made_up(self.events, self.nodes[side], named)
        ledger = Ledger(side)
        plays = (*self.plays.values(), *(each for some in self.earlier.values() for each in some))
        others = None if self.is_part else {each.namespaces[side] for each in plays}
        who = Side(self.nodes[side], namespaces, generated, side, others)
        found = exchanges(self.events, who, self.noted, ledger)
        outages_s = [(since_s, until_s) for since_s, until_s in self.outages_s]
        kept = without_refusals(found, outages_s, ledger)
        return Trace(kept, tuple(self.started_s[side]), outages_s, ledger.totals)

    def compare(self) -> Comparison:
        """Compare all scenes that were played, and what belongs to none."""
        return self.compare_traces(*self.traces())

    def compare_traces(self, real: Trace, fleet: Trace) -> Comparison:
        played = {each.scene for each in (*real.exchanges, *fleet.exchanges)}
        comparison = Comparison(real, fleet).run(
            (NODE_SCOPE, *(name for name in self.plays if name in played))
        )
        for name, each in self.plays.items():
            comparison.add(name, each.failures)
        comparison.add("all", biases(real, fleet))
        return comparison

    def of_play(self, name: str, play: Play) -> tuple[list[str], list[str]]:
        """Return in what the nodes differ in one play of a scene, and what was refused in it.

        The node authorizer learns of a pod by a watch, and a kubelet that is faster gets a 403:
        of reads that is compared, all else makes the play one that does not count.
        """
        alone = dataclasses.replace(self, plays={name: play}, earlier={}, is_part=True)
        real, fleet = alone.traces()
        comparison = Comparison(real, fleet).run([name])
        comparison.add(name, play.failures)
        refusals = [
            f"{name}: refused: {each.token}"
            for trace in (real, fleet)
            for each in trace.exchanges
            if each.code == FORBIDDEN and each.scene == name and each.verb != "get"
        ]
        return comparison.lines, refusals

    def repeated(self, listed: Sequence[Listed]) -> list[str]:
        """Return the differences that are not listed and occurred in two plays of a scene.

        What happens twice is no chance, even if it did not happen in the play that counts. A play
        in which the API server refused something is none.
        """
        found = []
        for name, plays in self.earlier.items():
            counts: dict[str, list[int]] = {}
            for at, each in enumerate((*plays, self.plays[name]), 1):
                lines, refusals = self.of_play(name, each)
                if not refusals:
                    for line in dict.fromkeys(map(without_measure, unlisted(lines, listed))):
                        counts.setdefault(line, []).append(at)
            found += [
                f"in plays {', '.join(map(str, at))}: {line}"
                for line, at in counts.items()
                if len(at) > 1
            ]
        return found


class Judge:
    """Plays scenes on a stage."""

    def __init__(self, stage: RecordedStage, listed: Sequence[Listed]) -> None:
        self._stage = stage
        self._listed = listed
        self._admin = Admin(stage.info)
        self._plays: dict[str, Play] = {}
        self._earlier: dict[str, list[Play]] = {}
        self._replays: dict[str, int] = {}

    def close(self) -> None:
        """Play no more."""
        self._admin.close()

    def play_at_once(self, bodies: Mapping[str, Body], at_once: int = AT_ONCE) -> None:
        """Play scenes that do not heed each other, in their order, some at a time.

        Then those in which the nodes differ are played again, and so on. Nothing is compared while
        scenes are played: what both nodes ask passes through this process.
        """
        left = dict(bodies)
        for again in range(int(REPLAYS_OF_SCENE_MAX) + 1):
            with ThreadPoolExecutor(at_once) as pool:
                played = []
                for name, body in left.items():
                    played.append(pool.submit(self._play, name, body, again))
                    time.sleep(STAGGER_S)
                for each in played:
                    each.result()
            left = {name: body for name, body in left.items() if self._is_to_be_repeated(name)}

    def play(self, name: str, body: Body) -> None:
        """Play a scene, and again if the nodes differ in it.

        The node authorizer learns of a pod by a watch, and a kubelet that is faster gets a 403; on
        a busy machine a request may be late. What is no chance happens each time: the last time
        counts whatever happens. How often chance may be asked is a row of differences.md.

        It is played in this thread: with the thread that starts an API server anew it would end.
        """
        for again in range(int(REPLAYS_OF_SCENE_MAX) + 1):
            self._play(name, body, again)
            if not self._is_to_be_repeated(name):
                return

    def _play(self, name: str, body: Body, again: int) -> None:
        suffix = f"-{again}" if again else ""
        self._replays[name] = again
        if again:
            self._earlier.setdefault(name, []).append(self._plays[name])
        self._plays[name] = play(name, body, self._stage, self._admin, suffix)

    def _is_to_be_repeated(self, name: str) -> bool:
        """Tell whether the nodes differ in a scene, and not yet as in an earlier play of it."""
        recording = self.recording([name])
        lines, refusals = recording.of_play(name, recording.plays[name])
        found = [*refusals, *unlisted(lines, self._listed)]
        if found:
            print(f"{name}: the nodes differ:", *found, sep="\n  ", flush=True)
        return bool(found) and not recording.repeated(self._listed)

    def recording(self, scenes: Iterable[str] | None = None) -> Recording:
        """Return what was written down so far, of some scenes or of all, with all their plays.

        Of the nodes themselves it has everything: their addresses and UIDs are known by that.
        """
        stage = self._stage
        names = [*self._plays] if scenes is None else [*scenes]
        earlier = {name: [*self._earlier[name]] for name in names if name in self._earlier}
        plays = [self._plays[name] for name in names]
        plays += [each for some in earlier.values() for each in some]
        begun_s = min((each.begun_s for each in plays), default=0) if scenes else 0
        events = [each for each in [*stage.audit()] if is_since(each, begun_s) or is_of_node(each)]
        time.sleep(NOTED_S)
        noted = {
            key: (each.request, each.response, each.connection)
            for key, each in [*stage.noted.items()]
        }
        return Recording(
            events,
            noted,
            dict(stage.nodes),
            {side: [*stage.started_s[side]] for side in SIDES},
            {name: self._plays[name] for name in names},
            dict(self._replays),
            [*stage.outages_s],
            earlier,
        )


def is_of_node(event: Json) -> bool:
    """Whether a request is about its node, or the Lease of it."""
    about = event.get("objectRef") or {}
    return about.get("resource") in ("nodes", "leases", "csinodes")


MEASURE = re.compile(r"\d+(\.\d+)?")
OF_REPLICA_SET = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{8,10}$")
"""What ends in the hash of a pod template. Source: apimachinery, rand.SafeEncodeString."""


def without_measure(line: str) -> str:
    """Return a line without how much it says: the same difference is another time as large.

    That is what stands behind its last colon.
    """
    head, colon, tail = line.rpartition(": ")
    return head + colon + MEASURE.sub("N", tail)


def made_up(
    events: Iterable[Json], node: str, named: Mapping[str, Collection[str]]
) -> dict[str, str]:
    """Return a word for each name of a pod that no scene gave, by the order of their coming.

    Those of a ReplicaSet have the hash of their template, and templates name the node.
    """
    found: dict[str, str] = {}
    counts: dict[tuple[str, str], int] = {}
    sets: dict[tuple[str, str], list[str]] = {}
    for event in sorted(events, key=lambda each: str(each["requestReceivedTimestamp"])):
        about = event.get("objectRef") or {}
        namespace, name = about.get("namespace", ""), about.get("name", "")
        user = (event.get("impersonatedUser") or event["user"])["username"]
        is_pod = about.get("resource") == "pods" and user == f"system:node:{node}"
        if is_pod and namespace in named and name not in {"", *named[namespace], *found}:
            owner = name.rpartition("-")[0]
            if OF_REPLICA_SET.search(owner):
                deployment = owner.rpartition("-")[0]
                those = sets.setdefault((namespace, deployment), [])
                if owner not in those:
                    those.append(owner)
                owner = f"{deployment}-HASH-{those.index(owner)}"
            at = counts[namespace, owner] = counts.get((namespace, owner), -1) + 1
            found[name] = f"{owner}-GENERATED-{at}"
    return found


def is_since(event: Json, begun_s: float) -> bool:
    """Whether a request came after a time; its text is compared, which is in UTC."""
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(begun_s))
    return str(event["requestReceivedTimestamp"]) >= text


def summary(recording: Recording, compared: Comparison, listed: Sequence[Listed]) -> str:
    """Tell how much was compared, how much each node sent, and what was left out."""
    counts = compared.counts
    plays = len(recording.plays) + sum(map(len, recording.earlier.values()))
    used = sum(any(re.fullmatch(each.match, line) for line in compared.lines) for each in listed)
    said = (
        f"{len(recording.plays)} scenes in {plays} plays, {counts.requests} requests, "
        f"{counts.events} events, {counts.values} values compared; "
        f"{used} of {len(listed)} rows used; "
        f"statuses told with the next: real {counts.merged_real}, fleet {counts.merged_fleet}; "
        f"replays: {sum(recording.replays.values())}"
    )
    real, fleet = recording.traces()
    sent = totals(real, fleet, [*recording.plays])
    lags = late(real.exchanges, fleet.exchanges, recording.plays)
    return "\n  ".join((said, *sent, *lags, *compared.left_out))


def save(recording: Recording, path: Path) -> None:
    """Write a recording, so that its comparison can be repeated."""
    content = {
        "events": [pruned(each) for each in recording.events],
        "noted": recording.noted,
        "nodes": recording.nodes,
        "started_s": recording.started_s,
        "plays": {name: written(each) for name, each in recording.plays.items()},
        "replays": recording.replays,
        "outages_s": recording.outages_s,
        "earlier": {name: [*map(written, some)] for name, some in recording.earlier.items()},
    }
    path.write_bytes(gzip.compress(orjson.dumps(content), mtime=0))


def written(play: Play) -> Json:
    return {**dataclasses.asdict(play), "named": sorted(play.named)}


def read(play: Json) -> Play:
    return Play(**{**play, "named": frozenset(play["named"]), "failures": tuple(play["failures"])})


def pruned(event: Json) -> Json:
    """Leave out of an entry of the audit log what no comparison reads."""
    found = {key: event[key] for key in READ if key in event}
    status = (event.get("responseObject") or {}).get("status")
    subresource = (event.get("objectRef") or {}).get("subresource")
    return {**found, "responseObject": {"status": status}} if subresource == "status" else found


def load(path: Path) -> Recording:
    """Read what `save` wrote."""
    content = orjson.loads(gzip.decompress(path.read_bytes()))
    plays = {name: read(each) for name, each in content.pop("plays").items()}
    earlier = {name: [*map(read, some)] for name, some in content.pop("earlier", {}).items()}
    noted = {
        key: (asked, answered, at) for key, (asked, answered, at) in content.pop("noted").items()
    }
    return Recording(**content, noted=noted, plays=plays, earlier=earlier)
