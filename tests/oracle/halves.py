"""The two halves of the judge: how the scenes of one are played and judged."""

import asyncio
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.go_program import TESTED, build_kubelet
from support.listed_differences import Listed, judge, read_listed

from fleet.profile.release import release_of
from oracle.both_nodes import HOLD_S, IMAGES, Told, both_nodes
from oracle.exchange import NODE_SCOPE
from oracle.judge import Body, Judge, Recording, save, summary
from oracle.mutations import MUTATIONS, news
from oracle.objects_of_scenes import SHELL
from oracle.oracle_limits import PAGE
from oracle.oracle_stage import OracleStage
from oracle.real_kubelet import why_not
from oracle.recorded_scenes import record

HAS_CGROUP_V2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
OF_V1, OF_OLD = "cgroup v1:", "before 1.36:"
SHORT, LONG, PODS = "short half:", "long half:", "pods:"
RESTARTS, VARIANTS = "after a restart:", "variants:"
"""With these words the reasons of rows begin that not every run needs."""
OF_RESTARTS = (LONG, PODS)
"""In these halves kubelets come back."""
RECORDING = "recording.json.gz"
"""Stays with what the test leaves, so that a red comparison can be repeated and looked at."""
RECORD = "FLEET_ORACLE_RECORD"
"""With this in the environment what the real kubelet did replaces what was recorded of it."""
SCENE = re.compile(r"([a-z_]+): ")
EVERYWHERE = ("all", "node")
SHELL_IMAGE = {
    "names": [SHELL.replace(":1.36", "@sha256:" + "5e" * 32), SHELL],
    "sizeBytes": 4261550,
}

TOLD = Told(images=[*IMAGES, SHELL_IMAGE])
"""What both nodes are told, and a node in virtual time."""


def node_name(told: Told) -> str:
    """Return the name by which the start of a node is recorded."""
    return f"{NODE_SCOPE}-{told.name}" if told.name else NODE_SCOPE


def marks(limit_s: int) -> list[pytest.MarkDecorator]:
    """Return the marks of a half: it needs a machine that can run a kubelet, and its time."""
    reason = why_not()
    return [
        pytest.mark.e2e,
        pytest.mark.timeout(limit_s),
        pytest.mark.skipif(bool(reason), reason=reason or "it can"),
    ]


def rows(half: str, scenes: Iterable[Body]) -> list[Listed]:
    """Return the rows of differences.md that a half must need on this machine."""
    names = {body.__name__ for body in scenes}
    others = {SHORT, LONG, PODS, VARIANTS} - {half}
    if half not in OF_RESTARTS:
        others.add(RESTARTS)
    if HAS_CGROUP_V2:
        others.add(OF_V1)
    if release_of(TESTED).declares_features:  # as of 1.36
        others.add(OF_OLD)
    found = []
    for each in read_listed(PAGE):
        scene = SCENE.match(each.match)
        is_played = scene is None or scene[1] in names or scene[1] in EVERYWHERE
        if is_played and not each.reason.startswith(tuple(others)):
            found.append(each)
    return found


def played(
    root: Path,
    listed: Sequence[Listed],
    together: Sequence[Body],
    alone: Sequence[Body] = (),
    *,
    hold_s: float = HOLD_S,
    told: Told = TOLD,
    unrecorded: Sequence[Body] = (),
) -> Recording:
    """Play scenes that do not heed each other, then those that need both nodes for themselves."""
    kubelet = asyncio.run(build_kubelet())
    with both_nodes(root, kubelet, told, hold_s=hold_s) as both:
        player = Judge(OracleStage(both), listed)
        player.play_at_once({body.__name__: body for body in together})
        for body in alone:
            player.play(body.__name__, body)
        player.close()
        both.real.assert_runs()
        recording = player.recording()
    recording.plays = {name: replace(each, hold_s=hold_s) for name, each in recording.plays.items()}
    save(recording, root / RECORDING)
    if RECORD in os.environ and not set(unrecorded).issuperset((*together, *alone)):
        record(recording, node=node_name(told), without={each.__name__ for each in unrecorded})
    return recording


def judged(
    recording: Recording, listed: Sequence[Listed], *, needs_all: bool = True
) -> tuple[str, list[str]]:
    """Return how much was compared, and what is wrong; `needs_all`: a row that nothing needs is."""
    compared = recording.compare()
    wrong = judge(compared.found, listed)
    if not needs_all:
        wrong = [line for line in wrong if not line.startswith("unused: ")]
    return summary(recording, compared, listed), [*wrong, *recording.repeated(listed)]


def missed(recording: Recording, scenes: Sequence[str], *, has_all: bool = True) -> list[str]:
    """Return the mutations of what scenes recorded that the comparison does not find.

    Of those that change nothing there, it finds none, unless the scenes need not have everything.
    """
    real, fleet = recording.traces(scenes)
    before = set(recording.compare_traces(real, fleet).lines)
    mutated = {name: mutate(fleet) for name, mutate in MUTATIONS.items()}
    return [
        name
        for name, trace in mutated.items()
        if (has_all or trace is not fleet)
        and not news(name, before, recording.compare_traces(real, trace).lines)
    ]
