"""Plays a scene on a node of fleet in virtual time, at the times of the live judge."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from support.go_program import TESTED

from fleet.controlplane.options import ControlPlaneInfo
from fleet.k8s.effects import NodeId
from fleet.profile.loader import load_mix
from fleet.profile.machine import Broken
from fleet.profile.node_model import NodeModel
from fleet.profile.option_types import ProfileChoice
from fleet.wire.api.codec import JSON
from oracle.both_nodes import HOLD_S, OWN, SEED, Told, measured
from oracle.course import Step
from oracle.halves import TOLD
from oracle.judge import Recording, load
from oracle.normalisation import Json, seconds
from oracle.oracle_limits import LIMITS
from oracle.recorded_scenes import RENEWALS_S, during, of_start
from oracle.scene import FLEET, REAL, Play, Scene, play
from oracle.virtual_admin import VirtualAdmin
from oracle.virtual_node import VirtualNode, manifests_of

[REPLAYS_MAX] = LIMITS["replays_of_a_scene"]
QUOTED = re.compile(r'"([^"]+)"')
MEASURE = re.compile(r"[+-]?\d+\.\d+ s")
ENCODING = ("accept", "content-type")
"""The headers that say in which encoding a node speaks."""
LATER_S = 0.5
"""So much later fleet's node may start with the last thing."""
AGE_S = 30.0
"""So long a node has run when its scene begins, if nothing was recorded."""
DOWN_S = 4.0
"""So long an API server takes to come back, if nothing was recorded."""
BEGUN_S = 1795378100.0
"""When a scene begins of which nothing was recorded."""


class ScriptChangedError(AssertionError):
    """A scene does not take the steps that were recorded."""


class VirtualCourse:
    """Virtual time; each step waits until the live judge took it, if it was recorded."""

    def __init__(self, node: VirtualNode, recorded: Sequence[Step] = ()) -> None:
        self._node = node
        self._recorded = recorded
        self._begun_s = 0.0
        self._taken: list[Step] = []

    @property
    def steps(self) -> Sequence[Step]:
        return tuple(self._taken)

    def now_s(self) -> float:
        return self._node.now_s()

    def sleep(self, wait_s: float) -> None:
        self._node.run_for(wait_s)

    def begin(self) -> None:
        self._begun_s = self.now_s()

    def step(self, what: str) -> None:
        at = len(self._taken)
        if at < len(self._recorded):
            wait_s = self._begun_s + self._recorded[at].after_s - self.now_s()
            self._node.run_for(max(wait_s, 0))
        self._taken.append(Step(self.now_s() - self._begun_s, what))


@dataclass(frozen=True, slots=True)
class VirtualStage:
    """One node of fleet, and what scenes can do to it."""

    node: VirtualNode
    place: Path
    outages_s: Sequence[tuple[float, float]] = ()
    """When the live judge had no API server."""

    @property
    def info(self) -> ControlPlaneInfo:
        raise AssertionError("there is no control plane")

    @property
    def nodes(self) -> Mapping[str, str]:
        return {FLEET: OWN}

    @property
    def manifests(self) -> Mapping[str, Path]:
        return {FLEET: self.place}

    def restart_apiserver(self) -> None:
        now_s = self.node.now_s()
        lasted = (
            until_s - now_s
            for begun_s, until_s in self.outages_s
            if begun_s <= now_s + 1 < until_s + 1
        )
        self.node.restart_apiserver(next(lasted, DOWN_S))

    def fail_devices(self, resource: str, count: int) -> None:
        self.node.break_machine(Broken(devices=((resource, count),) if count else ()))

    def allocated(self, driver: str, namespace: str, claim: str, device: Json) -> None:
        """Do nothing: fleet's node reads the claim."""

    def set_stuck(self, driver: str, *, is_stuck: bool) -> None:
        """Do nothing: fleet's node reads an annotation."""

    def ask_kubelet(self, side: str, method: str, path: str, token: str) -> int:
        raise AssertionError(f"{side} has no server: {method} {path}{token and ' with a token'}")

    def restart_kubelets(self) -> None:
        self.node.restart_kubelet()


def model_of(root: Path, real: Path, told: Told = TOLD, version: str = TESTED) -> NodeModel:
    """Return the node that the live judge gives fleet: what the real one found of its machine."""
    node: Json = {}
    for each in load(real).events:
        if each["objectRef"]["resource"] != "nodes":
            continue
        if each["verb"] == "create":
            node = each["requestObject"]
        elif each["verb"] == "patch":
            node = {**node, "status": each["responseObject"]["status"]}
    profile = root / "own.yaml"
    kubelet = told.kubelet_of(root, OWN)
    profile.write_text(told.documents(measured(node), kubelet))
    Path(str(kubelet["staticPodPath"])).mkdir(exist_ok=True)
    [model] = load_mix((ProfileChoice(str(profile)),)).models
    return model.on_server(version).adapted(zone_labels=True)


def replayed(
    recording: Recording,
    body: Callable[[Scene], None],
    model: NodeModel,
    encoding: str,
    *,
    seed: int = SEED,
) -> Recording:
    """Play a scene on fleet's node; return the recording with what both nodes did."""
    [(name, theirs)] = recording.plays.items()
    ours, node = played(name, body, model, encoding, recording, seed=seed)
    changed = changes(theirs.steps, ours.steps)
    if changed:
        raise ScriptChangedError(f"{name}: {changed}; record it again: make oracle-record")
    both = replace(
        theirs,
        namespaces={**theirs.namespaces, **ours.namespaces},
        failures=(*theirs.failures, *ours.failures),
        named=theirs.named | ours.named,
    )
    alone = replace(theirs, namespaces=ours.namespaces)
    return replace(
        with_fleet(recording, node, during(node.server.audit, alone)), plays={name: both}
    )


def started(recording: Recording, model: NodeModel, encoding: str) -> Recording:
    """Start fleet's node as the real one was started; return what both did."""
    until_s = LATER_S + max(
        seconds(each["requestReceivedTimestamp"])
        for each in recording.events
        if each["objectRef"]["resource"] != "leases"
    )
    node = VirtualNode(model, encoding, recording.started_s[REAL][0])
    node.run_for(until_s + RENEWALS_S - node.now_s())
    return with_fleet(recording, node, of_start(node.server.audit, until_s))


def with_fleet(recording: Recording, node: VirtualNode, events: Sequence[Json]) -> Recording:
    """Return a recording of the real node with some of what fleet's node asked.

    With JSON, two headers of fleet's node are meant to differ.
    """
    noted = {**recording.noted, **node.server.noted}
    if node.server.encoding.codec.accept == JSON.accept:
        noted = {
            key: ({name: asked[name] for name in asked if name not in ENCODING}, answered, at)
            for key, (asked, answered, at) in noted.items()
        }
    return replace(
        recording,
        events=[*recording.events, *events],
        noted=noted,
        nodes={**recording.nodes, FLEET: OWN},
        started_s={**recording.started_s, FLEET: node.starts_s},
    )


def played(
    name: str,
    body: Callable[[Scene], None],
    model: NodeModel,
    encoding: str,
    recording: Recording | None = None,
    *,
    seed: int = SEED,
) -> tuple[Play, VirtualNode]:
    """Play a scene on fleet's node, at the times at which it was recorded if it was."""
    recorded = recording.plays[name] if recording else None
    begun_s, steps = (recorded.begun_s, recorded.steps) if recorded else (BEGUN_S, ())
    outages_s = recording.outages_s if recording else ()
    starts_s = recording.started_s[REAL] if recording else ()
    began_s = max((each for each in starts_s if each < begun_s), default=begun_s - AGE_S)
    hold_s = recorded.hold_s if recorded else HOLD_S
    node = VirtualNode(model, encoding, began_s, hold_s=hold_s, seed=seed)
    node.run_for(begun_s - began_s)
    for image, size_bytes in left_images(recording.events if recording else (), model):
        node.environment.images.add(NodeId(0), image, size_bytes, node.clock.now_ns())
    for left in manifests_of(model).iterdir():  # by a scene that failed
        left.unlink()
    stage = VirtualStage(node, manifests_of(model), outages_s)
    course = VirtualCourse(node, steps)
    found = play(name, body, stage, VirtualAdmin(node), course=course)
    if recorded:
        node.run_for(max(recorded.ended_s - found.ended_s, 0))
    return found, node


def left_images(events: Sequence[Json], model: NodeModel) -> list[tuple[str, int]]:
    """Return the images that scenes before this one had left on the real node, with their sizes.

    A kubelet that comes back reads all that are there, and says so when it tries to register; the
    scene itself has pulled none of them before.
    """
    known = {name for each in model.images_preloaded for name in each.names}
    found: dict[str, int] = {}
    for event in events:
        made = event.get("requestObject") or {}
        resource = event["objectRef"]["resource"]
        if resource == "events" and made.get("reason") == "Pulled":
            known.update(QUOTED.findall(made["message"]))
        elif (event["verb"], resource, event["responseStatus"]["code"]) == ("create", "nodes", 409):
            for image in made["status"].get("images", ()):
                name = image["names"][-1]
                if name not in known:
                    found[name] = image["sizeBytes"]
    return [*found.items()]


def changes(recorded: Sequence[Step], taken: Sequence[Step]) -> str:
    """Return in which step a scene is not what was recorded, "" if in none."""
    for at, (before, now) in enumerate(zip_longest(recorded, taken)):
        words = [each.what if each else "nothing" for each in (before, now)]
        if words[0] != words[1]:
            return f"step {at} was {words[0]!r} and is {words[1]!r}"
    return ""


def beyond_chance(found_with: Callable[[int], list[str]]) -> list[str]:
    """Return in what nodes differ, given what is found with a seed: nothing if that is chance.

    A scene in which they differ is played again with another seed, as often as by the live judge.
    What occurs in two plays is no chance, however much later something comes in each of them.
    """
    counts: Counter[str] = Counter()
    found: list[str] = []
    for seed in range(SEED, SEED + int(REPLAYS_MAX) + 1):
        found = found_with(seed)
        counts.update({MEASURE.sub("N s", line) for line in found})
        twice = [line for line, count in counts.items() if count > 1]
        if twice or not found:
            return twice
    return found
