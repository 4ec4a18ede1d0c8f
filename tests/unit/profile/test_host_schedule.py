"""What profiles say about outages, shutdown and static pods, compiled."""

from pathlib import Path

import yaml
from world.profiles import profile

from fleet.clock import NS_PER_S
from fleet.profile.machine import NETWORK_MESSAGE, NETWORK_REASON, OutageKind

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "profiles.md"


def test_outages_are_compiled_with_what_the_runtime_answers() -> None:
    model = profile(
        runtime={
            "networkReadyDelay": "8s",
            "outages": [{"kind": "RuntimeDown", "from": "1m", "for": "30s", "every": "5m"}],
        }
    )
    late, down = model.outages
    assert late.kind is OutageKind.NETWORK_NOT_READY
    assert late.shown == (NETWORK_REASON, NETWORK_MESSAGE)
    assert late.duration.sample(0.5) == 8 * NS_PER_S
    assert (down.start.sample(0.1), down.every_ns) == (60 * NS_PER_S, 300 * NS_PER_S)


def test_grace_periods_become_groups_lowest_priority_first() -> None:
    grace = {"shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "10s"}
    assert profile(kubeletConfiguration=grace).kubelet.shutdown_grace_by_priority == (
        (0, 20),
        (2_000_000_000, 10),
    )
    by_priority = [
        {"priority": 100, "shutdownGracePeriodSeconds": 5},
        {"priority": 0, "shutdownGracePeriodSeconds": 60},
    ]
    model = profile(kubeletConfiguration={"shutdownGracePeriodByPodPriority": by_priority})
    assert model.kubelet.shutdown_grace_by_priority == ((0, 60), (100, 5))
    assert profile().kubelet.shutdown_grace_by_priority == ()


def test_the_examples_of_the_documentation_are_accepted() -> None:
    text = DOCUMENT.read_text()
    examples = [
        text.partition(heading)[2].partition("```yaml\n")[2].partition("```")[0]
        for heading in ("**Static pods.**", "**runtime** says", "**shutdown** orders")
    ]
    models = [profile(**yaml.safe_load(each)["spec"]) for each in examples]
    assert models[0].kubelet.static_pod_path == "./manifests"
    assert len(models[1].outages) == 3
    assert models[2].shutdown is not None
