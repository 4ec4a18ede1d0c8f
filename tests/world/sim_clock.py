"""The clock of virtual time."""

from fleet.clock import NS_PER_S


class SimClock:
    """A clock that stands still until told to move; `EPOCH_NS` is its first wall time."""

    __slots__ = ("_now_ns", "stepped_ns")

    EPOCH_NS = 1_767_225_600 * NS_PER_S  # 2026-01-01T00:00:00Z

    def __init__(self) -> None:
        self._now_ns = 0
        self.stepped_ns = 0
        """How far the fleet's wall clock is set forward; the server's is right."""

    def now_ns(self) -> int:
        """Return the virtual time since start."""
        return self._now_ns

    def wall_ns(self) -> int:
        """Return the virtual time since the epoch, as the fleet's machine has it."""
        return self.true_ns() + self.stepped_ns

    def true_ns(self) -> int:
        """Return the virtual time since the epoch."""
        return self.EPOCH_NS + self._now_ns

    def advance_to(self, now_ns: int) -> None:
        """Move on; time never goes back."""
        assert now_ns >= self._now_ns, (now_ns, self._now_ns)
        self._now_ns = now_ns
