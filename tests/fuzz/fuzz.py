"""Fuzz codecs and pods: `python tests/fuzz/fuzz.py [TARGET...] [--inputs N] [--first N]`.

Input number n of a target is the same for ever, on every machine. A failure prints the line that
makes it again, and one for found.txt, which is run with the unit tests.
"""

import argparse
import multiprocessing
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from targets import ALL, run_one

BATCH = 5_000


def run_batch(job: tuple[str, int, int]) -> tuple[str, int, str]:
    """Run some inputs; return the story of the first that fails."""
    name, first, count = job
    for number in range(first, first + count):
        try:
            run_one(name, number)
        except Exception:  # noqa: BLE001 - told below
            return name, number - first + 1, traceback.format_exc()
    return name, count, ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=[*ALL], metavar="TARGET")
    parser.add_argument("--inputs", type=int, default=200_000, help="in all")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    each = -(-options.inputs // len(options.targets))
    jobs = [
        (name, options.first + at, min(BATCH, each - at))
        for at in range(0, each, BATCH)
        for name in options.targets
    ]
    start, done, failures = time.monotonic(), 0, 0
    with multiprocessing.Pool(options.processes) as pool:
        for number, (name, count, story) in enumerate(pool.imap_unordered(run_batch, jobs), 1):
            done += count
            if story:
                failures += 1
                print(f"{name}:\n{story}", flush=True)
            if number % 40 == 0:
                took_s = time.monotonic() - start
                print(f"{done:,} inputs in {took_s:,.0f} s, {failures} failures", flush=True)
    print(f"{done:,} inputs in {time.monotonic() - start:,.0f} s, {failures} failures")
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main()
