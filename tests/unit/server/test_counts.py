"""What a node's server counts of its requests."""

import pytest

from fleet.objects.effects import NodeId
from fleet.server.counts import HEAD, HttpCounts, bucket


@pytest.mark.parametrize(
    ("path", "counted"),
    [("/pods", "pods"), ("/healthz/ping", "healthz"), ("/metrics", "metrics"), ("/", "other"),
     ("/metrics/resource", "metrics/resource"), ("/metrics/nope", "other"),
     ("/exec/a/b/c", "exec"), ("/debug/pprof/heap", "debug"), ("/wp-admin", "other")],
)  # fmt: skip
def test_paths_are_counted_by_their_root(path: str, counted: str) -> None:
    assert bucket(path) == counted


def test_each_node_has_its_own() -> None:
    counts = HttpCounts()
    for _ in range(3):
        counts.count(NodeId(1), "GET", "/metrics/resource", is_read_only=False)
    counts.count(NodeId(1), "BREW", "/exec/a/b/c", is_read_only=False)
    counts.count(NodeId(2), "GET", "/pods", is_read_only=True)
    total = "kubelet_http_requests_total"
    assert counts.text(NodeId(1)).decode() == (
        f'{HEAD}{total}{{long_running="false",method="GET",path="metrics/resource",'
        f'server_type="readwrite"}} 3\n'
        f'{total}{{long_running="true",method="other",path="exec",server_type="readwrite"}} 1\n'
    )
    assert b'server_type="readonly"} 1' in counts.text(NodeId(2))
    assert counts.text(NodeId(3)) == b""
