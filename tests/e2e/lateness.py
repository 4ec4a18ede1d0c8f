"""What the tests grant a machine that is short of cores, and that they say why; nothing else.

Several control planes share two cores with the tests. While tasks wait for a core, two things are
granted to a run that a test of something else makes, and what the test asserts still has to hold:

- It says of itself that it was late, or that its reading lagged just before the server closed a
  watch, and exits with 4. Every other reason of exit code 4 fails the test.
- It lasted a minute and more, and one of the limits below that Kubernetes promises was broken: the
  code is 1 then, or still the command's. A limit of the test's own, or another one, is not granted.

Both only if the kernel says that tasks waited for a core in the last minute: on a machine that was
not short of cores nothing is granted. The words of what was granted, and why, are printed.

Whether a fleet is late for a reason of its own is a test by itself, in test_endings.py: what it was
late must be time for which others kept it waiting.
"""

import contextlib
import json
import os
import re
from itertools import takewhile
from pathlib import Path

from fleet.report.service_levels import DEFAULTS, words

LATE = ("fleet itself lagged: timers fired ", "fleet read too slowly: ")
LAG = re.compile(r"timers fired (?:up to )?([\d.,]+) (ms|s) late")
SLOW = tuple(
    f"{each.sli} p{each.percentile:g} <= {words(each.sli, each.limit)}"
    for each in DEFAULTS
    if each.sli in {"MutatingApiCallLatency", "SingleObjectReadLatency", "PodStartupLatency"}
)
"""Limits of seconds, for servers with cores of their own; 30 s of a list are no lack of cores."""
WAITED_LEAST = 10.0
"""Percent of the last minute; a machine that has cores to spare is below 5."""
DASH = "  - "
UNSOUND = ("INVALID", "INCOMPLETE")
PRESSURES = ("io", "memory")
WELL, UNMET, INVALID = 0, 1, 4
NOT_MET = "  NOT MET: "


def assert_done(
    code: int, printed: str, log: str, *, expected: int = WELL, starved: str | None = None
) -> None:
    """Check that a run ended with a code, or else in a way that a lack of cores explains.

    `starved` is what `lack_of_cores` would say.
    """
    reasons, unmet = reasons_of(printed), unmet_of(printed)
    why = lack_of_cores() if starved is None else starved
    is_late = bool(why and reasons) and all(each.startswith(LATE) for each in reasons)
    is_slow = bool(why and unmet) and all(each.startswith(SLOW) for each in unmet)
    granted = {INVALID} if is_late else {expected, UNMET} if is_slow else {expected}
    assert code in granted, f"exit code {code}, {reasons}, {unmet}, {why}\n{printed}\n{log}"
    if is_late or is_slow:
        print(f"granted, as {why}: {reasons} {unmet}")


def lack_of_cores() -> str:
    """Return in words how short of cores the machine was in the last minute, "" if it was not.

    Source: Documentation/accounting/psi.rst: the share of time in which some task waited. A kernel
    without it has the load, of all tasks that run or wait.
    """
    try:
        some = Path("/proc/pressure/cpu").read_text().partition("\n")[0]
        share = float(some.split("avg60=")[1].split()[0])
    except (OSError, IndexError, ValueError):
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
        return f"{load:.1f} tasks wanted {cores} cores" if load > cores else ""
    return f"tasks waited for a core {share:.0f} % of the time" if share >= WAITED_LEAST else ""


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
