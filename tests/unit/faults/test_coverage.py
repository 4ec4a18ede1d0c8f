"""No fault without a simulation of it and a test on a real control plane."""

import re
from pathlib import Path

import pytest
from support.fault_coverage import BY_BEHAVIOR, BY_FAULT, Covered

from fleet.faults.fault import FAULTS, FaultType

ROOT = Path(__file__).parents[3]
SIMULATED = ("tests/sim/",)
REAL = ("tests/e2e/", "tests/oracle/scenes_")
OF_CONTROL_PLANE = {FaultType.COMPONENT_DOWN, FaultType.COMPONENT_STALL}


def text_of(test: str) -> str:
    """Return the module of a test. Fails if there is no such test in it."""
    path, _, name = test.partition("::")
    text = (ROOT / path).read_text()
    assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), test
    return text


@pytest.mark.parametrize("kind", FaultType, ids=lambda kind: kind.value)
def test_each_fault_has_both_tests(kind: FaultType) -> None:
    assert kind in FAULTS
    check(BY_FAULT[kind], is_simulated=kind not in OF_CONTROL_PLANE)
    for test in (*BY_FAULT[kind].simulated, *BY_FAULT[kind].real):
        assert kind.value in text_of(test), f"{test} has no {kind.value}"


@pytest.mark.parametrize("words", BY_BEHAVIOR)
def test_each_thing_that_nodes_do_has_both_tests(words: str) -> None:
    check(BY_BEHAVIOR[words])


def check(covered: Covered, *, is_simulated: bool = True) -> None:
    assert bool(covered.simulated) is is_simulated
    assert covered.real
    for tests, places in ((covered.simulated, SIMULATED), (covered.real, REAL)):
        for test in tests:
            assert test.startswith(places), test
            text_of(test)
