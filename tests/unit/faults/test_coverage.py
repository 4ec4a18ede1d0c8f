"""No fault without a simulation of it and a test on a real control plane."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from fleet.faults.fault import FAULTS, FaultType

TESTS = Path(__file__).parents[2]
OF_CONTROL_PLANE = {FaultType.COMPONENT_DOWN, FaultType.COMPONENT_STALL}
"""They have no simulation, whose API server is in memory."""


@cache
def names_in(folder: str) -> frozenset[str]:
    """Return the words in texts of test modules, but for what only describes a test."""
    found: set[str] = set()
    for path in (TESTS / folder).glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.update(re.findall(r"\w+", node.value) if "\n" not in node.value else ())
    return frozenset(found)


@pytest.mark.parametrize("kind", FaultType, ids=lambda kind: kind.value)
def test_each_fault_has_both_tests(kind: FaultType) -> None:
    assert kind in FAULTS
    assert kind.value in names_in("e2e")
    assert kind in OF_CONTROL_PLANE or kind.value in names_in("sim")
