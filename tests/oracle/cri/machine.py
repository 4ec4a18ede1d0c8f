"""What the parts of the runtime share: the profile, the seed, the clock."""

import time
from dataclasses import dataclass, field

from fleet.clock import Draws
from fleet.profile.node_model import NodeModel


@dataclass(frozen=True, slots=True)
class Machine:
    """The node whose runtime this is. Time is real."""

    model: NodeModel
    draws: Draws
    node: int = 0
    """Its number among the nodes of fleet, by which all that is random is drawn."""
    host_ip: str = "127.0.0.1"
    pod_cidr: str = "127.77.0.0/24"
    """Addresses of the loopback interface: whoever listens there is reached by a kubelet."""
    wall_offset_ns: int = field(default_factory=lambda: time.time_ns() - time.monotonic_ns())

    def now_ns(self) -> int:
        """Return monotonic nanoseconds."""
        return time.monotonic_ns()

    def wall_ns(self, now_ns: int) -> int:
        """Return nanoseconds since the epoch of a monotonic instant."""
        return now_ns + self.wall_offset_ns
