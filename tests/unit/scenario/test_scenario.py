"""Scenario files: what they say, when it happens, and what is told of those that are wrong."""

from pathlib import Path

import pytest
import yaml

from fleet.errors import UsageError
from fleet.faults.fault import FaultType
from fleet.run.scenario_command import settings_of
from fleet.scenario.scenario import find, load, parse, shipped
from fleet.scenario.time_line import time_line

GOOD = """\
apiVersion: fleet.emulator/v1alpha1
kind: Scenario
metadata: {name: good}
spec:
  seed: 7
  nodePools:
  - {name: main, replicas: 20}
  - {name: extra, profile: ./big.yaml, replicas: 10}
  phases:
  - name: one
    duration: 2m
    faults:
    - type: Partition
      zone: b
      at: 30s
      duration: 1m
    - {type: KubeletRestart, share: 0.25}
  - name: two
    until: {condition: NodesReady, timeout: 5m}
  expectations:
  - {sli: FalseNotReadyNodes, max: 3}
"""


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
        (broken("  seed: 7", "  seed: [7"), "x:6: is not one YAML document"),
        (GOOD + "---\n" + GOOD, "x:22: is not one YAML document: but found another"),
        (broken("v1alpha1", "v1"), "x:1: apiVersion: 'fleet.emulator/v1' is not one of"),
        (broken("metadata: {name: good}\n", ""), "x:1: metadata: is required"),
        (broken("name: good", "name: Bad!"), "x:3: metadata.name: 'Bad!' is not a DNS label"),
        (broken("  seed: 7", "  seeds: 7"), "x:5: spec: unknown key 'seeds'; did you mean 'seed'"),
        (broken("  seed: 7", "  seed: -1"), "x:5: spec.seed: -1: "),
        (broken("replicas: 20", "replicas: 0"), "x:7: spec.nodePools[0].replicas: 0: "),
        (broken("replicas: 20", "count: 20"), "x:7: spec.nodePools[0].replicas: is required"),
        (broken("name: extra", "name: main"), "x:4: spec: nodePools: 2 are named 'main'"),
        (broken("name: two", "name: one"), "x:4: spec: phases: 2 are named 'one'"),
        (broken("duration: 2m", "duration: long"), "x:11: spec.phases[0].duration: 'long' is not"),
        (broken("duration: 2m", "duration: -2m"), "x:11: spec.phases[0].duration: '-2m' is neg"),
        (broken("duration: 2m", "duration: 20s"), "x:10: spec.phases[0]: a fault at 30s is not"),
        (broken("type: Partition", "type: Parting"), "x:13: spec.phases[0].faults[0].type: 'Part"),
        (broken("      zone: b", "      zoen: b"), "x:14: spec.phases[0].faults[0]: unknown key"),
        (
            broken("      zone: b", "      by: 5s"),
            "x:13: spec.phases[0].faults[0]: Partition takes",
        ),
        (
            broken("      zone: b", "      mode: Half"),
            "x:14: spec.phases[0].faults[0].mode: 'Half'",
        ),
        (broken("at: 30s", "at: 30"), "x:15: spec.phases[0].faults[0].at: 30 is not a duration"),
        (broken("duration: 1m", "duration: 0s"), "x:13: spec.phases[0].faults[0]: duration must"),
        (broken("share: 0.25", "share: 1.5"), "x:17: spec.phases[0].faults[1].share: 1.5: "),
        (
            broken("share: 0.25", "duration: 5s"),
            "x:17: spec.phases[0].faults[1]: KubeletRestart is over at once",
        ),
        (broken("type: Partition", "type: ClockSkew"), "faults[0]: ClockSkew needs by"),
        (
            broken("condition: NodesReady", "condition: Peace"),
            "x:19: spec.phases[1].until.condition: 'Peace' is not one of 'NodesReady'",
        ),
        (
            broken("    until: {condition: NodesReady, timeout: 5m}\n", ""),
            "x:18: spec.phases[1]: needs a duration",
        ),
        (broken("FalseNotReadyNodes", "Luck"), "x:21: spec.expectations[0]: sli: 'Luck' is not"),
        (broken("max: 3", "max: 3s"), "x:21: spec.expectations[0]: max: '3s' is not a number"),
        (broken("max: 3", "min: 3"), "x:21: spec.expectations[0]"),
    ],
)
def test_what_is_wrong_is_told_with_file_line_and_path(text: str, told: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text, "x")
    assert told.removeprefix("x::") in str(raised.value)
    assert "\n" not in str(raised.value)


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
    settings = settings_of(scenario, path, {"nodes": 6, "seed": 3, "profile": ()})
    assert (settings.nodes, settings.seed) == (6, 3)
    with pytest.raises(UsageError, match="--duration: a scenario says itself"):
        settings_of(scenario, path, {"duration": "5m"})
    with pytest.raises(UsageError, match="Partition needs connections of the nodes' own"):
        settings_of(scenario, path, {"fidelity": "light"})


def test_a_scenario_that_is_not_there_is_told() -> None:
    with pytest.raises(UsageError, match="did you mean 'zone-outage'"):
        find("zone-outag")
    with pytest.raises(UsageError, match="No such file"):
        load(find("./none.yaml"))
