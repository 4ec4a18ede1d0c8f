"""The same zone outage on a real control plane and in virtual time: who does what, and when.

Both are read as requests: of the real one from the API server's audit log, of the other from
`trace.jsonl`. What is held against each other is what the controllers make of silent nodes.
"""

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest
import yaml
from audit_requests import seconds
from e2e_world import DEDICATED, Json, World, condition, eventually

pytest_plugins = ("e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

PREFIX = "dark"
NODES = 9
PODS = 18
TOLERATED_S = 20
APART_S = 6.0
"""Nodes are looked at every 5 s, when they chance to be; and the real machine may be busy."""


class Asked(NamedTuple):
    """One request that was answered with 2xx."""

    at_s: float
    who: str  # the last part of the user's name
    verb: str
    path: str


class Outage(NamedTuple):
    """What became of the nodes of a zone; seconds."""

    unknown: list[float]  # from a node's last renewal until it is Unknown
    tainted: list[float]  # from the first of them that is Unknown until each has its NoExecute
    evicted: list[float]  # from the first such taint until each pod is deleted
    replaced: int  # pods that are made during the outage


def outage_of(asked: Iterable[Asked], dark: set[str]) -> Outage:
    """Read the story of an outage from the requests."""
    renewed: dict[str, float] = {}
    unknown: dict[str, float] = {}
    patched: dict[str, list[float]] = {}
    evicted: list[float] = []
    made: list[float] = []
    for each in sorted(asked):
        name = each.path.removesuffix("/status").rpartition("/")[2]
        if "/leases/" in each.path and each.verb == "PUT" and name not in unknown:
            renewed[name] = each.at_s
        elif each.who == "node-controller" and each.path.startswith("/api/v1/nodes/"):
            if each.verb == "PUT":
                unknown.setdefault(name, each.at_s)
            elif name in unknown:
                patched.setdefault(name, []).append(each.at_s)
        elif each.who == "node-controller" and each.verb == "DELETE":
            evicted.append(each.at_s)
        elif each.verb == "POST" and each.path.endswith("/pods") and unknown:
            made.append(each.at_s)
    assert set(unknown) == dark
    first = min(unknown.values())
    # NoSchedule comes at once and NoExecute in its turn; both go with the end of the outage.
    tainted = sorted(times[1] for times in patched.values())
    return Outage(
        sorted(at - renewed[name] for name, at in unknown.items()),
        [at - first for at in tainted],
        [at - tainted[0] for at in evicted],
        len(made),
    )


def of_trace(path: Path) -> list[Asked]:
    """Return the requests of a run in virtual time."""
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    return [
        Asked(each["t"], each["client"].rpartition(":")[2], each["verb"], _bare(each["path"]))
        for each in lines
        if "verb" in each and 200 <= each["code"] < 300
    ]


VERBS = {"update": "PUT", "patch": "PATCH", "create": "POST", "delete": "DELETE"}


def of_audit(events: Iterable[Json]) -> list[Asked]:
    """Return the requests that the API server has logged, each once."""
    found = {each["auditID"]: each for each in events if each["verb"] in VERBS}
    return [
        Asked(
            seconds(each),
            (each.get("impersonatedUser") or each["user"])["username"].rpartition(":")[2],
            VERBS[each["verb"]],
            _bare(each["requestURI"]),
        )
        for each in found.values()
        if 200 <= each["responseStatus"]["code"] < 300
    ]


def _bare(path: str) -> str:
    return path.partition("?")[0]


def scenario(world: World) -> Path:
    """Write a Deployment on nine nodes of which the three of a zone fall silent."""
    toleration = {
        "key": "node.kubernetes.io/unreachable",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": TOLERATED_S,
    }
    fake = {"key": "fleet.emulator/fake", "operator": "Exists"}
    pod = {
        "tolerations": [toleration, fake],
        "containers": [{"name": "c", "image": "registry.example.com/c:1"}],
    }
    labels = {"app": PREFIX}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": PREFIX},
        "spec": {
            "replicas": PODS,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    phases = [
        {
            "name": "load",
            "apply": [{"manifest": deployment}],
            "until": {"condition": "PodsReady", "timeout": "2m"},
        },
        {
            "name": "outage",
            "duration": "160s",
            "faults": [{"type": "Partition", "zone": "zone-b", "at": "30s", "duration": "2m"}],
        },
        {"name": "recovery", "until": {"condition": "NodesReady", "timeout": "2m"}},
    ]
    spec = {"nodePools": [{"name": "main", "replicas": NODES}], "phases": phases}
    document = {"apiVersion": "fleet.emulator/v1alpha1", "kind": "Scenario", "spec": spec}
    path = world.root / "dark.yaml"
    path.write_text(yaml.safe_dump(document | {"metadata": {"name": PREFIX}}))
    return path


def test_an_outage_goes_as_on_a_real_control_plane(world: World) -> None:
    path = scenario(world)
    zone = "topology.kubernetes.io/zone"
    named = (f"--kubeconfig={world.info.kubeconfig}", *DEDICATED, "--zone-labels")
    begun = len(world.audit())
    with world.start(PREFIX, "run", str(path), *named) as run:

        def silent() -> set[str]:
            nodes = world.nodes(PREFIX).values()
            return {n["metadata"]["name"] for n in nodes if condition(n, "Ready") == "Unknown"}

        eventually(lambda: len(silent()) == NODES // 3, "a third of the nodes is Unknown")
        dark = silent()
        labels = [world.nodes(PREFIX)[name]["metadata"]["labels"] for name in dark]
        assert {each[zone] for each in labels} == {"zone-b"}
        run.ended_well_or_late()
    ours = [
        each
        for each in of_audit(world.audit()[begun:])
        if "/leases/" not in each.path or f"/{PREFIX}-" in each.path
    ]
    real = outage_of(ours, dark)
    simulated_dir = world.root / "simulated-outage"
    told = world.fleet(
        *("run", str(path), "--simulate", "--seed=1", "--quiet", "--no-agents"),
        *(f"--name-prefix={PREFIX}", f"--run-dir={simulated_dir}"),
    )
    assert told.returncode == 0, told.stderr
    simulated = outage_of(of_trace(simulated_dir / "trace.jsonl"), dark)
    for each in (real, simulated):
        assert len(each.unknown) == len(each.tainted) == len(dark)
        assert each.replaced == len(each.evicted)
        # A pod may be on any node with room: six of 18 if they are spread evenly.
        assert abs(len(each.evicted) - PODS // 3) <= 2
    for story in ("unknown", "tainted", "evicted"):
        one, other = getattr(real, story), getattr(simulated, story)
        for measure in (min, statistics.median, max):
            assert abs(measure(one) - measure(other)) <= APART_S, (story, real, simulated)
    assert min(*real.evicted, *simulated.evicted) >= TOLERATED_S - 1
