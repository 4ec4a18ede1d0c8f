"""The volume of `make fuzz-server`: stories in virtual time, until so many frames were changed.

Each story (world/fuzzed_story.py) is of a seed, a fidelity and an encoding; in it the frames of the
server are changed by the same Mangler as those of a real API server, and read by fleet's own HTTP/2
codec. A story that does not end well names its seed, with which it can be played again: --first.
"""

import argparse
import contextlib
import io
import itertools
import logging
import sys
from collections import Counter

from world.encodings import ENCODINGS
from world.fuzzed_story import play

MANGLED_S = 900
SHARES = (0.1, 0.3, 0.5)
"""Of the frames that are changed, by seed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=1, help="seed of the first story")
    parser.add_argument("--answers", type=int, default=100_000)
    options = parser.parse_args()
    logging.disable()
    counts: Counter[str] = Counter()
    for seed in itertools.count(options.first):
        share = SHARES[seed % len(SHARES)]
        for light, encoding in itertools.product((False, True), ENCODINGS):
            story = f"seed {seed}, {'light' if light else 'kubelet'}, {encoding}"
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    counts += play(
                        seed, light=light, share=share, encoding=encoding, mangled_s=MANGLED_S
                    )
            except BaseException:
                print(f"{counts.total():,} frames were changed before {story}")
                raise
        print(f"{counts.total():,} frames changed, seeds {options.first} to {seed}", flush=True)
        if counts.total() >= options.answers:
            break
    print("\n".join(f"{count:>8,} {what}" for what, count in sorted(counts.items())))
    print(f"{counts.total():,} frames changed, seeds {options.first} to {seed}: all is well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
