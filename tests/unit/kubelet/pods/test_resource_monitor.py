"""What is measured of nodes and pods, and which nodes are watched at all."""

import re
from pathlib import Path

import pytest
import yaml
from world.pod_world import NODE, container, model_of, turn_of

from fleet.clock import NS_PER_S, Draws
from fleet.k8s.pod_template import decode_volumes
from fleet.k8s.pods import ContainerSpec, Pod, PodSpec, PodUid
from fleet.kubelet.containers.stats_provider import node_capacity, node_use, pod_stats, pod_terms
from fleet.kubelet.environment import Environment
from fleet.kubelet.pod_worker import PodWorker, WorkerState
from fleet.kubelet.pods.resource_monitor import (
    _is_active,
    declares_usage,
    images_need_monitor,
    is_always_needed,
)
from fleet.profile.loader import load_mix, parse_documents
from fleet.profile.node_profile import NodeProfile
from fleet.profile.option_types import ProfileChoice
from fleet.profile.pod_behavior import PodBehaviorManifest, select_behavior
from fleet.profile.schema import API_VERSION
from fleet.runtime.runtime import Runtime

GI = 1 << 30
MI = 1 << 20
UID = PodUid("u")
DOCUMENT = Path(__file__).parents[4] / "docs" / "reference" / "profiles.md"


def spec(name: str) -> ContainerSpec:
    return container(name, resources_json=b'{"requests":{"cpu":"1","memory":"100Mi"}}')


def pod(*notes: tuple[str, str], volumes: object = ()) -> Pod:
    return Pod(
        namespace="default",
        name="web",
        uid=UID,
        annotations=notes,
        spec=PodSpec(
            containers=(spec("a"), spec("b")), volumes=decode_volumes({"volumes": volumes})
        ),
    )


@pytest.mark.parametrize("profile", ["default", "large", "gpu", "arm64"])
def test_the_nodes_of_shipped_profiles_are_not_watched_without_need(profile: str) -> None:
    assert not is_always_needed(load_mix((ProfileChoice(profile),)).model_of(0))


@pytest.mark.parametrize(
    "profile",
    [
        {"usage": {"memory": "1Gi"}},
        {"template": {"status": {"capacity": {"memory": "2Gi"}}}},
        {"kubeletConfiguration": {"evictionHard": {"pid.available": "99.9%"}}},
        {
            "kubeletConfiguration": {
                "evictionSoft": {"nodefs.available": "90%"},
                "evictionSoftGracePeriod": {"nodefs.available": "1m"},
            }
        },
    ],
)
def test_nodes_that_default_pods_could_fill_are_watched(profile: dict[str, object]) -> None:
    assert is_always_needed(model_of(**profile))


def test_a_pod_is_watched_that_says_what_it_uses() -> None:
    for note in ("memory-usage", "pids-usage.b", "empty-dir-usage"):
        noted = pod((f"fleet.emulator/{note}", "1Mi"))
        behavior = select_behavior((), (), "default", noted.annotations)
        assert declares_usage(noted, behavior)
    calm = pod(("fleet.emulator/start-delay", "1s"))
    assert not declares_usage(calm, select_behavior((), (), "default", calm.annotations))


def test_a_pod_that_is_being_ended_may_be_evicted_while_its_object_is_there() -> None:
    worker = PodWorker(pod(), 0, state=WorkerState.TERMINATING)
    assert _is_active(worker)
    worker.removed = True
    assert not _is_active(worker)


def test_images_bring_a_node_under_watch() -> None:
    env = Environment(model_of(), Draws(1))
    assert not images_need_monitor(turn_of(env, 0))
    env.images.add(NODE, "registry.example/large:1", 40 * GI, 1)
    assert images_need_monitor(turn_of(env, 0))


def test_what_is_measured_of_a_pod_and_its_node() -> None:
    notes = (
        ("fleet.emulator/memory-usage.a", "300Mi"),
        ("fleet.emulator/cpu-usage.a", "250m"),
        ("fleet.emulator/pids-usage.a", "7"),
        ("fleet.emulator/ephemeral-storage-usage.b", "1Gi"),
        ("fleet.emulator/empty-dir-usage", "2Gi"),
    )
    volumes = [
        {"name": "scratch", "emptyDir": {"sizeLimit": "5Gi"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        {"name": "config", "configMap": {"name": "c"}},
    ]
    used = pod(*notes, volumes=volumes)
    assert [each.size_limit for each in used.spec.volumes] == ["5Gi", "1Gi", ""]
    behavior = select_behavior((), (), "default", used.annotations)
    runtime = Runtime(0, "192.0.2.1", "10.1.2.0/24", Draws(1))
    sandbox = runtime.create_sandbox(used)
    assert sandbox is not None
    assert pod_terms(used, sandbox, behavior, 0, 0) is None
    for each in used.spec.containers:
        runtime.start_container(used, each, behavior, NS_PER_S, 1)
    terms = pod_terms(used, sandbox, behavior, 2 * NS_PER_S, 0)
    assert terms is not None
    stats = pod_stats(terms, 2 * NS_PER_S)
    assert stats.memory == 350 * MI  # b uses half of its request
    assert stats.pids == 7 + 1 + 1  # and the pause process
    assert 3 * GI < stats.ephemeral < 3 * GI + MI
    assert dict(stats.volumes) == {"scratch": 2 * GI}  # the other is in memory
    assert [each.name for each in stats.containers] == ["a", "b"]
    model = model_of(usage={"memory": "2Gi", "ephemeralStorage": "10Gi", "pids": "300"})
    whole, now_ns = node_use(model, [terms], 0, 5 * GI), 2 * NS_PER_S
    assert whole.memory.used(now_ns) == 2 * GI + 350 * MI
    assert whole.pods_memory.used(now_ns) == 350 * MI
    assert 18 * GI < whole.disk.used(now_ns) < 18 * GI + MI
    assert whole.pids.used(now_ns) == 309
    assert whole.memory.capacity == node_capacity(model).memory == 32 * GI


@pytest.mark.parametrize(("version", "available"), [("v1.36.3", 32 * GI), ("v1.37.2", 24 * GI)])
def test_huge_pages_are_not_available_since_1_37(version: str, available: int) -> None:
    capacity = {"hugepages-2Mi": "6Gi", "hugepages-1Gi": "2Gi"}
    model = model_of(kubeletVersion=version, template={"status": {"capacity": capacity}})
    assert node_use(model, (), 0, 0).memory.capacity == available


def test_what_a_container_wrote_stays_when_it_ends() -> None:
    notes = (
        ("fleet.emulator/ephemeral-storage-usage", "1Gi"),
        ("fleet.emulator/memory-usage", "1Gi"),
        ("fleet.emulator/run-time", "5s"),
    )
    ended = pod(*notes)
    behavior = select_behavior((), (), "default", notes)
    runtime = Runtime(0, "192.0.2.1", "10.1.2.0/24", Draws(1))
    sandbox = runtime.create_sandbox(ended)
    assert sandbox is not None
    runtime.start_container(ended, ended.spec.containers[0], behavior, NS_PER_S, 1)
    for advanced in (False, True):
        if advanced:
            runtime.advance(UID, 7 * NS_PER_S, 0)
        terms = pod_terms(ended, sandbox, behavior, 7 * NS_PER_S, 0)
        assert terms is not None
        stats = pod_stats(terms, 7 * NS_PER_S)
        assert (stats.memory, stats.ephemeral) == (0, GI)


def test_the_examples_of_the_documentation_are_accepted() -> None:
    section = DOCUMENT.read_text().partition("### Usage")[2].partition("\n## ")[0]
    section = section.partition("\n### ")[0]
    examples = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    kinds = ("PodBehavior", "PodBehavior", "NodeProfile")
    for kind, example in zip(kinds, examples, strict=True):
        head = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": "example"}}
        (found,) = parse_documents(yaml.safe_dump({**head, **yaml.safe_load(example)}), "docs")
        assert isinstance(found, NodeProfile | PodBehaviorManifest)
        found.compiled()
