"""Run ids: they name a directory, what API users have, label nodes, and say when a run began."""

import datetime as dt
import hashlib

from fleet.clock import NS_PER_S, Draws

LABEL = "fleet.emulator/run"  # what belongs to a run carries its id in this label
LOAD_LABEL = "fleet.emulator/load"
LOAD = "fleet-load"
DNS_LABEL_MAX = 63


def new_run_id(wall_ns: int, seed: int) -> str:
    """Return an id that sorts by time and is a valid label value: 20261121-033617-ab12."""
    stamp = dt.datetime.fromtimestamp(wall_ns // NS_PER_S, dt.UTC)
    return f"{stamp:%Y%m%d-%H%M%S}-{Draws(seed).bits(0, 0, wall_ns) & 0xFFFF:04x}"


def run_started_s(run_id: str) -> int | None:
    """Return when a run began, if its id says so."""
    try:
        stamp = dt.datetime.strptime(run_id[:15], "%Y%m%d-%H%M%S").replace(tzinfo=dt.UTC)
    except ValueError:
        return None
    return int(stamp.timestamp())


def load_name(run: str) -> str:
    """Return the name of the namespace of a run's API users, and of what they may do."""
    if not run:
        return LOAD
    name = f"{LOAD}-{run}"
    if "." in run or len(name) > DNS_LABEL_MAX:
        name = f"{LOAD}-{hashlib.sha256(run.encode()).hexdigest()[:12]}"
    return name
