"""What node agents did, apart from the kubelets: for the summary, the display and other processes.

agents: {NAME: {running, requests[], watch{open, restarts, events}, bytes{received, sent}}}
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.metrics import Histogram, Requests

Json = dict[str, object]


@dataclass(slots=True, kw_only=True)
class AgentFigures:
    """What the agents of one name did on all nodes."""

    running: int = 0
    requests: Requests = field(default_factory=Requests)
    watches_open: int = 0
    watch_restarts: int = 0
    watch_events: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0

    def add(self, other: "AgentFigures") -> None:
        """Add what the agents of another process did."""
        self.running += other.running
        self.watches_open += other.watches_open
        self.watch_restarts += other.watch_restarts
        self.watch_events += other.watch_events
        self.received_bytes += other.received_bytes
        self.sent_bytes += other.sent_bytes
        for row, codes in other.requests.rows.items():
            mine = self.requests.rows.setdefault(row, {})
            for code, histogram in codes.items():
                mine.setdefault(code, Histogram()).merge(histogram)


ByName = Mapping[str, AgentFigures]


def merge_agents(runs: Iterable[ByName]) -> ByName:
    """Return the figures of several processes as one."""
    total: dict[str, AgentFigures] = {}
    for run in runs:
        for name, figures in run.items():
            total.setdefault(name, AgentFigures()).add(figures)
    return total


def agents_json(agents: ByName) -> Json:
    """Return the key `agents` of a summary."""
    return {name: _json(figures) for name, figures in sorted(agents.items())}


def agent_rates(
    agents: ByName, rate: Callable[[str, float, float], float], elapsed_s: float
) -> Json:
    """Return events, requests and bytes of each name per second; `rate` remembers the last."""
    return {
        name: {
            key: rate(f"agents {name} {key}", value, elapsed_s)
            for key, value in (
                ("requests", each.requests.total),
                ("events", each.watch_events),
                ("received_bytes", each.received_bytes),
            )
        }
        for name, each in sorted(agents.items())
    }


def agent_rows(agents: ByName) -> list[tuple[str, str]]:
    """Return a label and words for each name."""
    return [(name, _words(each)) for name, each in sorted(agents.items())]


def _words(figures: AgentFigures) -> str:
    return (
        f"{figures.running:,} running, {figures.watches_open:,} watches open, "
        f"{figures.watch_events:,} events, {figures.requests.total:,} requests, "
        f"{figures.received_bytes / 1e6:,.1f} MB received"
    )


def _json(figures: AgentFigures) -> Json:
    return {
        "running": figures.running,
        "requests": _requests(figures.requests),
        "watch": {
            "open": figures.watches_open,
            "restarts": figures.watch_restarts,
            "events": figures.watch_events,
        },
        "bytes": {"received": figures.received_bytes, "sent": figures.sent_bytes},
    }


def _requests(requests: Requests) -> Sequence[Json]:
    return [
        {
            "verb": verb,
            "resource": resource,
            "code": code,
            "count": histogram.count,
            "ms": {
                name: histogram.percentile_us(share) / 1000
                for name, share in (("p50", 0.5), ("p99", 0.99))
            },
        }
        for (verb, resource), codes in sorted(requests.rows.items())
        for code, histogram in sorted(codes.items())
    ]
