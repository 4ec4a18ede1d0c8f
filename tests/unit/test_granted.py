"""What e2e tests grant a late fleet and a lagging authorizer, and that they grant no more."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from e2e.audit_requests import REFUSALS_MAX, assert_refusals_end
from e2e.lateness import assert_done, reasons_of

from fleet.metrics import Histogram
from fleet.report.figures import ProcessFigures, WatchFigures
from fleet.report.report import LAG_TIMERS_LEAST, RunFigures, summary
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


@pytest.mark.parametrize("form", ["text", "json"])
def test_only_that_a_run_was_late_is_granted(form: str) -> None:
    good, late = run(1_000), run(150_000)
    still, deaf = run(4_000_000), run(150_000, closed_slow=1)
    broken = run(150_000, other=["a bug in fleet"])
    found = [len(reasons_of(printed(each, form))) for each in (late, still, deaf, broken)]
    assert found == [1, 2, 2, 2]
    assert reasons_of(printed(good, form)) == []
    for expected in (0, 1, 7):
        assert_done(expected, printed(good, form), "", expected=expected)
        for each in (late, still, deaf):
            assert_done(4, printed(each, form), "", expected=expected)
        for code, figures in ((4, good), (4, broken), (3, late), (2, good), (9, good)):
            with pytest.raises(AssertionError):
                assert_done(code, printed(figures, form), "", expected=expected)
    with pytest.raises(AssertionError):
        assert_done(4, "", "it printed nothing")
