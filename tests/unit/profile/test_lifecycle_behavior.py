"""What a behaviour's lifecycle and its annotations say, as the documentation shows them."""

import re
from pathlib import Path

import pytest
import yaml

from fleet.clock import NS_PER_S
from fleet.profile.container_behavior import (
    FAILURE_MESSAGES,
    HANGS,
    HookBehavior,
    LifecycleBehavior,
    StartFailure,
    Stop,
)
from fleet.profile.distribution import constant
from fleet.profile.pod_behavior import select_behavior

S = NS_PER_S
DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "profiles.md"


def annotated(container: str = "main", **notes: str) -> LifecycleBehavior:
    pairs = tuple((f"fleet.emulator/{key.replace('_', '-')}", notes[key]) for key in notes)
    return select_behavior((), (), "default", pairs).container(container).life


def test_the_example_of_the_documentation() -> None:
    section = DOCUMENT.read_text().partition("### Starts, hooks and stops")[2]
    example = yaml.safe_load(re.search(r"```yaml\n(.*?)```", section, re.DOTALL)[1])  # type: ignore[index]
    life = LifecycleBehavior.model_validate(example["spec"]["containers"][0]["lifecycle"])
    assert life == LifecycleBehavior(
        start_failure=StartFailure(reason="RunContainerError", message="no such file", times=2),
        post_start=HookBehavior(duration=constant(3 * S)),
        pre_stop=HookBehavior(duration=constant(8 * S), fails=True),
        stop=Stop(delay=constant(2 * S), exit_code=143),
        termination_message="bye",
        resize_error="cgroup is busy",
    )


@pytest.mark.parametrize(
    ("text", "hook"),
    [
        ("3s", HookBehavior(duration=constant(3 * S))),
        ("fail", HookBehavior(fails=True)),
        ("3s fail", HookBehavior(duration=constant(3 * S), fails=True)),
        ("soon", HookBehavior()),
        ("3s fails", HookBehavior()),
    ],
)
def test_annotations_of_hooks(text: str, hook: HookBehavior) -> None:
    assert annotated(post_start=text).post_start == hook
    assert annotated(pre_stop=text).pre_stop == hook


def test_annotations_of_start_failures() -> None:
    found = annotated(start_failure="CreateContainerError", start_failure_times="3")
    assert found.start_failure == StartFailure(reason="CreateContainerError", times=3)
    assert found.start_failure.text == FAILURE_MESSAGES["CreateContainerError"]
    assert annotated(start_failure="RunContainerError: a: b").start_failure == StartFailure(
        reason="RunContainerError", message="a: b"
    )
    assert annotated(start_failure="Whatever").start_failure is None


def test_a_start_fails_as_often_as_declared() -> None:
    always = annotated(start_failure="RunContainerError")
    twice = annotated(start_failure="RunContainerError", start_failure_times="2")
    assert [bool(always.failure(attempt)) for attempt in range(4)] == [True] * 4
    assert [bool(twice.failure(attempt)) for attempt in range(4)] == [True, True, False, False]


def test_annotations_of_stops() -> None:
    assert annotated(stop_time="5s", stop_exit_code="143").stop == Stop(
        delay=constant(5 * S), exit_code=143
    )
    assert annotated(stop_time="never").stop.ignored
    assert annotated(stop_time="later", stop_exit_code="256").stop == Stop()


def test_a_container_that_cannot_be_killed() -> None:
    assert annotated(stop_time="hangs").stop.problem == HANGS
    assert annotated(stop_error="no such process").stop.problem == "no such process"
    assert annotated(stop_error="no", stop_time="hangs").stop.problem == HANGS
    assert not annotated(stop_error="").stop.problem
    assert not Stop().problem


def test_an_annotation_for_one_container() -> None:
    notes = (
        ("fleet.emulator/stop-time", "5s"),
        ("fleet.emulator/stop-time.side", "never"),
        ("fleet.emulator/exit-code.job", "1,0"),
    )
    chosen = select_behavior((), (), "default", notes)
    assert chosen.container("main").life.stop.delay == constant(5 * S)
    assert chosen.container("side").life.stop.ignored
    outcomes = [chosen.container("job").outcome(0.5, attempt) for attempt in range(3)]
    assert [each.exit_code if each else None for each in outcomes] == [1, 0, 0]
    assert chosen.container("main").outcome(0.5) is None
