"""How a run has to end, and the one thing that is forgiven, by its name: that it was late.

Many fleets and control planes share the cores of a machine that tests, so any run of ten seconds
may report of itself that it was late (`LATE`) and exit with 4. That judges the machine: benches
do so, and unit tests of the report say when a run is late. Every other reason fails the test. No
run is held to service levels unless its test says so: World.spawn.
"""

import json
from itertools import takewhile

LATE = ("fleet itself lagged: ", "fleet read too slowly: ")
DASH = "  - "
UNSOUND = ("INVALID", "INCOMPLETE")
WELL, INVALID = 0, 4


def assert_done(code: int, printed: str, log: str, *, expected: int = WELL) -> None:
    """Check that a run ended with a code, or was late and nothing else."""
    if not is_late(code, printed):
        assert code == expected, f"exit code {code}, {reasons_of(printed)}\n{printed}\n{log}"


def is_late(code: int, printed: str) -> bool:
    """Return whether a run is invalid because it was late, and for no other reason."""
    reasons = reasons_of(printed)
    return code == INVALID and bool(reasons) and all(each.startswith(LATE) for each in reasons)


def reasons_of(printed: str) -> list[str]:
    """Return why a run says that it is invalid or incomplete, from its summary in either form."""
    if printed.startswith("{"):
        return list(json.loads(printed)["invalid_reasons"])
    lines = printed.splitlines()
    heads = [at for at, line in enumerate(lines) if line.startswith("fleet run ")]
    if not heads or not any(each in lines[heads[-1]] for each in UNSOUND):
        return []
    after = lines[heads[-1] + 1 :]
    return [
        each.removeprefix(DASH) for each in takewhile(lambda line: line.startswith(DASH), after)
    ]
