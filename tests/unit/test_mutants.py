"""The mutants of a module: each changes one thing, and what cannot matter is left alone."""

import importlib
import sys
from pathlib import Path

import pytest

from tools import mutants

SAMPLE = '''
"""A module."""

LIMIT = 3


class Box:
    def holds(self, count: int, name: str = "") -> bool:
        """Say so."""
        assert count >= 0, "less than nothing"
        found: "int" = 0
        if name and count < LIMIT:
            self.note(count + 1)
        return found is not None

    def note(self, count: int) -> None:
        self.last = count
'''


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "sample_of_mutants.py").write_text(SAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.delitem(sys.modules, "sample_of_mutants", raising=False)
    return "sample_of_mutants.py"


def test_a_mutant_takes_the_place_of_the_code_that_runs(sample: str) -> None:
    module = importlib.import_module("sample_of_mutants")
    found = {}
    for mutant in mutants.mutants_of(sample):
        functions = mutants.functions_of(sample)
        codes = [each.__code__ for each in functions]
        mutants.apply(mutant, functions)
        box = module.Box()
        box.last = None
        found[mutant.what] = (box.holds(2, "a"), box.last)
        for function, code in zip(functions, codes, strict=True):
            function.__code__ = code
    assert found == {
        "0 to 1": (True, 3),
        "condition denied": (True, None),
        "And to Or": (True, 3),
        "call left out": (True, None),
        "Lt to LtE": (True, 3),
        "Add to Sub": (True, 1),
        "1 to 2": (True, 4),
        "returns None": (None, 3),
        "IsNot to Is": (False, 3),
    }


def test_the_tests_of_a_module_are_those_that_import_it_and_those_of_its_folder() -> None:
    of_clock = [path.name for path in mutants.near("fleet/clock.py")]
    assert {"test_clock.py", "test_reactor.py"} <= {*of_clock}
    assert not {"test_cli.py", "test_volumes.py"} & {*of_clock}
    of_streams = [path.name for path in mutants.near("fleet/server/streaming.py")]
    assert {"test_remote_command.py", "test_spdy.py"} <= {*of_streams}
