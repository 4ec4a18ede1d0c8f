"""Run ids: they name a directory, label nodes, and tell when a run began."""

import datetime as dt

from fleet.clock import NS_PER_S, Draws

LABEL = "fleet.emulator/run"
"""What belongs to a run carries its id in this label."""


def new_run_id(wall_ns: int, seed: int) -> str:
    """Return an id that sorts by time and is a valid label value: 20261121-033617-ab12."""
    stamp = dt.datetime.fromtimestamp(wall_ns // NS_PER_S, dt.UTC)
    return f"{stamp:%Y%m%d-%H%M%S}-{Draws(seed).bits(0, 0, wall_ns) & 0xFFFF:04x}"


def run_started_s(run_id: str) -> int | None:
    """Return when a run began, if its id tells."""
    try:
        stamp = dt.datetime.strptime(run_id[:15], "%Y%m%d-%H%M%S").replace(tzinfo=dt.UTC)
    except ValueError:
        return None
    return int(stamp.timestamp())
