"""What profiles say about outages, shutdown and static pods: accepted, compiled, refused."""

from pathlib import Path

import pytest
import yaml

from fleet.clock import NS_PER_S
from fleet.errors import UsageError
from fleet.profile.loader import parse_documents
from fleet.profile.machine import NETWORK_MESSAGE, NETWORK_REASON, OutageKind
from fleet.profile.node_model import NodeModel
from fleet.profile.node_profile import NodeProfile

HEAD = {"apiVersion": "fleet.emulator/v1alpha1", "kind": "NodeProfile", "metadata": {"name": "p"}}
DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "profiles.md"


def compiled(**spec: object) -> NodeModel:
    (found,) = parse_documents(yaml.safe_dump({**HEAD, "spec": spec}), "p.yaml")
    assert isinstance(found, NodeProfile)
    return found.compiled()


def refusal(**spec: object) -> str:
    with pytest.raises(UsageError) as caught:
        compiled(**spec)
    return str(caught.value)


def test_outages_are_compiled_with_what_the_runtime_answers() -> None:
    model = compiled(
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
    assert compiled(kubeletConfiguration=grace).kubelet.shutdown_grace_by_priority == (
        (0, 20),
        (2_000_000_000, 10),
    )
    by_priority = [
        {"priority": 100, "shutdownGracePeriodSeconds": 5},
        {"priority": 0, "shutdownGracePeriodSeconds": 60},
    ]
    model = compiled(kubeletConfiguration={"shutdownGracePeriodByPodPriority": by_priority})
    assert model.kubelet.shutdown_grace_by_priority == ((0, 60), (100, 5))
    assert compiled().kubelet.shutdown_grace_by_priority == ()


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"runtime": {"outages": [{"kind": "Fire", "from": "1s", "for": "1s"}]}}, "'Fire'"),
        (
            {
                "runtime": {
                    "outages": [{"kind": "PLEGStall", "from": "1s", "for": "1s", "reason": "r"}]
                }
            },
            "takes no reason",
        ),
        (
            {
                "runtime": {
                    "outages": [{"kind": "RuntimeDown", "from": "1s", "for": "1s", "every": "0s"}]
                }
            },
            "above 0s",
        ),
        ({"shutdown": {"after": "1s", "share": 2}}, "is not at most 1"),
        (
            {"kubeletConfiguration": {"shutdownGracePeriodCriticalPods": "10s"}},
            "shutdownGracePeriod must be >= shutdownGracePeriodCriticalPods",
        ),
        ({"kubeletConfiguration": {"shutdownGracePeriod": "10ms"}}, "either zero or >= 1s"),
    ],
)
def test_what_makes_no_sense_is_refused(spec: dict[str, object], text: str) -> None:
    assert text in refusal(**spec)


def test_the_examples_of_the_documentation_are_accepted() -> None:
    text = DOCUMENT.read_text()
    examples = [
        text.partition(heading)[2].partition("```yaml\n")[2].partition("```")[0]
        for heading in ("**Static pods.**", "**runtime** says", "**shutdown** orders")
    ]
    models = [compiled(**yaml.safe_load(each)["spec"]) for each in examples]
    assert models[0].kubelet.static_pod_path == "./manifests"
    assert len(models[1].outages) == 3
    assert models[2].shutdown is not None
