"""`fleet` on a machine whose wall clock steps: by as many seconds as a file says, at SIGUSR2."""

import os
import signal
import sys
import time
from pathlib import Path

CLOCK = "FLEET_CHAOS_CLOCK"
"""Names the file."""
NS_PER_S = 1_000_000_000


def main() -> None:
    """Run fleet's command line by another clock."""
    offset = [0]
    real_ns, path = time.time_ns, Path(os.environ[CLOCK])

    def step(_signal: int, _frame: object) -> None:
        offset[0] = int(float(path.read_text()) * NS_PER_S)

    signal.signal(signal.SIGUSR2, step)
    time.time_ns = lambda: real_ns() + offset[0]
    time.time = lambda: time.time_ns() / NS_PER_S
    from fleet.cli import main as fleet_main  # noqa: PLC0415 - its clock is read at the import

    sys.argv[0] = "fleet"
    fleet_main()


if __name__ == "__main__":
    main()
