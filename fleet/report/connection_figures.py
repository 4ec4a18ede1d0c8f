"""What a run's connections went through, for the summary."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class ConnectionFigures:
    """The connections of all nodes. `retries` are requests that went once more, unseen before."""

    open: int = 0
    dials: int = 0
    dial_failures: int = 0
    goaways: int = 0
    pings_lost: int = 0
    retries: int = 0
    breaches: int = 0
