"""When a run must end because the API server is sick: `--stop-if`.

    healthy --/readyz is red, or too many answers are 429 or 5xx--> sick since then
    sick --one look that is healthy--> healthy
    sick --for as long as the rule says--> the run ends in order, with the reason

A load test that goes on against a server that is failing hurts all who share the cluster. On a
shared cluster the rules are on unless the user says otherwise.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from fleet.clock import NS_PER_S
from fleet.cluster.api_client import Api
from fleet.host.node_host import NodeHost
from fleet.metrics import Histogram
from fleet.profile.option_types import StopRules
from fleet.quantity import format_duration

READYZ = "/readyz"
READYZ_EVERY_S = 5.0
LOOK_S = 1.0
SPAN_S = 5.0
"""The share of refusals is that of the answers of so many seconds: an idle node has one in ten."""
REFUSALS_LEAST = 10  # fewer say nothing: a server refuses single requests while it is well
NO_ANSWER = 0

Rows = Mapping[tuple[str, str], Mapping[int, Histogram]]
"""As of `metrics.Requests`: by verb and resource, then by code."""


class ServerHealth:
    """See the top of this file. Time is in seconds of any clock that does not go back."""

    def __init__(self, rules: StopRules) -> None:
        self._rules = rules
        self._red_s: float | None = None  # since when /readyz is red
        self._red = ""
        self._bad_s: float | None = None  # since when too many answers are refusals
        self._refused = 0  # how many had come before that
        self._looks: deque[tuple[float, int, int]] = deque()

    def on_readyz(self, code: int, asked_s: float) -> None:
        """Take an answer to /readyz. One that says nothing of its health (403) is not red."""
        if code in {NO_ANSWER, 429} or code >= 500:
            self._red = f"answered {code}" if code else "did not answer"
            if self._red_s is None:
                self._red_s = asked_s
        else:
            self._red_s = None

    def on_answers(self, answers: int, refused: int, now_s: float) -> None:
        """Take how many answers have come so far, and how many of them were 429 or 5xx."""
        looks = self._looks
        while len(looks) > 1 and now_s - looks[1][0] >= SPAN_S:
            looks.popleft()
        looks.append((now_s, answers, refused))
        _, answers_before, refused_before = looks[0]
        more = answers - answers_before
        if not more:
            return  # who hears nothing learns nothing
        if (refused - refused_before) / more <= self._rules.errors_share:
            self._bad_s = None
        elif self._bad_s is None:
            self._bad_s, self._refused = now_s, refused_before

    def reason(self, now_s: float) -> str:
        """Return why the run must end, "" if it may go on."""
        rules = self._rules
        for_ns = rules.readyz_ns
        if for_ns and self._red_s is not None and now_s - self._red_s >= for_ns / NS_PER_S:
            return f"/readyz of the API server {self._red} for {format_duration(for_ns)}"
        for_ns, enough = rules.errors_ns, False
        if for_ns and self._bad_s is not None and self._looks:
            enough = self._looks[-1][2] - self._refused >= REFUSALS_LEAST
        if enough and self._bad_s is not None and now_s - self._bad_s >= for_ns / NS_PER_S:
            return (
                f"more than {rules.errors_share:.0%} of the API server's answers were 429 or 5xx "
                f"for {format_duration(for_ns)}"
            )
        return ""


def count_answers(rows: Rows) -> tuple[int, int]:
    """Return how many answers there are, and how many of them say that the server is sick."""
    answers = refused = 0
    for codes in rows.values():
        for code, histogram in codes.items():
            answers += histogram.count if code else 0
            refused += histogram.count if code == 429 or code >= 500 else 0
    return answers, refused


async def watch_health(
    api: Api,
    node_host: NodeHost,
    rules: StopRules,
    stop: Callable[[str], None],
    now_s: Callable[[], float],
) -> None:
    """Look at the server's health until it makes the run stop."""
    health = ServerHealth(rules)
    asking = asyncio.create_task(_ask_readyz(api, health, now_s)) if rules.readyz_ns else None
    try:
        while not (reason := health.reason(now_s())):
            await asyncio.sleep(LOOK_S)
            agents = node_host.reactor.agents
            kinds = agents.kinds.values() if agents is not None else ()
            parts = (node_host.counts.requests, *(each.counts.requests for each in kinds))
            found = [count_answers(each.rows) for each in parts]
            answers, refused = (sum(column) for column in zip(*found, strict=True))
            health.on_answers(answers, refused, now_s())
        stop(f"{reason} (--stop-if)")
    finally:
        if asking is not None:
            asking.cancel()


async def _ask_readyz(api: Api, health: ServerHealth, now_s: Callable[[], float]) -> None:
    """Ask again and again; one that takes longer than to the next time counts as no answer."""
    while True:
        asked_s = now_s()
        health.on_readyz(await api.status(READYZ, READYZ_EVERY_S), asked_s)
        await asyncio.sleep(max(0.0, asked_s + READYZ_EVERY_S - now_s()))
