"""What the tests grant a busy machine: a run that says of itself that it was late, nothing else.

Several control planes share two cores with the tests. A fleet whose timers fired late tells so, by
its summary and exit code 4, and so does one whose reading lagged just before the server closed a
watch. A test of something else takes that for an end as good as any; what it asserts itself still
has to hold. Every other reason of exit code 4 fails it.

A run of a minute and more is held to the latencies that Kubernetes promises. A server that shares
its cores does not keep them, which is granted as well: the code is 1 then, or still the command's.

Whether a fleet is late for a reason of its own is a test by itself, in test_endings.py: what it was
late must be time for which others kept it waiting.
"""

import contextlib
import json
import os
import re
from itertools import takewhile
from pathlib import Path

LATE = ("fleet itself lagged: timers fired ", "fleet read too slowly: ")
LAG = re.compile(r"timers fired (?:up to )?([\d.,]+) (ms|s) late")
DASH = "  - "
UNSOUND = ("INVALID", "INCOMPLETE")
PRESSURES = ("io", "memory")
WELL, UNMET, INVALID = 0, 1, 4
NOT_MET = "  NOT MET: "


def assert_done(code: int, printed: str, log: str, *, expected: int = WELL) -> None:
    """Check that a run ended with a code, or else with 4 for its lateness alone."""
    reasons = reasons_of(printed)
    is_late = bool(reasons) and all(each.startswith(LATE) for each in reasons)
    unmet = unmet_of(printed)
    is_slow = bool(unmet) and all(each.partition(" ")[0].endswith("Latency") for each in unmet)
    granted = {INVALID} if is_late else {expected, UNMET} if is_slow else {expected}
    assert code in granted, f"exit code {code}, {reasons}, {unmet}\n{printed}\n{log}"
    if is_late or is_slow:
        print(f"granted: {reasons} {unmet}")


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


def unmet_of(printed: str) -> list[str]:
    """Return the names of the expectations that a run did not meet, in either form."""
    if printed.startswith("{"):
        return [each["name"] for each in json.loads(printed)["expectations"] if not each["met"]]
    lines = printed.splitlines()
    return [line.removeprefix(NOT_MET) for line in lines if line.startswith(NOT_MET)]


def lag_s(reasons: list[str]) -> float:
    """Return by how many seconds the timers of a run were late, as it says; 0 for one in time."""
    found = [match for each in reasons for match in LAG.findall(each)]
    return max(
        (float(text.replace(",", "")) / (1000 if unit == "ms" else 1) for text, unit in found),
        default=0.0,
    )


def waited_s(process: int) -> float:
    """Return for how long others had the cores while the main thread of a process could have run.

    Source: proc_pid_schedstat in fs/proc/base.c: the time on a core, that on a run queue.
    """
    _, waited_ns, _ = map(int, Path(f"/proc/{process}/schedstat").read_text().split())
    return waited_ns / 1e9


def stalled_s() -> float:
    """Return for how long the machine has not had its cores, or has waited for its disk or memory.

    Source: proc(5), stat, field `steal`; Documentation/accounting/psi.rst, totals of `some`.
    """
    steal = int(Path("/proc/stat").read_text().split(maxsplit=9)[8])
    stalled = steal / os.sysconf("SC_CLK_TCK")
    for each in PRESSURES:
        with contextlib.suppress(OSError):  # a kernel without them
            some, _, _ = Path(f"/proc/pressure/{each}").read_text().partition("\n")
            stalled += int(some.rpartition("=")[2]) / 1e6
    return stalled
