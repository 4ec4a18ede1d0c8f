"""What each node's server counts of its own requests, for /metrics. On the servers' loop alone.

Source: pkg/kubelet/server/metrics/metrics.go; pkg/kubelet/server/server.go, ServeHTTP.
Differs: durations are not counted; a restarted kubelet goes on counting.
"""

from fleet.objects.effects import NodeId
from fleet.server.routes import Endpoint

METHODS = frozenset(("OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"))
BUCKETS = frozenset(map(str, Endpoint))
LONG_RUNNING = frozenset(("exec", "attach", "portforward", "debug"))
"""As upstream has it, `portForward` is none: the names are compared as they are written."""
HEAD = (
    "# HELP kubelet_http_requests_total [ALPHA] Number of the http requests received since the "
    "server started\n# TYPE kubelet_http_requests_total counter\n"
)


class HttpCounts:
    """Requests by node, method, path and kind of server. A node that nobody asked has none."""

    __slots__ = ("_nodes",)

    def __init__(self) -> None:
        self._nodes: dict[NodeId, dict[tuple[str, str, str], int]] = {}

    def count(self, node: NodeId, method: str, path: str, *, is_read_only: bool) -> None:
        """Count one request."""
        counts = self._nodes.setdefault(node, {})
        kind = "readonly" if is_read_only else "readwrite"
        key = (method if method in METHODS else "other", bucket(path), kind)
        counts[key] = counts.get(key, 0) + 1

    def text(self, node: NodeId) -> bytes:
        """Return what /metrics shows of it."""
        lines = [
            f'kubelet_http_requests_total{{long_running="{str(path in LONG_RUNNING).lower()}",'
            f'method="{method}",path="{path}",server_type="{kind}"}} {count}\n'
            for (method, path, kind), count in sorted(self._nodes.get(node, {}).items())
        ]
        return (HEAD + "".join(lines)).encode() if lines else b""


def bucket(path: str) -> str:
    """Return what a path is counted as. Source: getURLRootPath, getMetricBucket."""
    first, _, rest = path.lstrip("/").partition("/")
    if first == "metrics" and rest:
        first = f"metrics/{rest.partition('/')[0]}"
    return first if first in BUCKETS else "other"
