"""What a node's server counts of its requests."""

import pytest

from fleet.k8s.effects import NodeId
from fleet.server.counts import HttpCounts, bucket
from fleet.server.exposition import page_text


@pytest.mark.parametrize(
    ("path", "counted"),
    [("/pods", "pods"), ("/healthz/ping", "healthz"), ("/metrics", "metrics"), ("/", "other"),
     ("/metrics/resource", "metrics/resource"), ("/metrics/nope", "other"),
     ("/exec/a/b/c", "exec"), ("/debug/pprof/heap", "debug"), ("/wp-admin", "other")],
)  # fmt: skip
def test_paths_are_counted_by_their_root(path: str, counted: str) -> None:
    assert bucket(path) == counted


def lines_of(counts: HttpCounts, node: int, name: str) -> list[str]:
    """Return the series of a metric, without its name."""
    lines = page_text("/metrics", counts.rows(NodeId(node))).decode().splitlines()
    return [each.removeprefix(name) for each in lines if each.startswith(f"{name}{{")]


def labels(method: str, path: str, kind: str = "readwrite", *, is_long: bool = False) -> str:
    long = str(is_long).lower()
    return f'{{long_running="{long}",method="{method}",path="{path}",server_type="{kind}"}}'


def test_each_node_has_its_own() -> None:
    counts = HttpCounts()
    for took_s in (0.001, 0.02, 7):
        counts.end(counts.begin(NodeId(1), "GET", "/metrics/resource", is_read_only=False), took_s)
    held = counts.begin(NodeId(1), "BREW", "/exec/a/b/c", is_read_only=False)
    counts.end(counts.begin(NodeId(2), "GET", "/pods", is_read_only=True), 0)
    scraped, other = labels("GET", "metrics/resource"), labels("other", "exec", is_long=True)
    total, inflight = "kubelet_http_requests_total", "kubelet_http_inflight_requests"
    assert lines_of(counts, 1, total) == [f"{scraped} 3", f"{other} 1"]
    assert lines_of(counts, 1, inflight) == [f"{scraped} 0", f"{other} 1"]
    assert lines_of(counts, 2, total) == [f"{labels('GET', 'pods', 'readonly')} 1"]
    assert counts.rows(NodeId(3)) == {"served": []}
    counts.end(held, 60)
    assert lines_of(counts, 1, inflight) == [f"{scraped} 0", f"{other} 0"]


def test_how_long_requests_took_is_cumulative() -> None:
    counts = HttpCounts()
    for took_s in (0.001, 0.02, 7):
        counts.end(counts.begin(NodeId(1), "GET", "/pods", is_read_only=False), took_s)
    name = "kubelet_http_requests_duration_seconds"
    buckets = lines_of(counts, 1, f"{name}_bucket")
    counted = [int(line.rpartition(" ")[2]) for line in buckets]
    assert counted == [1, 1, *[2] * 8, 3, 3]
    assert 'le="+Inf"' in buckets[-1]
    shown = labels("GET", "pods")
    assert lines_of(counts, 1, f"{name}_sum") == [f"{shown} 7.021"]
    assert lines_of(counts, 1, f"{name}_count") == [f"{shown} 3"]
