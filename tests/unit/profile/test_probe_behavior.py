"""What probes find over time: phases, short forms, annotations."""

import pytest
from world.profiles import behavior

from fleet.errors import UsageError
from fleet.profile.container_behavior import (
    ALWAYS_GOOD,
    FOREVER,
    ProbeAnswer,
    ProbeBehavior,
    ProbeKind,
    ProbePhase,
    attempt,
)
from fleet.profile.distribution import constant
from fleet.profile.pod_behavior import NOTE_MAX, PodBehavior, select_behavior

S = 1_000_000_000
TIMEOUT_NS = 2 * S


def declared(probes: str) -> PodBehavior:
    return behavior(f"{{containers: [{{name: c, probes: {probes}}}]}}")


def timeline(text: str) -> ProbeBehavior:
    chosen = select_behavior((), {}, "default", {"fleet.emulator/readiness-probe": text})
    return chosen.container("c").probes.of(ProbeKind.READINESS)


def answers(timeline: ProbeBehavior, *ages_s: float) -> list[str]:
    return [timeline.at(int(age_s * S))[0].answer.value for age_s in ages_s]


def test_before_the_first_phase_holds_its_opposite() -> None:
    up = timeline("Success after 5s")
    assert answers(up, 0, 4.9, 5, 99) == ["Refused", "Refused", "Success", "Success"]
    broken = timeline("Failure after 30s, Success after 50s")
    assert answers(broken, 0, 30, 49.9, 50) == ["Success", "Failure", "Failure", "Success"]
    assert answers(timeline("Failure"), 0, 99) == ["Failure", "Failure"]


def test_a_phase_ends_where_the_next_begins() -> None:
    found = timeline("Failure after 30s, Success after 50s")
    assert [found.at(age_s * S)[1] for age_s in (0, 30, 50)] == [30 * S, 50 * S, FOREVER]


def test_a_timeline_that_repeats() -> None:
    found = timeline(
        "{phases: [{result: Failure}, {after: 10s, result: Success}], repeatEvery: 1m}"
    )
    assert answers(found, 0, 10, 59.9, 60, 69.9, 70) == [
        "Failure",
        "Success",
        "Success",
        "Failure",
        "Failure",
        "Success",
    ]
    assert [found.at(age_s * S)[1] for age_s in (0, 10, 60, 70)] == [
        10 * S,
        60 * S,
        70 * S,
        120 * S,
    ]


def test_attempts() -> None:
    good = ProbePhase()
    assert attempt(good, TIMEOUT_NS, 0.0, 0.0)[:2] == (ProbeAnswer.SUCCESS, 0)
    slow = good._replace(latency=constant(TIMEOUT_NS))
    assert attempt(slow, TIMEOUT_NS, 0.0, 0.0)[:2] == (ProbeAnswer.TIMEOUT, TIMEOUT_NS)
    slow = good._replace(latency=constant(TIMEOUT_NS - 1))
    assert attempt(slow, TIMEOUT_NS, 0.0, 0.0)[:2] == (ProbeAnswer.SUCCESS, TIMEOUT_NS - 1)
    flaky = good._replace(failure_rate=0.25)
    assert attempt(flaky, TIMEOUT_NS, 0.24, 0.0)[0] is ProbeAnswer.FAILURE
    assert attempt(flaky, TIMEOUT_NS, 0.25, 0.0)[0] is ProbeAnswer.SUCCESS
    hung = ProbePhase(answer=ProbeAnswer.TIMEOUT)
    assert attempt(hung, TIMEOUT_NS, 0.0, 0.0)[:2] == (ProbeAnswer.TIMEOUT, TIMEOUT_NS)
    odd = ProbePhase(answer=ProbeAnswer.ERROR, latency=constant(S))
    assert attempt(odd, TIMEOUT_NS, 0.0, 0.0)[:2] == (ProbeAnswer.ERROR, 0)


def test_a_document_declares_each_kind_on_its_own() -> None:
    probes = (
        declared(
            "{readiness: Success after 5s,"
            " liveness: [{result: Success, failureRate: 0.1, latency: 20ms},"
            " {after: 1m, result: Failure, statusCode: 500, output: sick}]}"
        )
        .container("c")
        .probes
    )
    assert probes.of(ProbeKind.STARTUP) is ALWAYS_GOOD
    assert answers(probes.of(ProbeKind.READINESS), 0, 5) == ["Refused", "Success"]
    assert probes.of(ProbeKind.LIVENESS).phases == (
        ProbePhase(failure_rate=0.1, latency=constant(20_000_000)),
        ProbePhase(60 * S, ProbeAnswer.FAILURE, status_code=500, output="sick"),
    )


@pytest.mark.parametrize(
    ("probes", "problem"),
    [
        ("{readiness: Succes}", "'Succes' is not one of"),
        ("{readiness: []}", "readiness.phases"),
        ("{readiness: 'Success after x'}", "duration"),
        ("{readiness: 'Success after 5s, Failure after 5s'}", "in the order of their times"),
        (
            "{liveness: {phases: [{after: 9s, result: Failure}], repeatEvery: 9s}}",
            "repeatEvery must be above",
        ),
        ("{liveness: [{result: Success, failureRate: 2}]}", "failureRate"),
        ("{ready: Success}", "unknown key 'ready'"),
    ],
)
def test_what_is_wrong_is_said(probes: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        declared(probes)


def test_an_annotation_overrides_one_kind_for_all_containers() -> None:
    both = declared("{readiness: Failure, liveness: Failure}")
    notes = {"fleet.emulator/readiness-probe": "[{after: 3s, result: Success}]"}
    chosen = select_behavior((both,), {}, "default", notes)
    for name in ("c", "other"):
        assert answers(chosen.container(name).probes.of(ProbeKind.READINESS), 0, 3) == [
            "Refused",
            "Success",
        ]
    assert answers(chosen.container("c").probes.of(ProbeKind.LIVENESS), 0) == ["Failure"]


@pytest.mark.parametrize("text", ["", "Succes", "[", "{", "[1]", "x" * (NOTE_MAX + 1)])
def test_an_annotation_that_cannot_be_read_is_ignored(text: str) -> None:
    notes = {"fleet.emulator/liveness-probe": text}
    chosen = select_behavior((), {}, "default", notes)
    assert chosen.container("c").probes.of(ProbeKind.LIVENESS) is ALWAYS_GOOD
