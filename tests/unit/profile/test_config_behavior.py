"""Pod behaviours: distributions, selection, annotations, commands."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world.pod_world import container, make_pod
from world.profiles import behavior

from fleet.errors import UsageError
from fleet.profile.distribution import Distribution, DistributionSpec, Shape, constant
from fleet.profile.pod_behavior import (
    DEFAULT_BEHAVIOR,
    Outcome,
    select_behavior,
)

S = 1_000_000_000


def distribution(**values: str) -> Distribution:
    return DistributionSpec.model_validate(values).compiled()


@pytest.mark.parametrize(
    ("values", "quantiles"),
    [
        ({"distribution": "Constant", "value": "2s"}, {0.0: 2.0, 0.99: 2.0}),
        ({"distribution": "Uniform", "min": "1s", "max": "3s"}, {0.0: 1.0, 0.5: 2.0}),
        ({"distribution": "Normal", "mean": "5s", "stddev": "1s"}, {0.5: 5.0, 0.0: 0.0}),
        ({"distribution": "Normal", "mean": "5s", "p99": "9s"}, {0.5: 5.0, 0.99: 9.0}),
        ({"distribution": "LogNormal", "median": "2s", "p99": "9s"}, {0.5: 2.0, 0.99: 9.0}),
        (
            {"distribution": "LogNormal", "median": "2s", "p99": "9s", "max": "4s"},
            {0.5: 2.0, 0.99: 4.0},
        ),
        ({"distribution": "Exponential", "mean": "1s"}, {0.0: 0.0, 0.5: math.log(2)}),
        ({"distribution": "Exponential", "median": "3s"}, {0.5: 3.0}),
        ({"distribution": "Exponential", "p99": "3s", "min": "1s"}, {0.99: 3.0, 0.0: 1.0}),
    ],
)
def test_a_distribution_has_the_quantiles_that_it_states(
    values: dict[str, str], quantiles: dict[float, float]
) -> None:
    compiled = distribution(**values)
    for u, seconds in quantiles.items():
        assert compiled.sample(u) == pytest.approx(seconds * S, abs=2)


@given(st.floats(0, 1, exclude_max=True), st.sampled_from(Shape))
def test_every_sample_is_a_time_within_the_bounds(u: float, shape: Shape) -> None:
    values = {
        Shape.CONSTANT: {"value": "2s"},
        Shape.UNIFORM: {"min": "1s", "max": "5s"},
        Shape.NORMAL: {"mean": "2s", "p99": "9s", "min": "1s", "max": "5s"},
        Shape.LOG_NORMAL: {"median": "2s", "p99": "9s", "min": "1s", "max": "5s"},
        Shape.EXPONENTIAL: {"mean": "2s", "min": "1s", "max": "5s"},
    }[shape]
    sample = distribution(distribution=shape.value, **values).sample(u)
    assert 1 * S <= sample <= 5 * S


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{distribution: LogNormal, median: 2s}", "LogNormal takes median and p99"),
        ("{distribution: Constant, value: 2s, max: 3s}", "Constant takes value"),
        ("{distribution: Normal, mean: 2s}", "Normal takes mean and stddev or mean and p99"),
        ("{distribution: Uniform, min: 2s, max: 1s}", "min is above max"),
        ("{distribution: LogNormal, median: 2s, p99: 1s}", "p99 is below"),
        ("{distribution: LogNormal, median: 0s, p99: 1s}", "above 0s"),
        ("{distribution: Gauss}", ".distribution: 'Gauss' is not one of 'Constant', 'Uniform',"),
        ("10x", "'10x' is not a duration such as 10s or 5m"),
        ("5", "5 is not a duration such as 10s or 5m"),
        ("-5s", "'-5s' is negative"),
    ],
)
def test_a_wrong_distribution_is_named_by_its_path(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        behavior(f"{{containers: [{{startDelay: {text}}}]}}")
    message = str(caught.value)
    assert message.startswith("profiles/x.yaml: spec.containers[0].startDelay")
    assert problem in message


def test_the_first_behaviour_that_selects_a_pod_wins() -> None:
    first = behavior("{podSelector: {matchLabels: {app: a}, namespace: prod}}", "first")
    second = behavior("{podSelector: {matchLabels: {app: a}}}", "second")
    choose = (first, second)
    assert select_behavior(choose, {"app": "a"}, "prod", {}) is first
    assert select_behavior(choose, (("app", "a"),), "test", ()) is second
    assert select_behavior(choose, {"app": "b"}, "prod", {}) is DEFAULT_BEHAVIOR
    assert select_behavior((), {"app": "a"}, "prod", {"other": "x"}) is DEFAULT_BEHAVIOR


@pytest.mark.parametrize(
    ("requirement", "labels", "expected"),
    [
        ("{key: a, operator: In, values: [x, y]}", {"a": "y"}, True),
        ("{key: a, operator: In, values: [x]}", {}, False),
        ("{key: a, operator: NotIn, values: [x]}", {}, True),
        ("{key: a, operator: NotIn, values: [x]}", {"a": "x"}, False),
        ("{key: a, operator: Exists}", {"a": ""}, True),
        ("{key: a, operator: Exists}", {}, False),
        ("{key: a, operator: DoesNotExist}", {}, True),
        ("{key: a, operator: DoesNotExist}", {"a": "x"}, False),
    ],
)
def test_expressions_match_as_label_selectors(
    requirement: str, labels: dict[str, str], *, expected: bool
) -> None:
    chosen = behavior(f"{{podSelector: {{matchExpressions: [{requirement}]}}}}")
    assert chosen.pod_selector.matches(labels, "default") is expected


@pytest.mark.parametrize(
    "wrong", ["{key: a, operator: In}", "{key: a, operator: Exists, values: [x]}"]
)
def test_values_must_fit_the_operator(wrong: str) -> None:
    with pytest.raises(UsageError, match="do not fit"):
        behavior(f"{{podSelector: {{matchExpressions: [{wrong}]}}}}")


def test_exit_codes_are_those_of_outcomes() -> None:
    declared = behavior("{containers: [{outcomes: [{after: 1s, exitCode: 9}], exitCodes: [1, 0]}]}")
    found = [declared.container("c").outcome(0.5, attempt) for attempt in range(3)]
    assert [each.exit_code if each else None for each in found] == [1, 0, 0]
    with pytest.raises(UsageError, match="exitCodes need outcomes"):
        behavior("{containers: [{exitCodes: [1, 0]}]}")


def test_containers_are_chosen_by_pattern_and_outcomes_by_weight() -> None:
    chosen = behavior(
        "{sandboxDelay: 1s, containers: [{name: 'side*', startDelay: 3s}, {name: main, outcomes: "
        "[{weight: 95, after: 10m}, {weight: 5, after: 4m, exitCode: 137, reason: OOMKilled}]}]}"
    )
    assert chosen.sandbox_delay == constant(1 * S)
    assert chosen.container("sidecar").start_delay == constant(3 * S)
    good, bad = (chosen.container("main").outcome(u) for u in (0.949, 0.951))
    assert good == Outcome(weight=95, after=constant(600 * S))
    assert bad == Outcome(weight=5, after=constant(240 * S), exit_code=137, reason="OOMKilled")
    assert chosen.container("sidecar").outcome(0.5) is None
    assert chosen.container("other").outcome(0.5) is None
    assert chosen.container("main").outcome(1.0) == bad


def test_annotations_override_what_was_declared() -> None:
    declared = behavior("{containers: [{outcomes: [{after: 1m, exitCode: 2, reason: Why}]}]}")
    key = "fleet.emulator/"
    slow = select_behavior((declared,), {}, "d", {key + "start-delay": "2s"})
    assert slow.container("a").start_delay == constant(2 * S)
    assert slow.container("a").outcome(0.0) == Outcome(
        after=constant(60 * S), exit_code=2, reason="Why"
    )
    failing = select_behavior((declared,), {}, "d", {key + "exit-code": "3"})
    assert failing.container("a").outcome(0.0) == Outcome(after=constant(60 * S), exit_code=3)
    quick = select_behavior((), (), "d", ((key + "run-time", "10m"), (key + "exit-code", "1")))
    outcome = quick.container("a").outcome(0.0)
    assert outcome == Outcome(after=constant(600 * S), exit_code=1)


@pytest.mark.parametrize(
    "annotation",
    [("start-delay", "x"), ("run-time", "-1s"), ("exit-code", "256"), ("exit-code", "-1")],
)
def test_an_annotation_that_cannot_be_read_changes_nothing(annotation: tuple[str, str]) -> None:
    key, value = annotation
    chosen = select_behavior((), {}, "d", {f"fleet.emulator/{key}": value})
    assert chosen.container("a") == DEFAULT_BEHAVIOR.container("a")


def test_a_behavior_of_all_init_containers() -> None:
    spec = """
  containers:
  - {type: InitContainer, outcomes: [{after: 9s}]}
  - {type: Sidecar, name: "m*", outcomes: [{after: 8s}]}
  - {name: "*", outcomes: [{after: 7s}]}
"""
    behaviors = (behavior(spec),)
    inits = (
        container("a"),
        container("mesh", restart_policy="Always"),
        container("log", restart_policy="Always"),
    )
    pod = make_pod(container("web"), init_containers=inits)

    def after_s(name: str, notes: tuple[tuple[str, str], ...] = ()) -> int:
        chosen = select_behavior(behaviors, pod.labels, "d", notes, pod.spec)
        return chosen.container(name).outcomes[0].after.sample(0.5) // S

    assert [after_s(name) for name in ("a", "mesh", "log", "web")] == [9, 8, 7, 7]
    note = (("fleet.emulator/run-time.a", "3s"),)
    assert [after_s(name, note) for name in ("a", "mesh", "web")] == [3, 8, 7]
    with pytest.raises(UsageError, match=r"containers\[1\].type: 'Side' is not one of 'Container'"):
        behavior(spec.replace("Sidecar", "Side"))
