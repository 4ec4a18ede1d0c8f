"""How the nodes of a process stand just now: what no counter tells."""

from collections import Counter
from dataclasses import dataclass

from fleet.report.figures import ByName
from fleet.wire.sockets.dials import TransportStats


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
    held_by: str  # what keeps nodes from starting, "" for nothing
    connections: TransportStats
    closed_slow: int  # watches that ended because we read too slowly
    agents: ByName
    unregistered: Counter[str]  # nodes that could not register until now, by the reason
    own_limits: Counter[str]  # how often which limit of fleet or its machine was hit
    rejected: Counter[str]  # what the server sent and nobody can read
