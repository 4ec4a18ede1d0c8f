"""What found.md says is run: each test that it names, with the seed that it names."""

import ast
import re
from pathlib import Path

import pytest
from world.simulation import seeds

HERE = Path(__file__).parent
ROWS = [line for line in (HERE / "found.md").read_text().splitlines() if line.startswith("| ")][1:]
CLAIM = re.compile(r"`(?P<module>test_\w+\.py)::(?P<test>test_\w+)`(?:, seed (?P<seed>\d+))?")


def missing(row: str) -> list[str]:
    """Return what a row names and nobody runs; a row that names nothing is such, too."""
    claims = list(CLAIM.finditer(row.rpartition(" | ")[2]))
    faults = [] if claims else [f"names no test: {row}"]
    for claim in claims:
        module = HERE / claim["module"]
        tree = ast.parse(module.read_text()) if module.exists() else ast.Module([], [])
        functions = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
        found = functions.get(claim["test"])
        if found is None:
            faults.append(f"no such test: {claim[0]}")
        elif claim["seed"] and int(claim["seed"]) not in seeds_of(found):
            faults.append(f"no such seed: {claim[0]}")
    return faults


def seeds_of(test: ast.FunctionDef) -> list[int]:
    """Return the seeds that `make sim` runs a test with."""
    found = []
    for call in ast.walk(test):
        if not isinstance(call, ast.Call):
            continue
        if ast.unparse(call.func) == "seeded":
            [count] = call.args
            found += seeds(ast.literal_eval(count))
        for keyword in call.keywords:
            if keyword.arg == "seed" and isinstance(keyword.value, ast.Constant):
                assert isinstance(keyword.value.value, int)
                found.append(keyword.value.value)
    return found


@pytest.fixture(autouse=True)
def _as_make_sim(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLEET_SIM_SEED", "FLEET_SIM_SEEDS", "FLEET_SIM_FIRST_SEED"):
        monkeypatch.delenv(name, raising=False)


def test_there_are_rows() -> None:
    assert len(ROWS) >= 7


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_what_a_row_names_is_run(row: str) -> None:
    assert not missing(row)


@pytest.mark.parametrize(
    "mutant",
    [
        "| x | y | it was fixed |",
        "| x | y | `test_recovery.py` |",
        "| x | y | `test_recovery.py::test_that_went` |",
        "| x | y | `test_that_went.py::test_a_fleet_survives_trouble` |",
        "| x | y | `test_recovery.py::test_a_fleet_survives_trouble`, seed 60 |",
        "| x | y | `test_registration.py::test_every_node_wipes_its_slices`, seed 6 |",
    ],
)
def test_a_row_of_what_nobody_runs_is_told(mutant: str) -> None:
    assert missing(mutant)


def test_a_long_run_has_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seeds(3) == [1, 2, 3]
    monkeypatch.setenv("FLEET_SIM_FIRST_SEED", "20261122000")
    assert seeds(2) == [20261122000, 20261122001]
    monkeypatch.setenv("FLEET_SIM_SEEDS", "3")
    assert seeds(2) == [20261122000, 20261122001, 20261122002]
    monkeypatch.setenv("FLEET_SIM_SEED", "7")
    assert seeds(2) == [7]
