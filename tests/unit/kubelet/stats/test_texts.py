"""The summary and the metrics of a node, as clients read them."""

import re

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families
from stats_world import kubelet_of, pod, world_with

from fleet.kubelet.host_interface import resource_metrics, stats_summary
from fleet.kubelet.stats.exposition import Family, go_float, text_of

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


def summary(*, short: bool = False, pods: bool = True) -> dict:  # type: ignore[type-arg]
    world = world_with(*([pod()] if pods else []))
    body = stats_summary(kubelet_of(world), only_cpu_and_memory=short, now_ns=world.now_ns)
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
    assert one["containers"][0]["memory"]["availableBytes"] == 48 << 20
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


def test_a_node_without_pods_lists_none() -> None:
    assert summary(pods=False)["pods"] == []


def test_resource_metrics_are_parsed_by_the_official_client() -> None:
    world = world_with(pod(), pod("api", "u-2"))
    text = resource_metrics(kubelet_of(world), world.now_ns).decode()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    assert list(families) == sorted(families)
    assert set(families) == {
        "container_cpu_usage_seconds",
        "container_memory_working_set_bytes",
        "container_start_time_seconds",
        "container_swap_limit_bytes",
        "container_swap_usage_bytes",
        "node_cpu_usage_seconds",
        "node_memory_working_set_bytes",
        "node_swap_usage_bytes",
        "pod_cpu_usage_seconds",
        "pod_memory_working_set_bytes",
        "pod_swap_usage_bytes",
        "resource_scrape_error",
    }
    first = families["container_memory_working_set_bytes"].samples[0]
    assert first.labels == {"container": "c", "namespace": "default", "pod": "api"}
    assert first.value == 16 << 20
    stamp = world.env.wall_ns(world.now_ns) / 1e9
    assert first.timestamp == pytest.approx(stamp, abs=0.002)
    assert families["container_start_time_seconds"].samples[0].timestamp is None
    assert "# HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed" in text


def test_both_texts_tell_the_same() -> None:
    world = world_with(pod())
    kubelet = kubelet_of(world)
    found = orjson.loads(stats_summary(kubelet, only_cpu_and_memory=True, now_ns=world.now_ns))
    text = resource_metrics(kubelet, world.now_ns).decode()
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    one = found["pods"][0]
    assert values["pod_memory_working_set_bytes"] == one["memory"]["workingSetBytes"]
    assert values["pod_cpu_usage_seconds_total"] == one["cpu"]["usageCoreNanoSeconds"] / 1e9
    node = found["node"]
    assert values["node_cpu_usage_seconds_total"] == node["cpu"]["usageCoreNanoSeconds"] / 1e9
    assert values["node_memory_working_set_bytes"] == node["memory"]["workingSetBytes"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1.5, "1.5"),
        (999_999, "999999"),
        (1_000_000, "1e+06"),
        (1_234_567, "1.234567e+06"),
        (123_456_789, "1.23456789e+08"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (1.797e20, "1.797e+20"),
        (123_456.789, "123456.789"),
        (-1_234_567.89, "-1.23456789e+06"),
        (2e-7, "2e-07"),
        (1_800_000_000.25, "1.80000000025e+09"),
        (float("inf"), "+Inf"),
        (float("nan"), "NaN"),
    ],
)
def test_numbers_are_written_as_go_writes_them(value: float, text: str) -> None:
    assert go_float(value) == text


def test_labels_are_escaped_and_series_sorted() -> None:
    family = Family("x", "Help.", "counter", ("a",))
    text = text_of(family, [(('b"\n\\',), 2), (("a",), 1)])
    assert text == '# HELP x Help.\n# TYPE x counter\nx{a="a"} 1\nx{a="b\\"\\n\\\\"} 2\n'
    assert text_of(family, []) == ""
