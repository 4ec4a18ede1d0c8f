"""What e2e tests grant a busy machine and a lagging authorizer, and that they grant no more."""

import json
import os
from collections.abc import Sequence
from typing import Any

import pytest
from audit_requests import REFUSALS_MAX, assert_refusals_end
from lateness import assert_done, lack_of_cores, lag_s, reasons_of, stalled_s, waited_s

from fleet.metrics import Histogram
from fleet.report.figures import ProcessFigures, WatchFigures
from fleet.report.report import LAG_TIMERS_LEAST, Expectation, RunFigures, summary
from fleet.report.summary_text import summary_text


def asked(*codes: int, resource: str = "configmaps", verb: str = "get") -> list[dict[str, Any]]:
    about = {"resource": resource, "namespace": "default", "name": "kube-root-ca.crt"}
    return [
        {
            "auditID": f"{verb}-{at}",
            "requestReceivedTimestamp": f"2026-01-01T00:00:{at:02d}.0Z",
            "verb": verb,
            "objectRef": about,
            "responseStatus": {"code": code},
        }
        for at, code in enumerate(codes)
    ]


def test_refusals_that_end_are_granted() -> None:
    assert_refusals_end(asked(403, 403, 200))
    assert_refusals_end(reversed(asked(403, 200)))
    assert_refusals_end(asked(200))
    assert_refusals_end([*asked(403, verb="watch"), *asked(200, verb="list")])


@pytest.mark.parametrize(
    "events",
    [
        asked(403),
        asked(200, 403),
        asked(403, 200, resource="nodes"),
        asked(*(REFUSALS_MAX + 1) * [403], 200),
        [*asked(403, verb="patch"), *asked(200)],
    ],
)
def test_others_are_not(events: list[dict[str, Any]]) -> None:
    with pytest.raises(AssertionError):
        assert_refusals_end(events)


def run(lag_us: int, *, closed_slow: int = 0, other: Sequence[str] = ()) -> RunFigures:
    lag = Histogram()
    for _ in range(LAG_TIMERS_LEAST):
        lag.record(lag_us)
    watch = WatchFigures(closed_slow=closed_slow)
    process = ProcessFigures(timer_lag=lag)
    run_id = "20261121-033617-ab12"
    return RunFigures(
        run_id=run_id, process=process, watch=watch, invalid_reasons=other, wall_s=20.0
    )


def printed(figures: RunFigures, form: str) -> str:
    """Return what a run prints, after what its command did."""
    if form == "json":
        return json.dumps(summary(figures), indent=2) + "\n"
    return f"fleet run by hand\n  - of the command\n{summary_text(figures)}\n"


WHY = "tasks waited for a core 40 % of the time"


@pytest.mark.parametrize("form", ["text", "json"])
def test_limits_of_kubernetes_are_granted_to_a_machine_that_is_short_of_cores(form: str) -> None:
    def judged(*names: str) -> str:
        unmet = [Expectation(name, is_met=False, detail="2 s") for name in names]
        met = Expectation("ListLatency p99 <= 30 s", is_met=True, detail="1 s")
        return printed(RunFigures(run_id="r", expectations=[met, *unmet]), form)

    slow = judged("MutatingApiCallLatency p99 <= 1 s", "PodStartupLatency p99 <= 5 s")
    assert_done(1, slow, "", starved=WHY)
    assert_done(0, slow, "", starved=WHY)  # of its command
    assert_done(1, slow, "", expected=1, starved="")
    for code, said, starved in (
        (1, slow, ""),  # the machine had cores to spare
        (1, judged("MutatingApiCallLatency p99 <= 1.5 s"), WHY),  # a limit of the test's own
        (1, judged("ListLatency p99 <= 30 s"), WHY),
        (1, judged("MutatingApiCallLatency p99 <= 1 s", "ListLatency p99 <= 30 s"), WHY),
        (1, judged("NodesReady >= 100 %"), WHY),
        (1, judged(), WHY),
        (4, slow, WHY),
        (7, slow, WHY),
    ):
        with pytest.raises(AssertionError):
            assert_done(code, said, "", starved=starved)


def test_why_something_is_granted_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert_done(4, printed(run(150_000), "text"), "", starved=WHY)
    assert f"granted, as {WHY}: ['fleet itself lagged" in capsys.readouterr().out
    assert isinstance(lack_of_cores(), str)


@pytest.mark.parametrize("form", ["text", "json"])
def test_how_late_a_run_was_is_read_from_its_reasons(form: str) -> None:
    found = [lag_s(reasons_of(printed(run(lag_us), form))) for lag_us in (1_000, 150_000)]
    assert found[0] == 0
    assert 0.1 < found[1] < 0.2
    assert 4 < lag_s(reasons_of(printed(run(5_000_000), form))) < 6


def test_how_long_others_had_the_machine_only_grows() -> None:
    before = waited_s(os.getpid()), stalled_s()
    after = waited_s(os.getpid()), stalled_s()
    assert 0 <= before[0] <= after[0]
    assert 0 <= before[1] <= after[1]


@pytest.mark.parametrize("form", ["text", "json"])
def test_only_lateness_is_granted(form: str) -> None:
    good, late = run(1_000), run(150_000)
    deaf, broken = run(150_000, closed_slow=1), run(150_000, other=["a bug in fleet"])
    found = [len(reasons_of(printed(each, form))) for each in (late, deaf, broken)]
    assert found == [1, 2, 2]
    assert reasons_of(printed(good, form)) == []
    assert_done(0, printed(good, form), "", starved="")
    assert_done(4, printed(late, form), "", starved=WHY)
    assert_done(4, printed(deaf, form), "", starved=WHY)
    assert_done(4, printed(late, form), "", expected=7, starved=WHY)
    for code, figures in ((4, good), (4, broken), (3, late), (0, late), (7, good)):
        with pytest.raises(AssertionError):
            assert_done(code, printed(figures, form), "", starved=WHY)
    with pytest.raises(AssertionError):
        assert_done(4, printed(late, form), "", starved="")  # for a reason of its own
    with pytest.raises(AssertionError):
        assert_done(4, "", "it printed nothing", starved=WHY)
