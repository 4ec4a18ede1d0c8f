"""The search of `fleet capacity`: sizes double until one breaks, then the gap is halved. Sans-IO.

first, 2 x first ... --broke as often as it may--> half-way between what held and what broke
                     --the most held--> over         --the gap is small enough--> over
"""


class CapacitySearch:
    """Which size to try next; see the top of this file.

    `precision` is the share of the largest size that held by which the smallest that broke may be
    above it: 0.1 is 10 %. A size breaks when it broke in each of `tries` runs.
    """

    __slots__ = ("_breaks", "_first", "_most", "_precision", "_tries", "broke", "held")

    def __init__(self, first: int, most: int, precision: float, tries: int) -> None:
        self._first = min(first, most)
        self._most = most
        self._precision = precision
        self._tries = tries
        self._breaks = 0  # of the size that is tried now
        self.held = 0
        """The largest size that held, 0 for none."""
        self.broke = 0
        """The smallest size that broke, 0 for none."""

    def next(self) -> int:
        """Return how many nodes to try, 0 if the search is over."""
        if not self.broke:
            return 0 if self.held == self._most else min(self.held * 2 or self._first, self._most)
        gap = self.broke - self.held
        if gap <= max(1, self.held * self._precision):
            return 0
        return self._round(self.held + gap // 2)

    def note(self, nodes: int, *, held: bool) -> None:
        """Take how the run of a size ended."""
        if held:
            self.held, self._breaks = nodes, 0
            return
        self._breaks += 1
        if self._breaks >= self._tries:
            self.broke, self._breaks = nodes, 0

    def _round(self, nodes: int) -> int:
        """Return a size that people can read, if there is one in the gap."""
        step = 10 ** max(0, len(str(nodes)) - 2)
        rounded = nodes // step * step
        return rounded if self.held < rounded < self.broke else nodes
