"""What a probe finds once somebody wrote into a container: `kubectl exec`, `kubectl cp`.

Up to then a container's own command says what its probes find (see runtime/probe_script.py). From
then on the command of an exec probe is run on the files as they are, and as the container's script
will change them; an httpGet probe finds no page whose file was removed.
Differs: a new instance of the container begins with what its command says, whatever was left in a
volume; what is not understood succeeds, as ever.
"""

from collections.abc import Callable

from fleet.k8s.pods import ProbeSpec
from fleet.profile.container_behavior import ProbeBehavior, ProbePhase
from fleet.runtime.files import ContainerFiles
from fleet.runtime.ports import ROOTS
from fleet.runtime.probe_script import NOT_FOUND, phase_of
from fleet.runtime.shell.budget import Budget
from fleet.runtime.shell.surroundings import Surroundings

PHASES_MAX = 32
"""So many changes that the container's script will make are looked at."""
FilesAt = Callable[[int], Surroundings]
"""Return what a command finds that starts at an age of the container; what it writes is lost."""


def behavior_in_files(
    probe: ProbeSpec, before: ProbeBehavior, age_ns: int, files_at: FilesAt
) -> ProbeBehavior:
    """Return what a probe found up to an age of the container, and finds from then on."""
    now = files_at(age_ns)
    assert isinstance(now.files, ContainerFiles), now
    later = now.files.changes_after()[: PHASES_MAX - 1]
    phases = [each for each in before.phases if each.after_ns < age_ns]
    budget = Budget()
    for ahead_ns in (0, *later):
        at_ns = age_ns + ahead_ns
        found = _phase(probe, at_ns, files_at(at_ns)._replace(budget=budget))
        if not phases or found._replace(after_ns=phases[-1].after_ns) != phases[-1]:
            phases.append(found)
    return ProbeBehavior(tuple(phases))


def _phase(probe: ProbeSpec, at_ns: int, around: Surroundings) -> ProbePhase:
    if probe.handler == "exec":
        return phase_of(probe.command, at_ns, around)
    files = around.files
    assert isinstance(files, ContainerFiles), around
    path = probe.path.partition("?")[0]
    pages = [f"{root}/{path.lstrip('/')}" for root in ROOTS]
    is_gone = any(map(files.is_removed, pages)) and not any(map(files.is_written, pages))
    return NOT_FOUND._replace(after_ns=at_ns) if is_gone else ProbePhase(at_ns)
