"""What each node's server counts of its own requests, for /metrics. On the servers' loop alone.

Source: pkg/kubelet/server/metrics/metrics.go; pkg/kubelet/server/server.go, ServeHTTP.
Differs: a restarted kubelet goes on counting.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from fleet.clock import NS_PER_S
from fleet.k8s.effects import NodeId
from fleet.kubelet.node_facts import DEFAULT_BOUNDS, Durations
from fleet.server.exposition import Row, Rows
from fleet.server.routes import Endpoint

METHODS = frozenset(("OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"))
BUCKETS = frozenset(map(str, Endpoint))
LONG_RUNNING = frozenset(("exec", "attach", "portforward", "debug"))
"""As upstream has it, `portForward` is none: the names are compared as they are written."""
Key = tuple[str, str, str, str]
"""Whether they run long, the method, the path, the kind of server."""


@dataclass(slots=True)
class Requests:
    """Requests of one kind to one node."""

    took: Durations  # of those that were answered
    inflight: int = 0


class HttpCounts:
    """Requests by node, method, path and kind of server. A node that nobody asked has none."""

    __slots__ = ("_keys", "_nodes")

    def __init__(self) -> None:
        self._nodes: dict[NodeId, dict[Key, Requests]] = {}
        self._keys: dict[Key, Key] = {}  # one copy for all nodes

    def begin(self, node: NodeId, method: str, path: str, *, is_read_only: bool) -> Requests:
        """Count a request that came; it is to be ended."""
        found = bucket(path)
        key = (
            str(found in LONG_RUNNING).lower(),
            method if method in METHODS else "other",
            found,
            "readonly" if is_read_only else "readwrite",
        )
        key = self._keys.setdefault(key, key)
        counts = self._nodes.setdefault(node, {})
        requests = counts.get(key)
        if requests is None:
            requests = counts[key] = Requests(Durations(DEFAULT_BOUNDS))
        requests.inflight += 1
        return requests

    def end(self, requests: Requests, took_s: float) -> None:
        """Count that a request was answered, or given up."""
        requests.inflight -= 1
        requests.took.add(round(took_s * NS_PER_S))

    def rows(self, node: NodeId) -> Rows:
        """Return what /metrics shows of a node."""
        return {"served": list(self._rows(node))}

    def _rows(self, node: NodeId) -> Iterator[Row]:
        for key, requests in sorted(self._nodes.get(node, {}).items(), key=lambda item: item[0]):
            long_running, method, path, server_type = key
            yield {
                "long_running": long_running,
                "method": method,
                "path": path,
                "server_type": server_type,
                "inflight": requests.inflight,
                "took": requests.took,
                "count": requests.inflight + sum(requests.took.counts),
            }


def bucket(path: str) -> str:
    """Return what a path is counted as. Source: getURLRootPath, getMetricBucket."""
    first, _, rest = path.lstrip("/").partition("/")
    if first == "metrics" and rest:
        first = f"metrics/{rest.partition('/')[0]}"
    return first if first in BUCKETS else "other"
