"""How many nodes may start at one time: a gradient limit, steered by how slow answers are.

    answers, twice a second --slowdown--> less than STEADY (or RELIEVED, of fewer than at first):
                                          the square root of all more, in the time in which all
                                          of them are through
                                          more than CROWDED: a tenth less
                                          refusals, no answers: half of them

A server that is busy to the full answers as many requests, however many wait there: more of them
only take longer, and so do those of the controllers, which have the taints to take away, and the
renewals of the nodes that are up. The slowdown is how many times longer requests take now than the
quickest of their kind took: about 2 where nothing waits. Some must wait, or a core of the server is
idle between two requests: an API server on 2 cores was quickest with what it begins with, slower
with three times as many, and in `kubelet` with a third (1,000 nodes of it, 2,000 of `light`).
What is begun shows in answers only after a while, so that growth is clocked by what is through, as
TCP's is by its acknowledgements. Nothing doubles: that overshot by the delay of one answer.
Source: TCP Vegas (Brakmo, Peterson 1995), which compares with the least round trip; and
github.com/Netflix/concurrency-limits, Gradient2Limit, for growth by the square root.
Differs: the slowdown may lie in a band, where nothing changes, since a node's start is also waits
of its own, and its requests are of twenty kinds.
"""

import math
from collections.abc import Mapping

from fleet.metrics import Histogram
from fleet.profile.settings import Fidelity

FIRST = {Fidelity.KUBELET: 48, Fidelity.LIGHT: 16}
LEAST = {Fidelity.KUBELET: 8, Fidelity.LIGHT: 4}
MOST = 1_024
WINDOW_S = 0.5
ANSWERS_MIN = 30
"""Of a window that says something; a slower server's is longer."""
STEADY = 4.0
CROWDED = 40.0
RELIEVED = 20.0
"""A server that was held up for a moment gets back what it had."""
SHRINK = 0.9
BRAKE = 0.5
BRAKE_PAUSE_S = 3.0
"""What was refused meanwhile was sent before."""
REFUSED_SHARE = 0.005

Route = tuple[str, str]
"""Verb and resource."""
Rows = Mapping[Route, Mapping[int, Histogram]]
"""As of `metrics.Requests`, by code."""
Answers = tuple[int, int, int]
"""How many, how long they took in all, and the quickest of them, in microseconds."""
NONE: Answers = (0, 0, 0)


class StartLimit:
    """See the top of this file. Time is in seconds of any clock that does not go back."""

    __slots__ = (
        "_aim",
        "_before",
        "_brake_s",
        "_first",
        "_lowest",
        "_refused",
        "_window_s",
        "through",
    )

    def __init__(self, fidelity: Fidelity) -> None:
        self.through = 0
        """Nodes that have started since the last window; who counts them adds them."""
        self._first = FIRST[fidelity]
        self._aim = float(self._first)
        self._lowest = LEAST[fidelity]
        self._before: dict[Route, Answers] = {}
        self._refused = 0
        self._window_s = 0.0  # when it began
        self._brake_s = -math.inf

    @property
    def nodes(self) -> int:
        """Return how many may be starting at one time."""
        return int(self._aim)

    def look(self, rows: Rows, now_s: float, *, is_used: bool) -> None:
        """Take what the server answered so far; `is_used`: nearly as many start as may."""
        if now_s - self._window_s < WINDOW_S:
            return
        told = {route: _answers(codes) for route, codes in rows.items() if route[0] != "WATCH"}
        more = sum(each[0] - self._before.get(route, NONE)[0] for route, each in told.items())
        refused = sum(
            histogram.count
            for codes in rows.values()
            for code, histogram in codes.items()
            if not _is_answer(code)
        )
        is_refused = refused - self._refused > REFUSED_SHARE * max(more, ANSWERS_MIN)
        if more < ANSWERS_MIN and not is_refused:
            return
        slowdown = self._slowdown(told)
        self._window_s, self._refused, self._before = now_s, refused, told
        through, self.through = self.through, 0
        may_move = now_s - self._brake_s > BRAKE_PAUSE_S
        if is_refused:
            if may_move:
                self._brake_s = now_s
                self._shrink(BRAKE)
        elif slowdown > CROWDED:
            self._shrink(SHRINK)
        elif is_used and slowdown < self._enough() and may_move:
            self._aim = min(MOST, self._aim + through / math.sqrt(self._aim))

    def _slowdown(self, told: Mapping[Route, Answers]) -> float:
        """Return how many times longer than the quickest requests took since the last window."""
        took_us, least_us = 0, 0
        for route, (count, sum_us, quickest_us) in told.items():
            count_before, sum_before, _ = self._before.get(route, NONE)
            took_us += sum_us - sum_before
            least_us += (count - count_before) * quickest_us
        return took_us / least_us if least_us else 1.0

    def _enough(self) -> float:
        return STEADY if self._aim >= self._first else RELIEVED

    def _shrink(self, factor: float) -> None:
        self._aim = max(self._lowest, self._aim * factor)


def _answers(codes: Mapping[int, Histogram]) -> Answers:
    told = [histogram for code, histogram in codes.items() if _is_answer(code)]
    return (
        sum(each.count for each in told),
        sum(each.sum_us for each in told),
        min((each.min_us for each in told), default=0),
    )


def _is_answer(code: int) -> bool:
    """Return whether the server did what it was asked, and not that it is too busy."""
    return 200 <= code < 500 and code != 429
