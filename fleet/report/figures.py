"""What a run measures: each figure is declared once, and all that is made of it follows from that.

A figure is a field of a record below. It says in which words the reference pages and Prometheus
explain it, who counts it, its metric, and by its kind how the processes of a run add up and what
the time series has of it. Its key in summary.json is the field's name unless it says another.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from fleet.metrics import Histogram, Requests
from fleet.report.figure import (
    Figure,
    Kind,
    count,
    derived,
    figure,
    figures_of,
    histogram,
    made,
    moment,
    state,
)
from fleet.wire.sockets.dials import TransportStats

AGENT = ("agent",)
REQUEST = ("verb", "resource", "code")


@dataclass(slots=True, kw_only=True)
class NodeFigures:
    """Nodes of the run."""

    requested: int = state("as `--nodes` asked", in_series=False)
    registered: int = state("Nodes that the server took", "registered")
    ready: int = state(
        "nodes that another client's watch saw Ready without the not-ready taint, at the end"
    )
    time_to_ready_s: float | None = moment("from the first kubelet's start until all were")
    time_to_settled_s: float | None = moment(
        "from the first kubelet's start until all watches were open; `null` where nodes share them"
    )
    ever_not_ready: int = state("nodes that were Ready and whose condition then was not")


@dataclass(slots=True, kw_only=True)
class LeaseFigures:
    """Heartbeats."""

    renewals: int = count("renewals of Leases that the server took", "renewals", "lease_renewals")
    interval_max_s: float = moment(
        "the longest between two renewals of one node", "lease_interval_ns_max", default=0.0
    )
    late: Histogram = histogram(
        "how long after its due time a renewal was sent",
        *("lease_late", "lease_lateness_seconds"),
        locust=("LEASE", "lateness"),
        has_max=True,
    )
    missed: int = count(
        "renewals that came later than the Lease's duration", "leases_missed", "leases_missed"
    )


@dataclass(slots=True, kw_only=True)
class PodFigures:
    """Pods."""

    started: int = count("pods that the server knows Running", "pods_running", "pods_started")
    deleted: int = count("pods that are gone", "pods_removed", "pods_removed")
    started_per_s_max: float = state(
        "the most pods that became Running in a second, over five of them",
        default=0.0,
        in_series=False,
    )
    start: Histogram = histogram(
        "from a pod first seen to the server's answer to its Running status",
        *("pod_start", "pod_start_seconds"),
        locust=("POD", "startup"),
    )
    start_sli: Histogram = histogram(
        "the same without what the simulated machine takes: sandbox, pulls, starts, hooks",
        *("pod_start_sli", "pod_start_sli_seconds"),
    )
    start_scheduler_p50_ms: float | None = derived(
        "a pod's way through the scheduler, as the scheduler measures it "
        "(`scheduler_pod_scheduling_sli_duration_seconds`)",
        key="start_scheduler_ms.p50",
    )
    start_scheduler_p99_ms: float | None = derived("the same", key="start_scheduler_ms.p99")
    start_api: Histogram = histogram(
        "of `start_ms`, the requests that the start waited for",
        *("pod_start_api", "pod_start_api_seconds"),
    )
    start_fleet: Histogram = histogram(
        "of `start_ms`, the rest: relists and syncs of a kubelet, fleet's own queue and lag",
        *("pod_start_fleet", "pod_start_fleet_seconds"),
    )
    start_simulated: Histogram = histogram(
        "of `start_ms`, an input: what the simulated machine takes (sandbox, pulls, starts, hooks)",
        *("pod_start_simulated", "pod_start_simulated_seconds"),
    )
    failed: int = count("pods that ended in phase Failed", "pods_failed", "pods_failed")


@dataclass(slots=True)
class RequestFigures:
    """All requests of one kind."""

    verb: str = figure("", "of each kind of request and answer; a row for each", kind=Kind.FACT)
    resource: str = figure("", "of what", kind=Kind.FACT)
    code: int = figure(0, "of the answer; 0 is none (lost, timed out)", kind=Kind.FACT)
    count: int = count("how many; a watch counts once")
    latency: Histogram = histogram(
        "from the write of the request to the read of the answer; of a watch to its first byte",
        key="ms",
    )


@dataclass(slots=True, kw_only=True)
class EventFigures:
    """Events that kubelets recorded."""

    sent: int = count("Events that the server took")
    dropped: int = count(
        "Events that the spam filter held back", "events_dropped", "events_dropped"
    )


@dataclass(slots=True, kw_only=True)
class WatchFigures:
    """Watches of all nodes."""

    open: int = state("open watches of all nodes", "watches_open", "watches")
    restarts: int = count(
        "watches of all nodes that were opened again", "watch_restarts", "watch_restarts"
    )
    events: int = count(
        "events that the watches of all nodes brought", "watch_events", "watch_events"
    )
    closed_slow: int = count("watches that the server closed because fleet read too slowly")
    delay: Histogram = histogram(
        "from every 4th write of a status to its event on the node's watch: an upper bound",
        *("watch_delay", "watch_delay_seconds"),
    )
    behind: Histogram = histogram(
        "from the answer to the same writes to the event, 0 if it came first: a lower bound",
        *("watch_behind", "watch_behind_seconds"),
    )
    delay_lost: int = count(
        "such writes whose event did not come within a minute", "watch_delay_lost"
    )


@dataclass(slots=True, kw_only=True)
class ConnectionFigures:
    """The connections of all nodes; counted by the transport."""

    open: int = state("TCP connections of the nodes open at the end", "connections")
    dials: int = count("connections that were begun", "dials")
    dial_failures: int = count("dials that failed", "dial_failures")
    goaways: int = count("connections that the server asked to leave (GOAWAY)", "goaways")
    pings_lost: int = count(
        "connections that were given up because they answered no ping", "pings_lost"
    )
    retries: int = count(
        "requests that were sent once more because the server had not seen them", "retries"
    )
    breaches: int = count(
        "connections that fleet closed because the server broke HTTP/2", "breaches"
    )


@dataclass(slots=True, kw_only=True)
class AgentFigures:
    """What the agents of one name did on all nodes; counted by their kind."""

    running: int = state("node agents that run", "agents", "agents", labels=AGENT)
    requests: Requests = made(
        Requests,
        "answers to node agents; code 0 is none",
        *("requests", "agent_requests"),
        labels=AGENT + REQUEST,
    )
    watches_open: int = state(
        "open watches of node agents",
        *("watches_open", "agent_watches"),
        key="watch.open",
        labels=AGENT,
    )
    watch_restarts: int = count(
        "watches of node agents that were opened again", "watch_restarts", key="watch.restarts"
    )
    watch_events: int = count(
        "events that the watches of node agents brought",
        *("watch_events", "agent_watch_events"),
        key="watch.events",
        labels=AGENT,
    )
    received_bytes: int = count(
        "bytes that node agents received",
        metric="agent_received_bytes",
        key="bytes.received",
        labels=AGENT,
    )
    sent_bytes: int = count("bytes that node agents sent", key="bytes.sent")


ByName = Mapping[str, AgentFigures]


@dataclass(slots=True, kw_only=True)
class ProcessFigures:
    """Fleet itself."""

    cpu_s: float = count("CPU of fleet, all its processes", default=0.0)
    rss_bytes: int = state("memory of fleet at the end")
    rss_bytes_per_node: int | None = derived(
        "the same by registered node, the process itself included"
    )
    cpu_us_per_request: float | None = derived("microseconds of CPU by request")
    timer_lag: Histogram = histogram(
        "how late timers fired, the instrument's own error; 20 ms is the least there is",
        *("timer_lag", "timer_lag_seconds"),
    )
    throttled: Histogram = histogram(
        "how long requests waited for a client-side limit, without those that did not wait",
        *("throttled", "throttling_seconds"),
    )
    gc_collections: int = count("collections of Python's garbage")


NODES = Figure(
    "nodes that another client's watch shows Ready without the not-ready taint, and the others",
    metric="nodes",
    kind=Kind.STATE,
    labels=("condition",),
)
KUBELETS = Figure("kubelets that run in this process", metric="kubelets", kind=Kind.STATE)
PODS = Figure(
    "pods on the nodes of this process", metric="pods", kind=Kind.STATE, labels=("phase",)
)
VALID = Figure(
    "0 after a bug in fleet, or a limit of its own that was hit: the figures are worth nothing",
    metric="valid",
    kind=Kind.STATE,
)
OWN_LIMITS = Figure(
    "how often a limit of fleet or of its machine was hit", metric="own_limits", labels=("limit",)
)
ANSWERS = Figure("answers; code 0 is none (lost, timed out)", metric="requests", labels=REQUEST)
LATENCIES = Figure(
    "latency of answers, from the write of the request to the read of the answer",
    metric="request_duration_seconds",
    kind=Kind.HISTOGRAM,
    labels=REQUEST[:2],
)
METRICS = (
    *(NODES, KUBELETS, PODS, VALID, OWN_LIMITS, ANSWERS, LATENCIES),
    Figure(
        "from a kubelet's start to its Node",
        "node_start",
        "node_registration_seconds",
        kind=Kind.HISTOGRAM,
        locust=("NODE", "register"),
    ),
    Figure("kubelets that a fault restarted", "restarts", "kubelet_restarts"),
)
"""Figures that only a scrape has, or that have labels there."""


def of_counts() -> Iterator[Figure]:
    """Yield what is read from `FleetCounts`."""
    parts = (NodeFigures, LeaseFigures, PodFigures, EventFigures, WatchFigures, ProcessFigures)
    listed = chain(METRICS, *(figures_of(part).values() for part in parts))
    return (each for each in listed if each.counter)


def metrics() -> list[Figure]:
    """Return every figure that Prometheus gets."""
    found = dict.fromkeys((*METRICS, *of_counts(), *figures_of(AgentFigures).values()))
    return [each for each in found if each.metric]


def request_figures(requests: Requests) -> list[RequestFigures]:
    """Return one row per verb, resource and code."""
    return [
        RequestFigures(verb, resource, code, histogram.count, histogram)
        for (verb, resource), codes in sorted(requests.rows.items())
        for code, histogram in sorted(codes.items())
    ]


@dataclass(slots=True, frozen=True, kw_only=True)
class HostState:
    """What a host of nodes says when it is asked; readiness is as another client sees it."""

    requested: int  # by the options
    wanted: int  # now: a dashboard changes its mind
    running: int  # kubelets
    present: int  # Nodes
    ready: int
    ever_not_ready: int  # Ready once, then not
    time_to_ready_s: float | None  # None before all were
    time_to_settled_s: float | None  # None before all had their watches open
    held_by: str  # what keeps nodes from starting, "" for nothing
    connections: TransportStats
    closed_slow: int  # watches that ended because we read too slowly
    agents: ByName
    unregistered: Counter[str]  # nodes that could not register until now, by the reason
    own_limits: Counter[str]  # how often which limit of fleet or its machine was hit
    rejected: Counter[str]  # what the server sent and nobody can read
