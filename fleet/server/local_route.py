"""A range of addresses that is routed to `lo`: each of them is this machine's, and only its own.

    hold the range -> remove what a killed run left -> refuse an overlap -> add -> ... -> remove

An abstract socket named after the range is held as long as the process lives, and there is one set
of such names for each network namespace: a route of ours whose socket nobody holds is left over.
Source: ip-route(8), the type `local` (AnyIP).
"""

import ipaddress
import json
import shutil
import socket
import subprocess
from typing import NamedTuple

from fleet.errors import SetupError

PROTOCOL, METRIC = 241, 10250
"""Marks of our routes; no protocol of iproute2's rt_protos has this number."""
TIMEOUT_S = 10.0
HOLDER = "fleet/node-addresses/"
UNSHARE = "unshare --user --map-root-user --net"
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Route(NamedTuple):
    """An entry of a routing table, as far as it matters here."""

    network: Network
    device: str
    is_ours: bool


class LocalRoute:
    """Makes the addresses of a range local, until it is removed."""

    def __init__(self, network: ipaddress.IPv4Network) -> None:
        self._network = network
        self._holder: socket.socket | None = None

    def add(self) -> None:
        """Route the range to `lo`. Raises SetupError if it is in use, or may not be routed."""
        holder = _hold(self._network)
        if holder is None:
            raise SetupError(f"--node-addresses: {self._network} is another run's")
        try:
            self._add()
        except BaseException:
            holder.close()
            raise
        self._holder = holder

    def _add(self) -> None:
        for each in _routes():
            if not each.network.overlaps(self._network):
                continue
            if each.is_ours and each.network == self._network:
                _change("del", self._network)
            elif each.is_ours and (left := _hold(each.network)) is not None:
                with left:
                    _change("del", each.network)
            else:
                raise SetupError(
                    f"--node-addresses: {self._network} overlaps {each.network}, which is routed "
                    f"to {each.device or 'nowhere'}: take other addresses"
                )
        _change("add", self._network)

    def remove(self) -> None:
        """Remove the route, if it was added. Raises SetupError."""
        if self._holder is not None:
            with self._holder:
                self._holder = None
                _change("del", self._network)


def _hold(network: Network) -> socket.socket | None:
    """Hold a range while the process lives; None if another one holds it."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holder.bind(f"\0{HOLDER}{network}")
    except OSError:
        holder.close()
        return None
    return holder


def _routes() -> list[Route]:
    """Return all routes of all tables, but for the defaults."""
    found = json.loads(_ip("-json", "-4", "route", "show", "table", "all") or "[]")
    return [_route(each) for each in found if each["dst"] not in {"default", "0.0.0.0/0"}]


def _route(entry: dict[str, object]) -> Route:
    marks = (entry.get("type"), entry.get("dev"), entry.get("protocol"), entry.get("metric"))
    return Route(
        ipaddress.ip_network(str(entry["dst"]), strict=False),
        str(entry.get("dev", "")),
        marks == ("local", "lo", str(PROTOCOL), METRIC),
    )


def _change(verb: str, network: Network) -> None:
    marks = ("proto", str(PROTOCOL), "metric", str(METRIC))
    _ip("route", verb, "local", str(network), "dev", "lo", "table", "local", *marks)


def _ip(*arguments: str) -> str:
    """Run `ip` of iproute2. Raises SetupError with what it says."""
    program = shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if program is None:
        raise SetupError("--node-addresses needs the program `ip` of iproute2")
    done = subprocess.run(  # noqa: S603 - with arguments of ours
        (program, *arguments), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        said = said.removeprefix("RTNETLINK answers: ")
        raise SetupError(
            f"--node-addresses: ip {' '.join(arguments)}: {said}; it takes root (CAP_NET_ADMIN) "
            f"or a network of one's own ({UNSHARE})"
        )
    return done.stdout
