"""How many nodes may start now: a bring-up is preparation, not the experiment.

    STARTING --its kubelet says Ready--> SAID --others see it--> SETTLED
             --a settled node has its Lease and its watches, one of light its Lease-------^
    at most as many as `StartLimit` finds     at most UNSETTLED_MAX with those that start

What a kubelet says and what others see part on a busy API server: the node-lifecycle controller has
eight workers, each of whose requests waits like all others, and a node that keeps the not-ready
taint is no use to a scheduler, yet renews its Lease. See docs/explain/performance.md.
Where nobody takes the taint away, nobody is waited for.

StartLimit is a gradient limit, steered by how slow answers are:

    answers, twice a second --slowdown--> less than STEADY (or RELIEVED, of fewer than at first):
                                          the square root of all more, in the time in which all
                                          of them are through
                                          more than CROWDED: a tenth less
                                          refusals, no answers: half of them
    the API server's queues, at each look at its metrics: who waits long there: a tenth less, and no
                                          more until the next look; refusals: half of them

A server that is busy to the full answers as many requests, however many wait there: more of them
only take longer, and so do those of the controllers, which have the taints to take away, and the
renewals of the nodes that are up. The slowdown is how many times longer requests take now than the
quickest of their kind took: about 2 where nothing waits. Some must wait, or a core of the server is
idle between two requests: an API server on 2 cores was quickest with what it begins with, slower
with three times as many, and with a third of cold kubelets (1,000 of them, 2,000 of `light`). Of
2,000 settled kubelets all were Ready after 31.6 and 24.0 s with 16, after 43.7 and 27.6 s with 48.
What is begun shows in answers only after a while, so that growth is clocked by what is through, as
TCP's is by its acknowledgements. Nothing doubles: that overshot by the delay of one answer.
Source: TCP Vegas (Brakmo, Peterson 1995), which compares with the least round trip; and
github.com/Netflix/concurrency-limits, Gradient2Limit, for growth by the square root.
The queues show trouble before the answers do: renewals are few of the answers, and what a priority
level refuses is refused to controllers and to the nodes that are up, too.
Differs: the slowdown may lie in a band, where nothing changes, since a node's start is also waits
of its own, and its requests are of twenty kinds.
"""

import enum
import logging
import math
from collections.abc import Callable, Mapping

from fleet.k8s.effects import NodeId
from fleet.metrics import Histogram

FIRST, LEAST = 16, 4
"""Nodes that start at first, and at least: each sends four requests (`light`) or eight."""
FIRST_COLD, LEAST_COLD = 48, 8
"""Kubelets that start cold: 30 requests each, most of whose time they wait for their own."""
MOST = 1_024
WINDOW_S = 0.5
ANSWERS_MIN = 30  # of a window that says something; a slower server's is longer
STEADY = 4.0
CROWDED = 40.0
RELIEVED = 20.0  # a server that was held up for a moment gets back what it had
SHRINK = 0.9
BRAKE = 0.5
BRAKE_PAUSE_S = 3.0  # what was refused in that time was sent before
REFUSED_SHARE = 0.005
QUEUED_S = 1.0
"""In a queue of the API server, p90 of the requests of nodes; a renewal is given up after 10 s."""

Route = tuple[str, str]  # verb and resource
Rows = Mapping[Route, Mapping[int, Histogram]]  # as of `metrics.Requests`, by code
Answers = tuple[int, int, int]
"""How many, how long they took in all, and the quickest of them, in microseconds."""
NONE: Answers = (0, 0, 0)


class StartLimit:
    """See the top of this file. Time is in seconds of any clock that does not go back."""

    def __init__(self, *, is_cold: bool) -> None:
        self.through = 0
        """Nodes that have started since the last window; who counts them adds them."""
        self._first = FIRST_COLD if is_cold else FIRST
        self._aim = float(self._first)
        self._lowest = LEAST_COLD if is_cold else LEAST
        self._before: dict[Route, Answers] = {}
        self._refused = 0
        self._is_queued = False  # by the last look at the server's queues
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
        answers = {route: _answers(codes) for route, codes in rows.items() if route[0] != "WATCH"}
        more = sum(each[0] - self._before.get(route, NONE)[0] for route, each in answers.items())
        refused = sum(
            histogram.count
            for codes in rows.values()
            for code, histogram in codes.items()
            if not _is_answer(code)
        )
        is_refused = refused - self._refused > REFUSED_SHARE * max(more, ANSWERS_MIN)
        if more < ANSWERS_MIN and not is_refused:
            return
        slowdown = self._slowdown(answers)
        self._window_s, self._refused, self._before = now_s, refused, answers
        through, self.through = self.through, 0
        may_move = now_s - self._brake_s > BRAKE_PAUSE_S
        enough = STEADY if self._aim >= self._first else RELIEVED
        if is_refused:
            self._brake(now_s)
        elif slowdown > CROWDED:
            self._shrink(SHRINK)
        elif is_used and slowdown < enough and may_move and not self._is_queued:
            self._aim = min(MOST, self._aim + through / math.sqrt(self._aim))

    def on_queues(self, waited_s: float, refused: float, now_s: float) -> None:
        """Take how long requests of nodes waited in the server's queues, and how many it refused.

        Since the last time, which is seconds ago.
        """
        self._is_queued = waited_s > QUEUED_S
        if refused:
            self._brake(now_s)
        elif self._is_queued:
            self._shrink(SHRINK)

    def _brake(self, now_s: float) -> None:
        if now_s - self._brake_s > BRAKE_PAUSE_S:
            self._brake_s = now_s
            self._shrink(BRAKE)

    def _slowdown(self, answers: Mapping[Route, Answers]) -> float:
        """Return how many times longer than the quickest requests took since the last window."""
        took_us, least_us = 0, 0
        for route, (count, sum_us, quickest_us) in answers.items():
            count_before, sum_before, _ = self._before.get(route, NONE)
            took_us += sum_us - sum_before
            least_us += (count - count_before) * quickest_us
        return took_us / least_us if least_us else 1.0

    def _shrink(self, factor: float) -> None:
        self._aim = max(self._lowest, self._aim * factor)


def _answers(codes: Mapping[int, Histogram]) -> Answers:
    answers = [histogram for code, histogram in codes.items() if _is_answer(code)]
    return (
        sum(each.count for each in answers),
        sum(each.sum_us for each in answers),
        min((each.min_us for each in answers), default=0),
    )


def _is_answer(code: int) -> bool:
    """Return whether the server did what it was asked, and not that it is too busy."""
    return 200 <= code < 500 and code != 429


UNSETTLED_MAX = 96  # or twice as many as may start, if that is more
PATIENCE_S = 15.0
"""After so long without one more node that others see Ready, they are not waited for."""
LOOKED_AT_ALWAYS = 256  # of more than this, a look a second is enough
LOOK_S = 1.0
SHOWN_S = 2.0

log = logging.getLogger(__name__)


class StartStage(enum.IntEnum):
    """How far a node has come."""

    STARTING = 0
    SAID = 1
    SETTLED = 2


class Pacing:
    """The nodes that are on their way. Time is in seconds of any clock that does not go back."""

    def __init__(self, limit: StartLimit) -> None:
        self.limit = limit
        self._starting: dict[NodeId, None] = {}
        self._said: dict[NodeId, None] = {}
        self._look_s = 0.0
        self._moved_s = 0.0  # when a node was seen last, or when there was room for more
        self._held_by = ""
        self._held_s = 0.0
        self.is_blind = False  # nobody sees nodes Ready: what they say is all there is

    def add(self, node: NodeId) -> None:
        """Take a node that starts now."""
        self._starting[node] = None

    def remove(self, node: NodeId) -> None:
        """Forget a node that is gone, however far it came."""
        self._starting.pop(node, None)
        self._said.pop(node, None)

    def room(self, stage_of: Callable[[NodeId], StartStage], answered: Rows, now_s: float) -> int:
        """Return how many nodes may start now; `answered` is what the server did so far."""
        is_used = 2 * len(self._starting) > self.limit.nodes
        for node in list(self._starting):
            stage = stage_of(node)
            if stage is not StartStage.STARTING:
                del self._starting[node]
                self.limit.through += 1
            if stage is StartStage.SAID:
                self._said[node] = None
        self.limit.look(answered, now_s, is_used=is_used)
        starting_max = self.limit.nodes
        self._look(stage_of, now_s)
        starting, said = len(self._starting), len(self._said)
        if starting >= starting_max:
            self._hold(f"the API server: {starting} nodes are starting", now_s)
            return 0
        room = starting_max - starting
        if said == 0 or self.is_blind:
            return room
        unsettled_room = max(UNSETTLED_MAX, 2 * starting_max) - starting - said
        if unsettled_room <= 0:
            self._hold(f"the controllers: {said} Ready nodes keep the not-ready taint", now_s)
        return max(0, min(room, unsettled_room))

    def held_by(self, now_s: float) -> str:
        """Return what has just kept nodes from starting, "" for nothing."""
        return self._held_by if now_s - self._held_s < SHOWN_S else ""

    def _hold(self, by: str, now_s: float) -> None:
        self._held_by, self._held_s = by, now_s

    def _look(self, stage_of: Callable[[NodeId], StartStage], now_s: float) -> None:
        """See which of the nodes that say Ready others see so, and whether any is."""
        if len(self._said) > LOOKED_AT_ALWAYS and now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        seen = [node for node in self._said if stage_of(node) is StartStage.SETTLED]
        for node in seen:
            del self._said[node]
        crowd = len(self._starting) + len(self._said)
        if seen or crowd < UNSETTLED_MAX or not self._said:
            self._moved_s = now_s
        if len(self._said) <= UNSETTLED_MAX // 2:
            self.is_blind = False
        elif not self.is_blind and now_s - self._moved_s > PATIENCE_S:
            self.is_blind = True
            log.warning(
                "%d nodes say they are Ready and keep the not-ready taint for %d s: more nodes "
                "start without waiting for that",
                len(self._said),
                PATIENCE_S,
            )
