"""What a terminal shows."""

import os
import select
import time

SHOWN_S_MAX = 120.0


def read_until(terminal: int, wanted: bytes) -> bytes:
    """Return what is shown until some text is."""
    said = b""
    until_s = time.monotonic() + SHOWN_S_MAX
    while wanted not in said:
        assert time.monotonic() < until_s, said
        if select.select([terminal], [], [], 1)[0]:
            said += os.read(terminal, 4096)
    return said
