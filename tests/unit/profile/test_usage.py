"""Usage curves: values, and the instants at which sums of them cross a limit."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fleet.profile.pod_behavior import ContainerBehavior, PodBehavior, select_behavior
from fleet.profile.usage import (
    NEVER,
    PIECES_MAX,
    Curve,
    CurveSpec,
    Usage,
    constant_curve,
    next_crossing,
    sum_at,
)

S = 1_000_000_000
RAMP = CurveSpec.model_validate(
    {"curve": "Ramp", "from": "100", "to": "200", "duration": "10s"}
).compiled()
STEP = CurveSpec.model_validate({"curve": "Step", "from": "1", "to": "5", "after": "3s"}).compiled()
SAW = CurveSpec.model_validate(
    {"curve": "Sawtooth", "from": "0", "to": "100", "period": "10s"}
).compiled()


def test_the_values_of_the_curves() -> None:
    assert [RAMP.at(t * S) for t in (0, 5, 10, 99)] == [100, 150, 200, 200]
    assert [STEP.at(t) for t in (0, 3 * S - 1, 3 * S, 99 * S)] == [1, 1, 5, 5]
    assert [SAW.at(t * S) for t in (0, 5, 9, 10, 25)] == [0, 50, 90, 0, 50]
    points = CurveSpec.model_validate(
        {
            "curve": "Points",
            "points": [
                {"at": "0s", "value": 1},
                {"at": "2s", "value": 3},
                {"at": "2s", "value": 9},
            ],
            "period": "4s",
        }
    ).compiled()
    assert [points.at(t * S) for t in (0, 1, 2, 3, 4)] == [1, 2, 9, 9, 1]


@given(
    st.sampled_from([RAMP, STEP, SAW, constant_curve(7)]),
    st.integers(0, 40 * S),
)
def test_the_area_is_the_sum_of_the_values(curve: Curve, until_ns: int) -> None:
    steps = 400
    width = until_ns / steps
    summed = sum(curve.at(int((at + 0.5) * width)) * width for at in range(steps))
    assert curve.area(until_ns) == pytest.approx(summed, rel=0.02, abs=S + 200 * width)
    assert curve.area(until_ns + S) >= curve.area(until_ns)
    assert curve.area(-5) == 0


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"curve": "Ramp", "from": "1", "to": "2"}, "Ramp needs 'duration'"),
        ({"curve": "Constant", "value": "1", "to": "2"}, "Constant does not take 'to'"),
        ({"curve": "Sawtooth", "from": "1", "to": "2", "period": "0s"}, "above 0s"),
        ({"curve": "Points", "points": []}, "must not be empty"),
        (
            {"curve": "Points", "points": [{"at": "2s", "value": 1}, {"at": "1s", "value": 1}]},
            "in the order",
        ),
    ],
)
def test_a_curve_that_makes_no_sense_is_refused(document: object, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        CurveSpec.model_validate(document)


def test_crossings_are_exact() -> None:
    crossing = next_crossing([(RAMP, 7 * S)], 0, 150, 0)
    assert sum_at([(RAMP, 7 * S)], 0, crossing) == 151
    assert sum_at([(RAMP, 7 * S)], 0, crossing - 1) == 150
    assert next_crossing([(RAMP, 0)], 0, 200, 0) == NEVER
    assert next_crossing([(STEP, 0)], 0, 4, 0) == 3 * S
    assert next_crossing([(SAW, 0)], 0, 89, 95 * S) == 99 * S
    assert next_crossing([(constant_curve(3), 0)], 2, 4, 8 * S) == 8 * S


def test_a_sum_that_never_crosses_ends_the_search() -> None:
    assert next_crossing([(SAW, 0)], 0, 1000, 0) == NEVER
    falling = Curve(((0, 100), (10 * S, 0)), 10 * S)
    later = next_crossing([(SAW, 0), (falling, 0)], 0, 100, 0)
    assert later > 100 * S  # from where to search on
    assert later != NEVER


EXACT = math.lcm(*range(1, 21))
"""Amounts in multiples of it are whole at every instant of a line."""

CURVES = st.builds(
    lambda points, repeat: Curve(
        tuple((t, amount * EXACT) for t, amount in sorted(points, key=lambda p: p[0])),
        max(p[0] for p in points) + 1 if repeat else 0,
    ),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), min_size=1, max_size=4),
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(
    terms=st.lists(st.tuples(CURVES, st.integers(-9, 0)), min_size=1, max_size=3),
    limit=st.integers(0, 20 * EXACT),
)
def test_no_crossing_is_missed(terms: list[tuple[Curve, int]], limit: int) -> None:
    """Every instant is tried one after another; the search must find the same one."""
    found = next_crossing(terms, 0, limit, 0)
    until = 150 if found == NEVER else found
    tried = next((t for t in range(until) if sum_at(terms, 0, t) > limit), None)
    assert tried is None
    if found < PIECES_MAX // 3:  # a search that gave up did so later
        assert sum_at(terms, 0, found) > limit


def test_annotations_give_an_amount_or_a_curve() -> None:
    usage = Usage.model_validate({"memory": "10Mi", "cpu": "250m"})
    assert usage.cpu_milli == constant_curve(250)
    declared = PodBehavior(name="b", containers=(ContainerBehavior(usage=usage),))
    notes = {
        "fleet.emulator/memory-usage": '{"curve":"Ramp","from":"1Mi","to":"2Mi","duration":"1m"}',
        "fleet.emulator/pids-usage": "7",
        "fleet.emulator/cpu-usage": "plenty",
    }
    changed = select_behavior((declared,), {}, "d", notes).container("c").usage
    assert changed.memory == Curve(((0, 1 << 20), (60 * S, 2 << 20)))
    assert changed.pids == constant_curve(7)
    assert changed.cpu_milli == usage.cpu_milli
