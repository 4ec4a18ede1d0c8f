"""The search of `fleet capacity`: sizes double until one breaks, then the gap is halved. Sans-IO.

first, 2 x first ... --the most held--> over
                     --one breaks--> half-way between what held and what broke, until they are near
                     --it breaks as often as it must--> over
                     --it holds--> half-way to the next size that broke

What breaks is tried again only where it would decide the answer: a size that broke by chance has
all that is below it hold, and is the last one left. So a search has few runs more than sizes.
"""


class CapacitySearch:
    """Which size to try next; see the top of this file.

    `precision` is the share of the largest size that held by which the smallest that broke may be
    above it: 0.1 is 10 %. That one has broken in each of `tries` runs.
    """

    __slots__ = ("_breaks", "_first", "_most", "_precision", "_tries", "held")

    def __init__(self, first: int, most: int, precision: float, tries: int) -> None:
        self._first = min(first, most)
        self._most = most
        self._precision = precision
        self._tries = tries
        self._breaks: dict[int, int] = {}  # by size, of those above what held
        self.held = 0
        """The largest size that held, 0 for none."""

    @property
    def broke(self) -> int:
        """The smallest size that broke, 0 for none."""
        return min(self._breaks, default=0)

    def next(self) -> int:
        """Return how many nodes to try, 0 if the search is over."""
        broke = self.broke
        if not broke:
            return 0 if self.held == self._most else min(self.held * 2 or self._first, self._most)
        gap = broke - self.held
        if gap <= max(1, self.held * self._precision):
            return broke if self._breaks[broke] < self._tries else 0
        return self._round(self.held + gap // 2)

    def note(self, nodes: int, *, held: bool) -> None:
        """Take how the run of a size ended."""
        if held:
            self.held = nodes
            self._breaks = {size: count for size, count in self._breaks.items() if size > nodes}
        else:
            self._breaks[nodes] = self._breaks.get(nodes, 0) + 1

    def _round(self, nodes: int) -> int:
        """Return a size that people can read, if there is one in the gap."""
        step = 10 ** max(0, len(str(nodes)) - 2)
        rounded = nodes // step * step
        return rounded if self.held < rounded < self.broke else nodes
