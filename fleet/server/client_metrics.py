"""What a node's /metrics shows of its API client: how often it asked, and how long that took.

Source: component-base/metrics/prometheus/restclient/metrics.go.
Differs: durations are kept from the first time that the node's /metrics was asked, since a node
that nobody asks is to hold nothing of them. Sizes, the limiter's waits and what Go's transports do
are not shown.
"""

from fleet.k8s.effects import NodeId
from fleet.kubelet.stats.exposition import Family, durations_text, text_of
from fleet.reactor.client_tally import ClientColumns, ClientTally
from fleet.reactor.reactor import Reactor

REQUESTS = Family(
    "rest_client_requests_total",
    "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.",
    "counter",
    ("code", "host", "method"),
)
DURATIONS = Family(
    "rest_client_request_duration_seconds",
    "[ALPHA] Request latency in seconds. Broken down by verb, and host.",
    "histogram",
    ("host", "verb"),
)


def client_metrics(reactor: Reactor, node: NodeId) -> bytes:
    """Return what is shown of a node's requests, and begin to time them. On the reactor's loop."""
    tally = reactor.entries[node].client
    if tally.took is None:
        tally.took = {}
    return client_text(reactor.clients, tally, reactor.wires.authority).encode()


def client_text(columns: ClientColumns, tally: ClientTally, host: str) -> str:
    """Return the text of both, of requests to a server at `host`."""
    rows = [((code, host, method), count) for code, method, count in columns.rows(tally)]
    took = [
        (f'host="{host}",verb="{method}"', each)
        for method, each in sorted((tally.took or {}).items())
    ]
    return durations_text(DURATIONS, took) + text_of(REQUESTS, rows)
