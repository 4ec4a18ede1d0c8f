"""Scenario files: what they say, when it happens, and what is told of those that are wrong."""

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from itertools import count, pairwise
from pathlib import Path
from typing import cast

import orjson
import pytest
import yaml
from jsonschema import Draft202012Validator

from fleet.clock import NS_PER_S
from fleet.errors import UsageError
from fleet.faults.fault import FaultType
from fleet.profile.loader import load_mix
from fleet.profile.release import V1_34, V1_36, V1_37, Release
from fleet.profile.settings import StartMode
from fleet.run.applied import Applied, Created
from fleet.run.fault_control import FaultControl
from fleet.run.scenario_player import AT_ONCE_MAX, ScenarioPlayer, Stage, settings_of
from fleet.scenario.preview import forecast, idle, time_line
from fleet.scenario.scenario import (
    ApplySpec,
    Named,
    faults_of,
    find,
    json_schema,
    load,
    named,
    parse,
    shipped,
)

HERE = Path(__file__).parent
GOOD = (HERE / "good.yaml").read_text()
REFUSED = yaml.safe_load((HERE / "refused.yaml").read_text())
POD = "{apiVersion: v1, kind: Pod, metadata: {name: p}}"


def broken(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


def test_a_scenario_says_its_nodes_and_when_what_happens() -> None:
    scenario = parse(GOOD, "good.yaml")
    assert scenario.nodes == 30
    assert scenario.cuts_off
    assert scenario.profiles(Path("dir/good.yaml")) == ("default=20", "dir/big.yaml=10")
    partition, restart = scenario.spec.phases[0].faults
    assert partition.fault().type is FaultType.PARTITION
    assert "at_ns" not in partition.fault().model_dump()
    assert restart.fault().share == 0.25
    assert time_line(scenario, 30).splitlines()[2:] == [
        "           bring-up: until all nodes are Ready",
        "     0:00  one: for 2m0s",
        "     0:00    KubeletRestart on 25% of all nodes",
        "     0:30    Partition on zone b for 1m0s",
        "     1:30    Partition is healed",
        "     2:00  two: until NodesReady, 5m0s at most",
        "   >=2:00  clean-up and verdict",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "x:: kind: None is not 'Scenario'"),
        ("- 1", "kind: None is not 'Scenario'"),
        ("kind: NodeProfile", "kind: 'NodeProfile' is not 'Scenario'"),
        (GOOD + "---\n" + GOOD, "x:22: is not one YAML document: but found another"),
        *((broken(old, new), told) for old, new, told in REFUSED),
    ],
)
def test_what_is_wrong_is_told_with_file_line_and_path(text: str, told: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text, "x")
    assert told.removeprefix("x::") in str(raised.value)
    assert "\n" not in str(raised.value)


CHAOS = """    randomFaults:
    - of: [{type: NodeDown, share: 0.1}, {type: KubeletRestart}, {type: PLEGStall}]
      interval: 5s
      duration: 20s
"""


def test_the_seed_decides_what_goes_wrong_at_random() -> None:
    text = GOOD.replace("    faults:", f"{CHAOS}    faults:").replace(
        "duration: 2m", "duration: 1h"
    )
    phase = parse(text, "x").spec.phases[0]
    drawn = faults_of(phase, 0, seed=7)
    assert drawn[:2] == phase.faults
    assert drawn == faults_of(phase, 0, seed=7)
    assert drawn != faults_of(phase, 0, seed=8)
    random = drawn[2:]
    assert 600 < len(random) < 850  # an hour of one each 5 s
    assert {each.type for each in random} == {each.type for each in phase.random_faults[0].of}
    assert all(each.at_ns < each_after.at_ns for each, each_after in pairwise(random))
    assert {each.share for each in random if each.type is FaultType.NODE_DOWN} == {0.1}
    for each in random:
        is_late = each.at_ns + 20 * NS_PER_S >= 3600 * NS_PER_S
        assert (each.duration_ns is None) is (each.is_instant or is_late)
    assert len(time_line(parse(text, "x"), 30, 7).splitlines()) > 600


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("interval: 5s", "interval: 5ms"), "randomFaults[0].interval"),
        (("interval: 5s", "every: 5s"), "randomFaults[0].interval: is required"),
        (("PLEGStall", "Quake"), "randomFaults[0].of[2].type: 'Quake'"),
        (("duration: 20s", "duration: 0s"), "duration must be above 0s"),
        (("duration: 2m", "duration: 40h"), "randomFaults: are over 10000: a longer interval"),
    ],
)
def test_random_faults_that_cannot_be_are_told(change: tuple[str, str], told: str) -> None:
    text = GOOD.replace("    faults:", f"{CHAOS}    faults:").replace(*change)
    with pytest.raises(UsageError) as caught:
        parse(text, "x")
    assert told in str(caught.value)


def test_what_is_applied_and_comes_and_goes_is_on_the_time_line(tmp_path: Path) -> None:
    document = yaml.safe_load(GOOD)
    (tmp_path / "web.yaml").write_text(f"{POD}\n---\n{POD}\n")
    pod = yaml.safe_load(POD)
    document["spec"]["phases"][0] |= {
        "apply": [{"file": "web.yaml"}, {"manifest": pod, "count": 20, "rate": 2, "at": "10s"}],
        "churn": [{"manifest": pod, "rate": 0.5, "lifetime": "1m"}],
        "faults": [{"type": "ComponentStall", "component": "etcd", "at": "5s", "duration": "5s"}],
    }
    scenario = parse(yaml.safe_dump(document), "x")
    assert scenario.stops_components
    assert time_line(scenario, 30).splitlines()[3:9] == [
        "     0:00  one: for 2m0s",
        "     0:00    apply web.yaml",
        "     0:00    churn Pod p, 0.5/s, each for 1m0s",
        "     0:05    ComponentStall etcd for 5s",
        "     0:10    ComponentStall etcd is healed",
        "     0:10    apply 20 times Pod p, 2/s",
    ]
    once, often = scenario.spec.phases[0].apply
    assert len(once.manifests(tmp_path / "s.yaml")) == 2
    [named_pod] = named(often.manifests(tmp_path / "s.yaml"), 3, is_only=False)
    assert named_pod.document()["metadata"] == {"name": "p-00003"}
    with pytest.raises(UsageError, match="leave the cluster's name out"):
        settings_of(
            scenario, tmp_path / "s.yaml", {"kubeconfig": Path("k"), "profile": ("default",)}
        )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no object"),
        ("- 1", "document 1: is not an object of the API"),
        (f"{POD}\n---\nkind: Pod\n", "document 2: apiVersion is required"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_file_of_manifests_that_is_wrong_is_named(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "web.yaml").write_text(text)
    with pytest.raises(UsageError, match=told) as raised:
        ApplySpec(file="web.yaml").manifests(tmp_path / "s.yaml")
    assert str(tmp_path / "web.yaml") in str(raised.value)


@pytest.mark.parametrize("name", list(shipped()))
def test_what_ships_is_good_and_has_a_time_line(name: str) -> None:
    scenario = load(find(name))
    assert scenario.metadata.name == name
    assert time_line(scenario, scenario.nodes)
    settings = settings_of(scenario, find(name), {})
    assert (settings.nodes, settings.seed) == (scenario.nodes, scenario.spec.seed)


def test_the_command_line_takes_the_place_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    document = yaml.safe_load(GOOD)
    document["spec"]["nodePools"] = document["spec"]["nodePools"][:1]
    path.write_text(yaml.safe_dump(document))
    scenario = load(path)
    assert settings_of(scenario, path, {}).start is StartMode.SETTLED
    herd = find("thundering-herd")
    assert settings_of(load(herd), herd, {}).start is StartMode.COLD
    assert settings_of(load(herd), herd, {"start": "settled"}).start is StartMode.SETTLED
    settings = settings_of(scenario, path, {"nodes": 6, "seed": 3, "profile": ()})
    assert (settings.nodes, settings.seed) == (6, 3)
    with pytest.raises(UsageError, match="--duration: a scenario says itself"):
        settings_of(scenario, path, {"duration": "5m"})
    with pytest.raises(UsageError, match="Partition needs connections of the nodes' own"):
        settings_of(scenario, path, {"fidelity": "light"})
    shard = settings_of(scenario, path, {"shard": 1, "nodes": 5, "run_id": "r"})
    assert (shard.nodes_of_run, shard.shards_wanted, shard.follows) == (20, 4, True)
    with pytest.raises(UsageError, match="--shard: say how many --nodes a shard has"):
        settings_of(scenario, path, {"shard": 1, "nodes": 5})


def test_a_scenario_that_is_not_there_is_told() -> None:
    with pytest.raises(UsageError, match="did you mean 'zone-outage'"):
        find("zone-outag")
    with pytest.raises(UsageError, match="No such file"):
        load(find("./none.yaml"))


def test_the_schema_knows_every_key_of_what_ships() -> None:
    validator = Draft202012Validator(orjson.loads(orjson.dumps(json_schema())))  # as it is printed
    for text in (GOOD, *(path.read_text() for path in shipped().values())):
        assert not [*validator.iter_errors(yaml.safe_load(text))]
    for wrong in (broken("seed: 7", "seeds: 7"), broken("      zone: b", "      zoen: b")):
        assert [*validator.iter_errors(yaml.safe_load(wrong))]


def test_the_forecast_counts_nodes_objects_and_pods() -> None:
    mix = load_mix()
    [(leases, renewals), (statuses, reports)] = idle(2_000, mix)
    assert (leases, statuses) == ("PUT leases", "PATCH nodes/status")
    assert 195 < renewals < 200  # each 10 s and up to 4 % more
    assert 6 < reports < 7  # each 5 minutes
    scenario = load(find("rolling-update"))
    told = forecast(scenario, find("rolling-update"), 50, mix, light=False).splitlines()
    assert "            1 Deployment with 300 pods (deploy)" in told
    assert any("300 pods: POST events 1,200" in each for each in told)
    churn = load(find("pod-churn"))
    told = forecast(churn, find("pod-churn"), 100, mix, light=True).splitlines()
    assert "            100 Pod at a time (churn)" in told
    assert told[-1].endswith("POST Pod and DELETE Pod 5/s of fleet's own")
    mix.choose_version("", V1_36.newest)
    herd = load(find("thundering-herd"))
    told = forecast(herd, find("thundering-herd"), 100, mix, light=False).splitlines()
    assert "  open      100 connections, 500 watches" in told
    starts = [each.partition(":")[0].strip() for each in told if "restart" in each]
    assert starts == ["herd      100 kubelets restart", "herd      50 kubelets restart"]
    assert any("POST events 600," in each for each in told)
    told = forecast(herd, find("thundering-herd"), 300, mix, light=False).splitlines()
    [crowd] = [each for each in told if "300 kubelets" in each]
    assert "300 kubelets restart, a crowd for two cores: " in crowd
    assert "POST events 2,400, " in crowd
    assert any("150 kubelets restart: " in each for each in told)
    assert not any("WATCH" in e for e in forecast(herd, Path(), 9, mix, light=True).splitlines())


@pytest.mark.parametrize(
    ("release", "watches", "starts"),
    [(V1_34, 500, "WATCH 500, LIST 500,"), (V1_36, 500, "WATCH 500,"), (V1_37, 600, "WATCH 600,")],
    ids=["1.34", "1.36", "1.37"],
)
def test_the_forecast_counts_watches_as_kubelets_of_the_minor_have(
    release: Release, watches: int, starts: str
) -> None:
    mix = load_mix()
    mix.choose_version("", release.newest)
    path = find("thundering-herd")
    told = forecast(load(path), path, 100, mix, light=False)
    assert f"  open      100 connections, {watches} watches" in told
    assert f"100 kubelets restart: {starts} POST events 600" in told


IN_USE = """\
apiVersion: fleet.emulator/v1alpha1
kind: Scenario
metadata: {name: in-use}
spec:
  nodePools: [{name: main, replicas: 20}]
  phases:
  - name: load
    preparation: true
    apply:
    - podsPerNode: 3
      manifest:
        {apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 4}}
    until: {condition: PodsReady, timeout: 2m}
  - name: use
    duration: 1m
    churn:
    - {ratePerNode: 0.1, lifetime: 5s, manifest: {apiVersion: v1, kind: Pod, metadata: {name: p}}}
"""


class Cluster:
    """Starts the pods of an object a while after it was created; keeps what there was when."""

    def __init__(self, now_s: Callable[[], float], takes_s: float) -> None:
        self._now_s, self._takes_s = now_s, takes_s
        self.made: dict[str, float] = {}
        self.unready_max = 0
        self.deleted = 0

    def unready(self) -> int:
        return sum(at_s + self._takes_s > self._now_s() for at_s in self.made.values())

    async def apply(self, wanted: Named) -> Created:
        self.made[wanted.name] = self._now_s()
        self.unready_max = max(self.unready_max, self.unready())
        return Created(wanted.name, "uid", wanted.manifest)

    async def is_ready(self, created: Created) -> bool:
        return self.made[created.path] + self._takes_s <= self._now_s()

    async def delete(self, _created: Created) -> None:
        self.deleted += 1

    async def ready(self) -> tuple[int, int]:
        return len(self.made) - self.unready(), len(self.made)


def played(text: str, nodes: int, takes_s: float) -> tuple[Cluster, list[float], ScenarioPlayer]:
    """Play a scenario in virtual time; return the cluster, and when the run became steady."""
    now_s = 0.0
    due: list[tuple[float, int, asyncio.Event]] = []
    turns = count()

    async def sleep(seconds: float) -> None:
        heapq.heappush(due, (now_s + seconds, next(turns), woken := asyncio.Event()))
        await woken.wait()

    player = ScenarioPlayer(parse(text, "s.yaml"), Path("s.yaml"), sleep=sleep)
    cluster, steady = Cluster(lambda: now_s, takes_s), list[float]()

    async def note_steady() -> None:
        steady.append(now_s)

    stage = Stage(
        cast("FaultControl", None),
        lambda: now_s,
        lambda: nodes,
        nodes,
        lambda _: None,
        lambda _: None,
        cast("Applied", cluster),
        note_steady,
    )

    async def play() -> None:
        nonlocal now_s
        playing = asyncio.ensure_future(player.play(stage))
        while not playing.done():
            for _ in range(200):
                await asyncio.sleep(0)
            if due:
                now_s, _, woken = heapq.heappop(due)
                woken.set()
        await playing

    asyncio.run(play())
    return cluster, steady, player


def test_pods_per_node_come_as_they_start_and_prepare_the_run() -> None:
    """60 pods for each 20 nodes are 15 Deployments of four; two a second and 20 nodes churn."""
    cluster, steady, player = played(IN_USE, 20, takes_s=0.5)
    webs = [name for name in cluster.made if name.startswith("web-")]
    assert len(webs) == 15
    assert player.prepares
    assert [each.is_met for each in player.expectations] == [True]
    [ready_s] = steady
    assert max(cluster.made[each] for each in webs) < ready_s
    churned = len(cluster.made) - len(webs)
    assert 115 <= churned == cluster.deleted <= 120


def test_pods_that_start_slowly_hold_the_load_back_until_its_time_is_over() -> None:
    """Of 750 Deployments at most 32 are not Ready, so that two minutes are too short."""
    cluster, _, player = played(IN_USE.replace("duration: 1m", "duration: 1s"), 1_000, takes_s=10.0)
    webs = [at_s for name, at_s in cluster.made.items() if name.startswith("web-")]
    assert 9 * AT_ONCE_MAX < len(webs) <= 13 * AT_ONCE_MAX
    assert max(webs) <= 120
    [load] = player.expectations
    assert not load.is_met
    left = 4 * (750 - len(webs))  # pods; the cluster of this test counts a Deployment as one
    assert f" of {len(webs) + left} pods Ready after 12" in load.detail


def test_a_load_that_nothing_waits_for_is_whole_though_its_pods_start_slowly() -> None:
    text = IN_USE.replace("    until: {condition: PodsReady, timeout: 2m}\n", "    duration: 1s\n")
    cluster, _, _ = played(text.replace("duration: 1m", "duration: 1s"), 1_000, takes_s=1e6)
    webs = [at_s for name, at_s in cluster.made.items() if name.startswith("web-")]
    assert len(webs) == 750
    assert sum(at_s < 300 for at_s in webs) == AT_ONCE_MAX


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("podsPerNode: 3", "podsPerNode: 3\n      count: 2", "takes a count or podsPerNode"),
        ("ratePerNode: 0.1,", "ratePerNode: 0.1, rate: 2,", "takes a rate or ratePerNode"),
        ("  - name: use\n", "  - name: use\n    preparation: true\n", "another follows them"),
        ("podsPerNode: 3", "podsPerNode: 0", "podsPerNode"),
    ],
)
def test_a_workload_per_node_that_contradicts_itself_is_refused(
    old: str, new: str, told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        parse(IN_USE.replace(old, new), "s.yaml")


def test_pods_per_node_need_objects_that_say_how_many_pods_they_have() -> None:
    scenario = parse(IN_USE.replace("kind: Deployment", "kind: Job"), "s.yaml")
    with pytest.raises(UsageError, match=r"^s\.yaml: podsPerNode: these objects do not say"):
        ScenarioPlayer(scenario, Path("s.yaml"))


def test_the_forecast_of_a_workload_per_node_follows_the_number_of_nodes() -> None:
    scenario = parse(IN_USE, "s.yaml")

    def forecast_of(nodes: int) -> list[str]:
        return forecast(scenario, Path("s.yaml"), nodes, load_mix(), light=False).splitlines()

    lines = forecast_of(40)
    assert "            30 Deployment with 120 pods (load)" in lines
    assert "            20 Pod at a time (use)" in lines
    [etcd] = [each for each in forecast_of(4_000) if each.startswith("  etcd")]
    assert etcd == "  etcd      134 MB of objects, up to 459 MB of history before compaction"
    told = time_line(scenario, 40)
    assert "apply 3 pods per node by Deployment web" in told
    assert "churn Pod p, 4/s, each for 5s" in told


def test_the_player_says_which_phase_it_plays_and_what_it_waits_for() -> None:
    """In virtual time: a rest of 120 s, then a wait for nodes that come after 40 s."""
    text = GOOD.replace("profile: ./big.yaml, ", "").partition("    faults:")[0]
    text += "  - name: two\n    until: {condition: NodesReady, timeout: 5m}\n"
    now_s = 0.0
    seen: dict[float, str] = {}

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        seen.setdefault(now_s, player.progress(now_s))
        now_s += min(seconds, 10.0)
        await asyncio.sleep(0)
        if seconds > 10.0:
            await sleep(seconds - 10.0)

    player = ScenarioPlayer(parse(text, "good.yaml"), Path("good.yaml"), sleep=sleep)
    stage = Stage(
        cast("FaultControl", None),
        lambda: now_s,
        lambda: 30 if now_s > 160 else 12,
        30,
        lambda _: None,
        lambda _: None,
        cast("Applied", None),
        cast("Callable[[], Awaitable[None]]", None),
    )
    assert player.progress(0.0) == ""
    asyncio.run(player.play(stage))
    assert seen[0.0] == "phase 1 of 2, one: 2:00 left"
    assert seen[110.0] == "phase 1 of 2, one: 0:10 left"
    waits = [each for each in seen.values() if "two" in each]
    assert "phase 2 of 2, two: 12 of 30 nodes Ready, gives up in 4:59" in waits
    assert player.progress(now_s) == ""
