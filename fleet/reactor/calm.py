"""Whether a process may rest from one edge to the next: where only heartbeats are under way.

    BUSY --a second with nothing but heartbeats--> CALM --anything else--> BUSY
    CALM: prompt in the first tenth of each second, else resting

A wake-up costs a process as much as a renewal does, and a server's answers come one by one. A
process that rests reads at edges only, where its timers fire: what is due, what was answered and
what its watches brought take one wake-up together. Nobody waits for that: a renewal is next due in
ten seconds, and a pod that comes is seen at the next edge, from which on the process is busy.
How long an answer took is then known to 20 ms only. So a tenth of each second is prompt, and the
quick answers of the rest are counted as taking what the last one took that was timed there.
"""

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.effects import Op

CALM_NS = NS_PER_S
PROMPT_NS = 100 * NS_PER_MS
TIMED_NS = 60 * NS_PER_MS
"""What is sent so early in the second is as a rule answered while the process is prompt."""
HEARTBEATS = frozenset((Op.RENEW_LEASE, Op.GET_NODE_HEARTBEAT, Op.PATCH_NODE_STATUS_HEARTBEAT))


class Calm:
    """See the top of this file. One for a process."""

    __slots__ = ("_busy_until_ns",)

    def __init__(self) -> None:
        self._busy_until_ns = 0

    def stir(self, now_ns: int) -> None:
        """Note that more than heartbeats is under way."""
        self._busy_until_ns = now_ns + CALM_NS

    def rests(self, now_ns: int) -> bool:
        """Return whether nothing needs to be read before the next edge."""
        return now_ns >= self._busy_until_ns and now_ns % NS_PER_S >= PROMPT_NS

    def is_timed(self, sent_ns: int) -> bool:
        """Return whether it is known when the answer came to what was sent then."""
        return sent_ns < self._busy_until_ns or sent_ns % NS_PER_S < TIMED_NS
