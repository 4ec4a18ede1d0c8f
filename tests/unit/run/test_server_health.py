"""`--stop-if`: when an API server counts as sick, and what becomes of the run."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from fleet.cluster.api_client import Api, Cluster
from fleet.errors import UsageError
from fleet.host.node_host import NodeHost
from fleet.metrics import Requests
from fleet.profile.option_types import DEFAULT_STOP_RULES, StopRules
from fleet.profile.settings import Settings
from fleet.report.display import Display
from fleet.report.report import RunFigures, summary
from fleet.run import server_health
from fleet.run.ending import Ending
from fleet.run.server_health import ServerHealth, count_answers, watch_health

S = 1_000_000_000


def looked(
    answers: Callable[[int], tuple[int, int]], seconds: int = 120, rules: StopRules | None = None
) -> tuple[int, str]:
    """Give the answers and refusals of each second; return when the run ends, and why."""
    health = ServerHealth(rules or DEFAULT_STOP_RULES)
    total = refused = 0
    for now_s in range(seconds):
        more, bad = answers(now_s)
        total, refused = total + more, refused + bad
        health.on_answers(total, refused, float(now_s))
        if reason := health.reason(float(now_s)):
            return now_s, reason
    return 0, ""


@pytest.mark.parametrize(
    ("refused", "is_sick"), [(0, False), (19, False), (20, False), (21, True), (100, True)]
)
def test_a_share_of_refusals_over_the_limit_ends_the_run(refused: int, *, is_sick: bool) -> None:
    at_s, reason = looked(lambda _now_s: (100, refused))
    assert bool(reason) is is_sick
    if is_sick:
        assert at_s == 31  # the first look knows of no answer before
        assert reason == ("more than 20% of the API server's answers were 429 or 5xx for 30s")


def test_a_server_that_recovers_within_the_time_is_no_reason() -> None:
    """Sick for 25 s of each 40: it is given the time to recover."""
    assert looked(lambda now_s: (100, 90 if now_s % 40 < 25 else 0), 400) == (0, "")


def test_single_refusals_of_a_quiet_fleet_are_no_reason() -> None:
    def quiet(now_s: int) -> tuple[int, int]:
        return (1, 1) if now_s % 10 == 0 else (0, 0)

    assert looked(quiet, 90) == (0, "")
    at_s, reason = looked(quiet, 300)
    assert reason
    assert at_s >= 90  # its tenth refusal


def test_a_time_without_answers_says_nothing_of_them() -> None:
    assert looked(lambda now_s: (100, 0) if now_s < 10 else (0, 0)) == (0, "")


def test_a_rule_that_is_off_ends_nothing() -> None:
    assert looked(lambda _now_s: (100, 100), rules=StopRules(readyz_ns=S)) == (0, "")
    health = ServerHealth(StopRules(errors_share=0.2, errors_ns=S))
    health.on_readyz(500, 0.0)
    assert health.reason(1e6) == ""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "did not answer"),
        (429, "answered 429"),
        (500, "answered 500"),
        (503, "answered 503"),
        (200, ""),
        (401, ""),
        (403, ""),
        (404, ""),
    ],
)
def test_readyz_is_red_when_it_says_so_or_nothing(code: int, words: str) -> None:
    health = ServerHealth(DEFAULT_STOP_RULES)
    for asked_s in range(0, 31, 5):
        assert not health.reason(asked_s - 0.1)
        health.on_readyz(code, float(asked_s))
    expected = f"/readyz of the API server {words} for 30s" if words else ""
    assert health.reason(30.0) == expected
    health.on_readyz(200, 35.0)
    assert health.reason(1e6) == ""


def test_only_answers_are_counted_and_those_of_a_sick_server() -> None:
    requests = Requests()
    for code in (200, 404, 409, 429, 500, 503, 0):
        requests.record(("PUT", "leases"), code, 1000)
    assert count_answers(requests.rows) == (6, 3)


class SickApi:
    """Answers /readyz with 500, and lets a second pass for each look at the clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.asked = 0

    async def status(self, path: str, timeout_s: float) -> int:
        assert (path, timeout_s) == ("/readyz", 5.0)
        self.asked += 1
        return 500

    def clock(self) -> float:
        self.now_s += 1
        return self.now_s


async def test_a_run_is_told_to_stop_once_and_asks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_health, "LOOK_S", 0)
    monkeypatch.setattr(server_health, "READYZ_EVERY_S", 5.0)
    reasons: list[str] = []
    api = SickApi()
    reactor = SimpleNamespace(agents=None)
    host = SimpleNamespace(reactor=reactor, counts=SimpleNamespace(requests=Requests()))
    rules = StopRules(readyz_ns=10 * S)
    watching = cast("NodeHost", host)
    await watch_health(cast("Api", api), watching, rules, reasons.append, api.clock)
    assert len(asyncio.all_tasks()) <= 2
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1
    assert reasons == ["/readyz of the API server answered 500 for 10s (--stop-if)"]
    assert api.asked == 1


def test_the_reason_is_the_verdicts_and_the_clean_up_is_gentle() -> None:
    figures = RunFigures(run_id="r")
    calls: list[str] = []
    ending = Ending(
        Settings(),
        "r",
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        figures,
        cast("Display", SimpleNamespace(note=calls.append)),
    )
    cluster = SimpleNamespace(go_gently=lambda: calls.append("gently"))
    ending.stop_early("it is sick (--stop-if)", cast("Cluster", cluster))
    ending.lacks("the scenario did not come to its end: load")
    content = summary(figures)
    assert calls == ["the run ends: it is sick (--stop-if)", "gently"]
    assert (content["verdict"], content["valid"]) == ("incomplete", False)
    assert content["stop_reason"] == "it is sick (--stop-if)"
    assert content["invalid_reasons"] == [
        "it is sick (--stop-if)",
        "the scenario did not come to its end: load",
    ]
    assert figures.judgement().exit_code == 4


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("never", StopRules()),
        ("readyz", StopRules(readyz_ns=30 * S)),
        ("readyz:1m", StopRules(readyz_ns=60 * S)),
        ("errors", StopRules(0, 0.2, 30 * S)),
        ("errors:5%", StopRules(0, 0.05, 30 * S)),
        ("errors:0.5:10s, readyz:10s", StopRules(10 * S, 0.5, 10 * S)),
        ("readyz:30s,errors:20%:30s", DEFAULT_STOP_RULES),
    ],
)
def test_rules_are_read_as_written(text: str, rules: StopRules) -> None:
    settings = Settings.from_options(stop_if=text)
    assert settings.stop_if == rules
    assert settings.stop_rules(is_shared=True) == settings.stop_rules(is_shared=False) == rules


@pytest.mark.parametrize(
    "text",
    ["", "always", "readyz:soon", "readyz:0s", "readyz:1m:1m", "errors:20", "errors:0%",
     "errors:20%:30s:1", "readyz,readyz", "errors,errors", "never,readyz", "errors:-1%"],
)  # fmt: skip
def test_rules_that_are_none_are_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--stop-if: [^\n]+$"):
        Settings.from_options(stop_if=text)


def test_rules_are_on_by_default_on_a_shared_cluster_only() -> None:
    assert Settings().stop_rules(is_shared=True) == StopRules(30 * S, 0.2, 30 * S)
    assert not Settings().stop_rules(is_shared=False).are_on
