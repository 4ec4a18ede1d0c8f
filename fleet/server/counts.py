"""What each node's server counts of its own requests, for /metrics. On the servers' loop alone.

Source: pkg/kubelet/server/metrics/metrics.go; pkg/kubelet/server/server.go, ServeHTTP.
Differs: a restarted kubelet goes on counting.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TypeAlias

from fleet.k8s.effects import NodeId
from fleet.kubelet.stats.exposition import Family, go_float, labels_of
from fleet.kubelet.tally import DEFAULT_BOUNDS
from fleet.server.routes import Endpoint

METHODS = frozenset(("OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"))
BUCKETS = frozenset(map(str, Endpoint))
LONG_RUNNING = frozenset(("exec", "attach", "portforward", "debug"))
"""As upstream has it, `portForward` is none: the names are compared as they are written."""
LABELS = ("long_running", "method", "path", "server_type")
INFLIGHT = Family(
    "kubelet_http_inflight_requests",
    "[ALPHA] Number of the inflight http requests",
    labels=LABELS,
)
DURATIONS = Family(
    "kubelet_http_requests_duration_seconds",
    "[ALPHA] Duration in seconds to serve http requests",
    "histogram",
    LABELS,
)
REQUESTS = Family(
    "kubelet_http_requests_total",
    "[ALPHA] Number of the http requests received since the server started",
    "counter",
    LABELS,
)
BOUNDS = (*map(go_float, DEFAULT_BOUNDS), "+Inf")
Series: TypeAlias = "array[float]"
"""How many are served just now, how long the others took, and these by `BOUNDS`."""
_INFLIGHT, _SUM_S, _BUCKETS = 0, 1, 2
_NOTHING = bytes(8 * (_BUCKETS + len(BOUNDS)))
Key = tuple[str, str, str, str]
"""The values of the labels."""


class HttpCounts:
    """Requests by node, method, path and kind of server. A node that nobody asked has none."""

    __slots__ = ("_keys", "_nodes")

    def __init__(self) -> None:
        self._nodes: dict[NodeId, dict[Key, Series]] = {}
        self._keys: dict[Key, Key] = {}  # one copy for all nodes

    def begin(self, node: NodeId, method: str, path: str, *, is_read_only: bool) -> Series:
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
        series = counts.get(key)
        if series is None:
            series = counts[key] = array("d", _NOTHING)
        series[_INFLIGHT] += 1
        return series

    def end(self, series: Series, took_s: float) -> None:
        """Count that a request was answered, or given up."""
        series[_INFLIGHT] -= 1
        series[_SUM_S] += took_s
        series[_BUCKETS + bisect_left(DEFAULT_BOUNDS, took_s)] += 1

    def text(self, node: NodeId) -> bytes:
        """Return what /metrics shows of it."""
        rows = sorted(self._nodes.get(node, {}).items())
        if not rows:
            return b""

        def family(one: Family, lines: Callable[[Key, Series], Iterator[str]]) -> str:
            return one.head() + "".join(line for row in rows for line in lines(*row))

        return (
            family(INFLIGHT, _inflight) + family(DURATIONS, _durations) + family(REQUESTS, _total)
        ).encode()


def _inflight(key: Key, series: Series) -> Iterator[str]:
    yield f"{INFLIGHT.name}{labels_of(LABELS, key)} {go_float(int(series[_INFLIGHT]))}\n"


def _durations(key: Key, series: Series) -> Iterator[str]:
    below = 0
    for bound, count in zip(BOUNDS, series[_BUCKETS:], strict=True):
        below += int(count)
        labels = labels_of((*LABELS[:1], "le", *LABELS[1:]), (*key[:1], bound, *key[1:]))
        yield f"{DURATIONS.name}_bucket{labels} {go_float(below)}\n"
    yield f"{DURATIONS.name}_sum{labels_of(LABELS, key)} {go_float(series[_SUM_S])}\n"
    yield f"{DURATIONS.name}_count{labels_of(LABELS, key)} {go_float(below)}\n"


def _total(key: Key, series: Series) -> Iterator[str]:
    total = int(series[_INFLIGHT]) + int(sum(series[_BUCKETS:]))
    yield f"{REQUESTS.name}{labels_of(LABELS, key)} {go_float(total)}\n"


def bucket(path: str) -> str:
    """Return what a path is counted as. Source: getURLRootPath, getMetricBucket."""
    first, _, rest = path.lstrip("/").partition("/")
    if first == "metrics" and rest:
        first = f"metrics/{rest.partition('/')[0]}"
    return first if first in BUCKETS else "other"
