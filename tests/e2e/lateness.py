"""How a run has to end, and the one thing that is forgiven, by its name: that it was late.

`assert_done` is for a run whose exit code is what a test is about: it forgives nothing. A fleet
that is only the stage of a test may say of itself that it was late (`LATE`) and exit with 4: its
figures are of no interest there, and other fleets and control planes have the same cores. Every
other reason fails the test. No run is held to service levels unless its test says so: World.spawn.
"""

import json
from itertools import takewhile

LATE = ("fleet itself lagged: timers fired ", "fleet read too slowly: ")
DASH = "  - "
UNSOUND = ("INVALID", "INCOMPLETE")
WELL, INVALID = 0, 4


def assert_done(code: int, printed: str, log: str, *, expected: int = WELL) -> None:
    """Check that a run ended with a code."""
    assert code == expected, f"exit code {code}, {reasons_of(printed)}\n{printed}\n{log}"


def assert_ended(code: int, printed: str, log: str) -> None:
    """Check that the stage of a test ended well, or was late and nothing else."""
    reasons = reasons_of(printed)
    if code == INVALID and reasons and all(each.startswith(LATE) for each in reasons):
        print(f"late: {reasons}")
    else:
        assert_done(code, printed, log)


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
