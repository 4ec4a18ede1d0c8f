"""Each invariant of `make chaos` can fail: one object or figure is wrong, and it says which.

So can each resource of `make soak`.
"""

import asyncio
import datetime as dt
import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos import chaos
from chaos.admin import (
    CSI_NODES,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    NODES,
    PODS,
    SLICES,
    Admin,
    Json,
    RefusedError,
)
from chaos.byte_proxy import Link
from chaos.chaos import CLEAN, COUNTS, LOST_MAX, VERDICT, ended
from chaos.fuzzed import HELD_AFTER
from chaos.invariants import EVENTS_OF_ONE_MAX, INVARIANTS, check
from chaos.soak import COLLECTED_MS_MAX, DISK_MB_MAX, RESOURCES, Sample, judged
from chaos.stage import RUNS, Fleet, Stage
from chaos.story import Story
from chaos.test_chaos import audit_line
from fleet.controlplane.controlplane import ControlPlane

PREFIX, APP = "full", "churn-0"
NAMES = (f"{PREFIX}-00000", f"{PREFIX}-00001")
AT_ONCE_S = -1.0
"""A limit that is over with the first look."""


class Written(Admin):
    """An API server that has what a test writes down."""

    def __init__(self, objects: dict[str, list[Json]]) -> None:
        self.objects = objects

    async def items(self, path: str, *, accept: str = "") -> list[Json]:
        del accept
        return self.objects[path]


class Refusing(Admin):
    """An API server that answers nothing."""

    def __init__(self) -> None:
        pass

    async def get(self, path: str, *, accept: str = "") -> Json:
        raise RefusedError(path, 503, accept)


class EndedFleet(Fleet):
    """A fleet whose process has ended."""

    async def end(self) -> int:
        return 1


def named(name: str, **parts: Any) -> Json:
    return {"metadata": {"name": name, "labels": {"app": APP}}, **parts}


def node(name: str, address: str) -> Json:
    conditions = [
        {"type": "MemoryPressure", "status": "False"},
        {"type": "Ready", "status": "True"},
    ]
    return named(name, status={"conditions": conditions, "addresses": [{"address": address}]})


def lease(name: str, age_s: float = 1) -> Json:
    renewed = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=age_s)
    return named(name, spec={"holderIdentity": name, "renewTime": renewed.isoformat()})


def pod(name: str, node_name: str, address: str) -> Json:
    status: Json = {"phase": "Running", "podIP": address}
    status["conditions"] = [{"type": "Ready", "status": "True"}]
    status["containerStatuses"] = [{"restartCount": 0}]
    return named(name, spec={"nodeName": node_name}, status=status)


def event(uid: str) -> Json:
    about = {"kind": "Pod", "name": "one", "uid": uid}
    return {"source": {"component": "kubelet"}, "involvedObject": about}


def well(root: Path) -> Stage:
    """Return a stage with two nodes, two pods of one Deployment, and nothing wrong."""
    objects = {
        NODES: [node(NAMES[0], "10.0.0.1"), node(NAMES[1], "10.0.0.2")],
        LEASES: [lease(name) for name in NAMES],
        PODS: [pod("one", NAMES[0], "10.1.0.1"), pod("two", NAMES[1], "10.1.0.2")],
        DEPLOYMENTS: [named(APP, status={"readyReplicas": 2})],
        CSI_NODES: [named(name) for name in NAMES],
        SLICES: [{"spec": {"nodeName": NAMES[0]}}],
        EVENTS: [event("a")] * EVENTS_OF_ONE_MAX + [event("b")],
        RUNS: [named("somebodys-leader")],
    }
    return staged(root, Written(objects))


def staged(root: Path, admin: Admin) -> Stage:
    """Return a stage with a fleet that was started twice."""
    link = Link(("127.0.0.1", 0))
    plane = cast("ControlPlane", SimpleNamespace(info=SimpleNamespace(kubeconfig="none")))
    stage = Stage(root, plane, admin, link, random.Random(1), None)
    fleet = EndedFleet(PREFIX, "kubelet", len(NAMES), root, link, root / "kubeconfig", starts=2)
    for log in fleet.logs():
        log.write_text("well\n")
    stage.fleets.append(fleet)
    stage.replicas[APP] = 2
    return stage


def found(stage: Stage) -> dict[str, str]:
    return asyncio.run(check(stage, AT_ONCE_S))


def objects(stage: Stage, path: str) -> list[Json]:
    return cast("Written", stage.admin).objects[path]


Change = Callable[[Stage], object]


def lacks(path: str) -> Change:
    return lambda stage: objects(stage, path).pop()


def has(path: str, item: Json) -> Change:
    return lambda stage: objects(stage, path).append(item)


def set_in(path: str, part: str, **values: object) -> Change:
    """Change the spec or the status of the last object of a kind."""
    return lambda stage: objects(stage, path)[-1][part].update(values)


def says(start: int, words: str) -> Change:
    return lambda stage: stage.fleets[0].logs()[start - 1].write_text(f"well\n{words}\n")


NOT_READY = [{"type": "Ready", "status": "Unknown"}]
SAME_ADDRESS = [{"address": "10.0.0.1"}]
WRONG: list[tuple[str, Change, str]] = [
    ("every node is Ready", lacks(NODES), "1: full-00001"),
    ("every node is Ready", set_in(NODES, "status", conditions=NOT_READY), "1: full-00001"),
    (
        "every node is Ready",
        lambda stage: stage.fleets[0].gone.add(NAMES[1]),
        "1: full-00001 is back",
    ),
    ("every node renews its Lease", lacks(LEASES), "1: full-00001 999 s ago"),
    (
        "every node renews its Lease",
        lambda stage: objects(stage, LEASES)[1].update(lease(NAMES[1], age_s=600)),
        "1: full-00001 600 s ago",
    ),
    (
        "every pod is where it belongs",
        set_in(PODS, "status", conditions=NOT_READY, phase="Pending"),
        "1: two on full-00001 Pending",
    ),
    (
        "every pod is where it belongs",
        set_in(PODS, "spec", nodeName="gone"),
        "1: two on gone Running",
    ),
    ("every pod is where it belongs", lacks(PODS), "1: churn-0 has 1 of 2"),
    (
        "every pod is where it belongs",
        has(PODS, pod("three", NAMES[0], "10.1.0.3")),
        "1: churn-0 has 3 of 2",
    ),
    (
        "every pod is where it belongs",
        set_in(DEPLOYMENTS, "status", readyReplicas=1),
        "1: churn-0: {'readyReplicas': 1}",
    ),
    (
        "no Lease and no pod is doubled",
        set_in(LEASES, "spec", holderIdentity="other"),
        "1: Lease full-00001 of other",
    ),
    (
        "no Lease and no pod is doubled",
        set_in(PODS, "status", podIP="10.1.0.1"),
        "1: pods at 10.1.0.1",
    ),
    (
        "no Lease and no pod is doubled",
        set_in(NODES, "status", addresses=SAME_ADDRESS),
        "1: nodes at 10.0.0.1",
    ),
    (
        "no container was restarted",
        set_in(PODS, "status", containerStatuses=[{"restartCount": 0}, {"restartCount": 2}]),
        "1: two 2 times",
    ),
    ("no object is without an owner", has(LEASES, lease("ghost")), "1: leases ghost"),
    ("no object is without an owner", has(CSI_NODES, named("ghost")), "1: csinodes ghost"),
    (
        "no object is without an owner",
        has(SLICES, {"spec": {"nodeName": "ghost"}}),
        "1: slice of ghost",
    ),
    ("no storm of Events", has(EVENTS, event("a")), f"1: Pod one a: {EVENTS_OF_ONE_MAX + 1}"),
    ("no traceback in the log", says(1, "Traceback (most"), "1: full-1: Traceback"),
    ("no traceback in the log", says(2, "bug in fleet"), "1: full-2: bug in fleet"),
]


def test_nothing_is_wrong_where_all_is_well(tmp_path: Path) -> None:
    assert found(well(tmp_path)) == dict.fromkeys(INVARIANTS, "")


@pytest.mark.parametrize(("name", "change", "words"), WRONG)
def test_an_invariant_finds_what_is_wrong(
    tmp_path: Path, name: str, change: Change, words: str
) -> None:
    stage = well(tmp_path)
    change(stage)
    assert found(stage)[name] == words


def test_each_invariant_is_shown_to_fail() -> None:
    assert {name for name, _, _ in WRONG} == set(INVARIANTS)
    assert set(HELD_AFTER) <= set(INVARIANTS)


def test_no_answer_is_no_proof(tmp_path: Path) -> None:
    wrong = found(staged(tmp_path, Refusing()))
    assert [name for name, words in wrong.items() if not words] == ["no traceback in the log"]


def test_what_is_wrong_makes_a_run_red() -> None:
    story = Story(1)
    story.note({"etcd-slow"}, {"good": "", "bad": "1: a"}, "now")
    assert story.wrong == ["now: bad: 1: a (after etcd-slow)"]
    assert (story.held["good"]["etcd-slow"], story.looks["good"]["etcd-slow"]) == (1, 1)
    assert (story.held["bad"]["etcd-slow"], story.looks["bad"]["etcd-slow"]) == (0, 1)


def ends(**changes: object) -> Change:
    """Have the summary of the fleet say something else."""

    def change(stage: Stage) -> None:
        fleet = stage.fleets[0]
        fleet.printed = json.dumps({**json.loads(fleet.printed), **changes})

    return change


def counted(code: int, count: int, lost: int = 0) -> list[Json]:
    rows = ((code, count), (0, lost))
    return [{"verb": "GET", "resource": "pods", "code": code, "count": n} for code, n in rows]


def prints_nothing(stage: Stage) -> None:
    stage.fleets[0].printed = ""


MANY = LOST_MAX + 1
ENDS: list[tuple[str, Change, str]] = [
    (COUNTS, ends(requests=counted(200, 100 + MANY)), "full GET pods 200: 151 counted, 100 in log"),
    (COUNTS, ends(requests=counted(200, 100 - MANY)), "full GET pods 200: 49 counted, 100 in log"),
    (COUNTS, ends(requests=[]), "full GET pods 200: 0 counted, 100 in log"),
    (
        VERDICT,
        ends(verdict="pass", verdict_reasons=[], requests=counted(200, 100, lost=2)),
        "full exits with 1: pass",
    ),
    (VERDICT, ends(verdict_reasons=[]), "full exits with 1: fail"),
    (VERDICT, prints_nothing, "full exits with 1 and prints no summary"),
    (VERDICT, says(1, "Traceback (most"), "full-1: Traceback"),
    (CLEAN, has(NODES, named("ghost")), f"no object at {NODES}; last: RefusedError('1: ghost')"),
    (CLEAN, has(LEASES, named("ghost")), f"no object at {LEASES}; last: RefusedError('1: ghost')"),
    (CLEAN, has(CSI_NODES, named("a")), f"no object at {CSI_NODES}; last: RefusedError('1: a')"),
    (CLEAN, has(RUNS, named("fleet-run-full")), "run lease fleet-run-full"),
]


def at_the_end(monkeypatch: pytest.MonkeyPatch, stage: Stage, cleaned: int = 0) -> dict[str, str]:
    """Look at fleets that have ended, after a `fleet clean` that exits with a code."""
    done = subprocess.CompletedProcess((), cleaned, "not ", "cleaned")
    monkeypatch.setattr(subprocess, "run", lambda *_args, **_options: done)
    monkeypatch.setattr(chaos, "RECOVERY_S_MAX", AT_ONCE_S)
    return asyncio.run(ended(stage))


@pytest.fixture
def over(tmp_path: Path) -> Stage:
    """A stage after a run that said what went wrong, and of which nothing is left."""
    stage = well(tmp_path)
    stage.replicas.clear()
    for path in (NODES, LEASES, PODS, CSI_NODES):
        objects(stage, path).clear()
    (tmp_path / "audit.jsonl").write_bytes(100 * audit_line("get", 200))
    summary = {"verdict": "fail", "verdict_reasons": ["late"], "requests": counted(200, 100)}
    stage.fleets[0].printed = json.dumps(summary)
    return stage


def test_an_end_is_well(monkeypatch: pytest.MonkeyPatch, over: Stage) -> None:
    assert at_the_end(monkeypatch, over) == {COUNTS: "", VERDICT: "", CLEAN: ""}


def test_a_fleet_that_saw_nothing_may_pass(monkeypatch: pytest.MonkeyPatch, over: Stage) -> None:
    """It was killed, and started again near the end."""
    ends(verdict="pass", verdict_reasons=[], requests=counted(200, 100, lost=1))(over)
    assert at_the_end(monkeypatch, over)[VERDICT] == ""


def test_refused_tokens_are_nobodys_in_the_log(
    monkeypatch: pytest.MonkeyPatch, over: Stage
) -> None:
    refused = {"verb": "GET", "resource": "pods", "code": 401, "count": MANY}
    ends(requests=[*counted(200, 100), refused])(over)
    assert at_the_end(monkeypatch, over)[COUNTS] == ""


def test_answers_that_were_lost_are_in_the_log(
    monkeypatch: pytest.MonkeyPatch, over: Stage
) -> None:
    ends(requests=counted(200, 100 - MANY, lost=1))(over)
    assert at_the_end(monkeypatch, over)[COUNTS] == ""


@pytest.mark.parametrize(("name", "change", "words"), ENDS)
def test_an_end_shows_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, over: Stage, name: str, change: Change, words: str
) -> None:
    change(over)
    assert at_the_end(monkeypatch, over)[name].endswith(words)


def test_a_clean_up_that_fails_is_shown(monkeypatch: pytest.MonkeyPatch, over: Stage) -> None:
    assert at_the_end(monkeypatch, over, cleaned=3)[CLEAN] == "not cleaned"


SHARE = 0.02


def samples(count: int = 1800, **growth_per_hour: float) -> list[Sample]:
    """Return what an hour of soak writes: noise around 100, and growth."""
    draws = random.Random(1)
    return [
        {
            "at_s": 2.0 * at,
            "collected_ms": 1.0,
            "disk_mb": 1.0,
            **{
                name: 100 + draws.uniform(-1, 1) + growth_per_hour.get(name, 0) * at / 1800
                for name in RESOURCES
            },
        }
        for at in range(count)
    ]


def test_noise_is_flat() -> None:
    assert judged(samples(), SHARE)[1] == []


@pytest.mark.parametrize("name", RESOURCES)
def test_a_resource_that_grows_is_found(name: str) -> None:
    assert judged(samples(**{name: 3}), SHARE)[1] == [f"{name} grows"]
    assert judged(samples(**{name: -3}), SHARE)[1] == []


def test_too_few_samples_are_not_flat() -> None:
    for count in (0, 2):
        assert judged(samples(count), SHARE)[1] == [f"{name} grows" for name in RESOURCES]


def test_a_long_collection_is_found() -> None:
    found = samples()
    found[-1]["collected_ms"] = COLLECTED_MS_MAX + 1
    assert judged(found, SHARE)[1] == ["the garbage collector took 51 ms"]


def test_a_run_directory_that_grows_is_found() -> None:
    found = samples()
    found[-1]["disk_mb"] = DISK_MB_MAX + 1
    assert judged(found, SHARE)[1] == ["the run directory and the log have 25.0 MB"]
