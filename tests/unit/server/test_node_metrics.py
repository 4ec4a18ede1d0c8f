"""The summary and the metrics of a node, as clients read them."""

import re

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families
from stats_world import kubelet_of, pod, world_with

from fleet.server.exposition import Rows, page_text
from fleet.server.node_metrics import (
    cadvisor_metrics,
    kubelet_metrics,
    resource_metrics,
    sli_metrics,
)
from fleet.server.routes import CHECKS
from fleet.server.summary import stats_summary

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
NODE_KEYS = (
    *("nodeName", "systemContainers", "startTime", "cpu", "memory", "io", "network", "fs"),
    *("runtime", "rlimit", "swap"),
)
POD_KEYS = (
    *("podRef", "startTime", "containers", "cpu", "memory", "io", "network", "volume"),
    *("ephemeral-storage", "process_stats", "swap"),
)
CONTAINER_KEYS = ("name", "startTime", "cpu", "memory", "io", "rootfs", "logs", "swap")
FS_KEYS = (
    *("time", "availableBytes", "capacityBytes", "usedBytes", "inodesFree", "inodes"),
    "inodesUsed",
)


def summary(*, short: bool = False) -> dict:  # type: ignore[type-arg]
    world = world_with(pod())
    body = stats_summary(kubelet_of(world), world.now_ns, only_cpu_and_memory=short)
    return orjson.loads(body)  # type: ignore[no-any-return]


def test_the_summary_has_the_members_of_v1alpha1_in_their_order() -> None:
    found = summary()
    assert tuple(found) == ("node", "pods")
    assert tuple(found["node"]) == NODE_KEYS
    assert [each["name"] for each in found["node"]["systemContainers"]] == ["kubelet", "pods"]
    assert tuple(found["node"]["fs"]) == FS_KEYS
    (one,) = found["pods"]
    assert tuple(one) == POD_KEYS
    assert tuple(one["containers"][0]) == CONTAINER_KEYS
    assert tuple(one["volume"][0]) == (*FS_KEYS, "name")
    assert one["volume"][0]["name"] == "kube-api-access-9zkmg"
    assert one["podRef"] == {"name": "web", "namespace": "default", "uid": "u-1"}
    assert one["containers"][0]["memory"]["workingSetBytes"] == 16 << 20
    assert {each["memory"]["availableBytes"] for each in (one, *one["containers"])} == {48 << 20}
    assert TIME.fullmatch(one["startTime"])
    assert one["process_stats"] == {"process_count": 2}


def test_the_short_summary_has_cpu_and_memory_only() -> None:
    found = summary(short=True)
    assert tuple(found["node"]) == (
        *("nodeName", "systemContainers", "startTime", "cpu", "memory", "swap"),
    )
    assert tuple(found["pods"][0]["containers"][0]) == (
        *("name", "startTime", "cpu", "memory", "swap"),
    )


def test_resource_metrics_are_parsed_by_the_official_client() -> None:
    world = world_with(pod(), pod("api", "u-2"))
    families = parsed(resource_metrics(kubelet_of(world), world.now_ns))
    first = families["container_memory_working_set_bytes"][0]
    assert first.labels == {"container": "c", "namespace": "default", "pod": "api"}
    assert first.value == 16 << 20
    stamp = world.env.wall_ns(world.now_ns) / 1e9
    assert first.timestamp == pytest.approx(stamp, abs=0.002)
    assert families["container_start_time_seconds"][0].timestamp is None


def test_both_texts_tell_the_same() -> None:
    world = world_with(pod())
    kubelet = kubelet_of(world)
    found = orjson.loads(stats_summary(kubelet, world.now_ns, only_cpu_and_memory=True))
    values = parsed(resource_metrics(kubelet, world.now_ns))
    for kind, told in (("pod", found["pods"][0]), ("node", found["node"])):
        assert one(values[f"{kind}_cpu_usage_seconds"]) == told["cpu"]["usageCoreNanoSeconds"] / 1e9
        assert one(values[f"{kind}_memory_working_set_bytes"]) == told["memory"]["workingSetBytes"]


def test_labels_are_escaped() -> None:
    rows: Rows = {"rejection": [{"reason": 'b"\n\\%', "count": 2}]}
    text = page_text("/metrics", rows).decode()
    assert text.splitlines()[-1] == 'kubelet_admission_rejections_total{reason="b\\"\\n\\\\%"} 2'
    assert page_text("/metrics", {"rejection": []}) == b""


def parsed(text: bytes) -> dict[str, list]:  # type: ignore[type-arg]
    """Return the samples of each family as the official client reads them."""
    families = list(text_string_to_metric_families(text.decode()))
    names = re.findall(r"^# TYPE (\S+)", text.decode(), re.MULTILINE)
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    return {each.name: each.samples for each in families}


def one(samples: list, name: str = "", **labels: str) -> float:  # type: ignore[type-arg]
    """Return the value of the only series with some labels."""
    found = [
        each.value
        for each in samples
        if labels.items() <= each.labels.items() and each.name.endswith(name)
    ]
    assert len(found) == 1, (name, labels, found)
    return float(found[0])


def test_the_kubelets_own_metrics_count_its_pods() -> None:
    world = world_with(pod("a", "u-1"), pod("b", "u-2"))
    found = parsed(kubelet_metrics(kubelet_of(world), world.now_ns))
    assert one(found["kubelet_running_pods"]) == 2
    assert one(found["kubelet_running_containers"], container_state="running") == 2
    assert one(found["kubelet_started_containers"], "_total", container_type="container") == 2
    assert one(found["kubelet_desired_pods"], static="") == 2
    for name in ("pod_start", "pod_start_sli", "pod_start_total"):
        samples = found[f"kubelet_{name}_duration_seconds"]
        assert one(samples, "_count") == 2
        assert 0 < one(samples, "_sum") < 60
        assert one(samples, "_bucket", le="+Inf") == 2
    world.delete("u-1")
    world.delete("u-2")
    world.run(60)
    found = parsed(kubelet_metrics(kubelet_of(world), world.now_ns))
    assert one(found["kubelet_running_pods"]) == 0
    assert one(found["kubelet_started_pods"], "_total") == 2


def test_cadvisors_metrics_agree_with_the_others() -> None:
    world = world_with(pod())
    kubelet = kubelet_of(world)
    found = parsed(cadvisor_metrics(kubelet, world.now_ns))
    resources = parsed(resource_metrics(kubelet, world.now_ns))
    cpu = found["container_cpu_usage_seconds"]
    for labels, name in (
        ({"container": "c"}, "container_cpu_usage_seconds"),
        ({"id": "/"}, "node_cpu_usage_seconds"),
    ):
        assert one(cpu, **labels, cpu="total") == one(resources[name])
    (memory,) = [s for s in found["container_memory_working_set_bytes"] if s.labels["container"]]
    assert memory.value == 16 << 20
    assert set(memory.labels) == {"container", "id", "image", "name", "namespace", "pod"}
    assert memory.labels["id"].startswith("/kubepods.slice/kubepods-besteffort.slice/")
    assert memory.labels["image"] == "docker.io/library/nginx:1"
    assert one(found["container_spec_memory_limit_bytes"]) == 64 << 20
    assert one(found["container_spec_cpu_shares"]) == 102
    (network,) = [s for s in found["container_network_receive_bytes"] if s.labels["pod"]]
    assert network.labels["interface"] == "eth0"
    assert one(found["machine_cpu_cores"]) > 0
    assert one(found["container_scrape_error"]) == 0


def test_the_slis_of_a_healthy_kubelet() -> None:
    world = world_with()
    samples = parsed(sli_metrics(kubelet_of(world), world.now_ns))["kubernetes_healthcheck"]
    assert {each.labels["name"]: each.value for each in samples} == dict.fromkeys(CHECKS, 1)
