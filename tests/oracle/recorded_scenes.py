"""What the real kubelet asked in each scene, a file each: `recorded/MINOR/SCENE.json.gz`.

The live judge writes them, and `test_recorded.py` compares with them without a real kubelet.
`node.json.gz` has what it asked for itself before the first scene began, and
`node-NAME.json.gz` the same of one that is configured otherwise.
"""

import os
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from support.go_program import TESTED

from fleet.profile.release import minor_of
from oracle.exchange import NODE_SCOPE, Side, owner_of
from oracle.judge import Recording, load, save
from oracle.normalisation import Json, seconds
from oracle.scene import REAL, Play

OF_THE_NODE = ("", "default", "kube-node-lease", "kube-system")
"""The namespaces of what belongs to no scene."""
MADE_FIRST = ("nodes", "csinodes")
"""By the first requests about them a node's own address and UID are known."""
RENEWALS_S = 45.0
"""So long renewals are recorded of a node: what else it says then depends on scenes."""
DIRECTORY = Path(__file__).with_name("recorded") / minor_of(TESTED)


def path_of(scene: str, directory: Path = DIRECTORY) -> Path:
    return directory / f"{scene}.json.gz"


def recorded(scene: str, directory: Path = DIRECTORY) -> Recording:
    """Return what was recorded of a scene, or of the node itself."""
    return load(path_of(scene, directory))


def record(
    recording: Recording,
    directory: Path = DIRECTORY,
    *,
    node: str = NODE_SCOPE,
    without: Collection[str] = (),
) -> list[str]:
    """Write what the real kubelet did in each scene; return the names of the scenes.

    A scene that failed on the real kubelet keeps its file: it is none to be compared with.
    """
    directory.mkdir(parents=True, exist_ok=True)
    until_s = min(each.begun_s for each in recording.plays.values())
    parts = {node: of_node(recording, until_s)}
    names = []
    for name, play in recording.plays.items():
        if name not in without and not any(each.startswith(f"{REAL} ") for each in play.failures):
            parts[name] = of_scene(recording, name)
            names.append(name)
    for name, part in parts.items():
        path = path_of(name, directory)
        hidden = path.with_name(f".{os.getpid()}-{path.name}")  # halves may be played at once
        save(part, hidden)
        hidden.rename(path)
    return names


def of_scene(recording: Recording, name: str) -> Recording:
    """Return what the real node did in a scene, and what the scene did."""
    play = recording.plays[name]
    theirs = replace(
        play,
        namespaces={REAL: play.namespaces[REAL]},
        failures=tuple(each for each in play.failures if each.startswith(f"{REAL} ")),
    )
    return replace(_kept(recording, during(recording.events, theirs)), plays={name: theirs})


def during(events: Iterable[Json], play: Play) -> list[Json]:
    """Return what a node asked in a play on it alone: for the scene, and meanwhile for itself."""
    [namespace] = play.namespaces.values()
    side = Side("", {namespace: ""})
    found = []
    made = set(MADE_FIRST)
    for each in events:
        about = each.get("objectRef") or {}
        where = about.get("namespace", "") or owner_of(about, side)
        is_first = each["verb"] == "create" and about.get("resource") in made
        at_s = seconds(each["requestReceivedTimestamp"])
        if is_first and where in OF_THE_NODE:
            made.remove(about["resource"])
        is_its_own = where in OF_THE_NODE and (is_first or play.begun_s <= at_s <= play.ended_s)
        if where == namespace or is_its_own:
            found.append(each)
    return found


def of_node(recording: Recording, until_s: float) -> Recording:
    """Return what the real node asked for itself until a time."""
    return _kept(recording, of_start(recording.events, until_s))


def of_start(events: Iterable[Json], until_s: float) -> list[Json]:
    """Return what was asked until a time, and renewals for a while longer."""
    found = []
    for each in events:
        is_renewal = (each.get("objectRef") or {}).get("resource") == "leases"
        limit_s = until_s + RENEWALS_S if is_renewal else until_s
        if seconds(each["requestReceivedTimestamp"]) < limit_s:
            found.append(each)
    return found


def _kept(recording: Recording, events: list[Json]) -> Recording:
    """Return some events of the real node with their headers, and nothing of the other one.

    What the API server answers with is compared by the live judge alone.
    """
    user = f"system:node:{recording.nodes[REAL]}"
    events = [
        {**each, "user": {key: each["user"][key] for key in ("username", "groups")}}
        for each in events
        if each["user"]["username"] == user
    ]
    names = {each["auditID"] for each in events}
    return replace(
        recording,
        events=events,
        noted={
            key: ({name: asked[name] for name in asked if not name.startswith(":")}, {}, 0)
            for key, (asked, _, _) in recording.noted.items()
            if key in names
        },
        nodes={REAL: recording.nodes[REAL]},
        started_s={REAL: recording.started_s[REAL]},
        plays={},
        earlier={},
        replays={},
    )
