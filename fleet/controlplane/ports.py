"""Free ports for the components, chosen where no outgoing connection can take them.

A port from the kernel's ephemeral range is a trap: while the API server restarts, a client that
keeps connecting may be given that very port as its own, connect to itself and block the restart.
"""

import dataclasses
import errno
import json
import random
import socket
from collections.abc import Iterable
from pathlib import Path

from fleet.errors import SetupError

LOOPBACK = "127.0.0.1"
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 10240
SPAN = 16384
TRIES_MAX = 1000  # at random: where none of so many is free, hardly any is


@dataclasses.dataclass(frozen=True, slots=True)
class Ports:
    """One port for each thing that listens."""

    etcd: int  # of its metrics; its data have a socket
    apiserver: int
    scheduler: int
    controller_manager: int


def choose_ports(wanted: Ports | None = None, fixed: dict[str, int] | None = None) -> Ports:
    """Choose free ports: the `fixed` ones by field name, the `wanted` ones if they are free.

    Raises SetupError if nothing is free. Somebody else may still be faster than the component.
    """
    chosen: dict[str, int] = dict(fixed or {})
    for field in dataclasses.fields(Ports):
        if field.name in chosen:
            continue
        candidate = getattr(wanted, field.name) if wanted is not None else 0
        if not candidate or candidate in chosen.values() or not _is_free(candidate):
            candidate = _free_port(chosen.values())
        chosen[field.name] = candidate
    return Ports(**chosen)


def read_ports(path: Path) -> Ports | None:
    """Read the ports of the last start; None if there was none."""
    try:
        known = json.loads(path.read_text())
        return Ports(**{field.name: known[field.name] for field in dataclasses.fields(Ports)})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_ports(path: Path, ports: Ports) -> None:
    """Remember the ports, so that kubeconfigs stay true after the next start."""
    path.write_text(json.dumps(dataclasses.asdict(ports)))


def _free_port(taken: Iterable[int]) -> int:
    lowest, highest = _range()
    avoid = set(taken)
    for _ in range(TRIES_MAX):
        port = random.randint(lowest, highest)  # noqa: S311  # no secret
        if port not in avoid and _is_free(port):
            return port
    raise SetupError(f"no free port on {LOOPBACK} between {lowest} and {highest}")


def _range() -> tuple[int, int]:
    """Give the ports just below the ephemeral ones; if there is no room, those above LOWEST."""
    try:
        ephemeral = int(EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        ephemeral = 32768
    if ephemeral - LOWEST < SPAN // 4:
        return LOWEST, 65535
    return max(LOWEST, ephemeral - SPAN), ephemeral - 1


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Go listens
        try:
            listener.bind((LOOPBACK, port))
            listener.listen()
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True
