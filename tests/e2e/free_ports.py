"""Ports of 127.0.0.1 that stay free until a program under test binds them."""

import random
import socket
from contextlib import ExitStack

FROM, UP_TO = 20_000, 30_000
"""Below those that Linux gives to clients: of these one may be taken at any time."""
TRIES = 1_000


def free_port(in_a_row: int = 1) -> int:
    """Return the first of so many free ports."""
    for _ in range(TRIES):
        first = random.randrange(FROM, UP_TO)
        with ExitStack() as stack:
            try:
                for port in range(first, first + in_a_row):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        return first
    raise AssertionError(f"no {in_a_row} free ports")
