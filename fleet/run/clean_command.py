"""`fleet clean`: what was chosen is shown first, confirmed where no run was named, then removed."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from fleet.cluster import cleanup
from fleet.cluster.api_client import Api, Cluster
from fleet.cluster.credentials import ClusterSelection
from fleet.cluster.identity import RUN_NAMESPACE
from fleet.cluster.leftovers import APPLIED_BY, left_words
from fleet.cluster.ownership import OWNER_ANNOTATION, first_of, refusal
from fleet.cluster.runs import FoundRuns, RunInfo, list_runs
from fleet.cluster.statefulset import stop_pods
from fleet.controlplane.standing import attach
from fleet.errors import Exit, IncompleteError, UsageError
from fleet.report.printed import listed, printed

CHOOSE = (
    "nothing was deleted: choose with --run ID, --expired (what no running fleet holds) or --all\n"
    "(running ones too); --dry-run shows what would go\n"
)
SHOWN_MAX = 20  # objects in a line; the rest is counted
DRY = "nothing was deleted: these would go without --dry-run\n"


class Choice(NamedTuple):
    """What the command line asks for. At most one of the first three."""

    run: str = ""
    all_runs: bool = False
    expired: bool = False
    is_gone_fine: bool = False  # a run that is not there is no error
    is_dry: bool = False
    yes: bool = False
    output: str = "text"

    @property
    def is_any(self) -> bool:
        return bool(self.run) or self.all_runs or self.expired

    def check(self, *, can_ask: bool) -> None:
        """Raise UsageError if the options exclude one another, or nobody could confirm them."""
        if sum((bool(self.run), self.all_runs, self.expired)) > 1:
            raise UsageError("--run, --all and --expired exclude one another")
        if not self.run and self.is_any and not (self.yes or self.is_dry or can_ask):
            flag = "--all" if self.all_runs else "--expired"
            raise UsageError(
                f"{flag} without a terminal needs --yes, or --dry-run to see what it would remove"
            )


async def clean_cluster(
    named: ClusterSelection,
    choice: Choice,
    statefulset: str,
    *,
    ask: Callable[[str], Awaitable[bool]] | None,
    say: Callable[[str], None],
    note: Callable[[str], None],
) -> Exit:
    """Do what `clean` does on the named cluster, or else on the control plane of this machine.

    The pods of a StatefulSet end first; "" for none. Raises UsageError if no cluster is there, too.
    """
    choice.check(can_ask=ask is not None)
    if statefulset and not choice.run:
        raise UsageError("--statefulset: name the run of its pods with --run")
    selection = named if named.is_named else standing()

    def progress(what: str, done: int, total: int) -> None:
        if cleanup.is_tenth(done, total):
            note(f"{what}: {done} of {total}")

    if statefulset and not choice.is_dry:
        await stop_pods(statefulset, note)
    async with await Cluster.connect(selection) as cluster:
        api = cluster.api("cleanup", patience_s=cleanup.PATIENCE_S)
        return await clean(api, choice, ask=ask, say=say, note=note, progress=progress)


def standing() -> ClusterSelection:
    """Return the control plane of this machine that outlives runs. Raises UsageError."""
    plane = attach()
    if plane is None:
        raise UsageError(
            "name a cluster with --kubeconfig, --context or --in-cluster; no local control "
            "plane is running"
        )
    return ClusterSelection(kubeconfig=plane.token_kubeconfig)


async def clean(
    api: Api,
    choice: Choice,
    *,
    ask: Callable[[str], Awaitable[bool]] | None = None,
    say: Callable[[str], None] = lambda _line: None,
    note: Callable[[str], None] = lambda _line: None,
    progress: cleanup.Progress = cleanup.no_progress,
) -> Exit:
    """Remove what was chosen; return EXPECTATION_FAILED if something of it is left.

    INVALID if something with fleet's label had to stay: it is somebody else's.

    `say` prints the result, `note` prints remarks; `ask` is None without a terminal. Raises
    UsageError if it is not confirmed, IncompleteError if the server does not let us finish.
    """
    choice.check(can_ask=ask is not None)
    found = await list_runs(api)
    chosen = select(found, choice) if choice.is_any else found
    for line in refusals(chosen):
        note(line)
    if not choice.is_any or choice.is_dry:
        say(runs_text(chosen.runs, choice.output).rstrip("\n"))
        if choice.output == "text" and chosen.runs:
            held = (
                f"{info.run} has {first_of(info.objects, SHOWN_MAX)}\n"
                for info in chosen.runs
                if info.objects
            )
            say("".join(held) + DRY if choice.is_dry else CHOOSE)
        return Exit.OK
    if chosen.runs and not choice.run:
        what = "their nodes, all pods on these, and the objects of their scenarios"
        shown = f"{runs_text(chosen.runs)}These runs go, with {what}."
        if choice.yes:
            note(shown)
        elif ask is None or not await ask(shown):
            raise UsageError("not confirmed; nothing was deleted")
    done = await _remove(api, chosen.runs, choice, progress)
    removed = (
        f"removed {done.runs} runs: {done.nodes} nodes, {done.leases} leases, "
        f"{done.csi_nodes} CSINodes, {done.pods} pods"
        + (f", {done.applied} objects of scenarios" if done.applied else "")
    )
    counts = {name: count for name, count in done._asdict().items() if isinstance(count, int)}
    say(printed(choice.output, {"removed": counts, "left": done.left}, removed))
    for path in done.left:
        note(left_words(path))
    if done.left:
        return Exit.EXPECTATION_FAILED
    return Exit.INVALID if refusals(chosen) or done.refused else Exit.OK


def select(found: FoundRuns, choice: Choice) -> FoundRuns:
    """Return the runs that were chosen, and what is refused among them. Raises UsageError.

    `expired` are those that no living fleet holds.
    """
    if choice.run:
        refused = tuple(node for node in found.refused if node.run == choice.run)
        runs = [info for info in found.runs if info.run == choice.run]
        if not runs and not refused and not choice.is_gone_fine:
            known = ", ".join(info.run for info in found.runs) or "none"
            raise UsageError(f"--run {choice.run}: no such run in this cluster; there are: {known}")
        return FoundRuns(runs, refused, ())
    if choice.all_runs:
        return found
    assert choice.expired, choice
    alive = {info.run for info in found.runs if info.is_alive}
    return FoundRuns(
        [info for info in found.runs if not info.is_alive],
        tuple(node for node in found.refused if node.run not in alive),
        found.refused_leases,
    )


def refusals(found: FoundRuns) -> list[str]:
    """Say what has fleet's label and is left alone, a line for each kind."""
    lines = [refusal(found.refused)] if found.refused else []
    if copies := [path for info in found.runs for path in info.copies]:
        lines.append(
            f"not touched, for they have the label {APPLIED_BY} but not the annotation "
            f"{OWNER_ANNOTATION} with their own name: {first_of(copies, SHOWN_MAX)}"
        )
    if found.refused_leases:
        lines.append(
            f"not touched, for their names, labels and holders do not fit: Leases "
            f"{', '.join(found.refused_leases)} in namespace {RUN_NAMESPACE}"
        )
    return lines


async def _remove(
    api: Api, runs: Sequence[RunInfo], choice: Choice, progress: cleanup.Progress
) -> cleanup.Cleaned:
    """Remove runs as they were shown; one that lives again since is no expired one."""
    total = cleanup.Cleaned()
    for info in runs:
        if choice.expired:
            now = [each for each in (await list_runs(api)).runs if each.run == info.run]
            if not now or now[0].is_alive:
                continue
        try:
            total = cleanup.added(total, await cleanup.clean_run(api, info.run, progress))
        except IncompleteError as error:
            raise IncompleteError(f"{error}; go on with --run {info.run}") from error
    return total


def runs_text(runs: Iterable[RunInfo], output: str = "text") -> str:
    """Return runs as a table, or as `--output` says."""
    rows: list[dict[str, object]] = [
        {
            "run": info.run,
            "prefix": ",".join(info.prefixes) or "-",
            "nodes": info.nodes,
            "objects": len(info.objects),
            "state": "running" if info.is_alive else "left behind",
            "age": age_words(info.age_s),
            "version": info.version or "-",
        }
        for info in runs
    ]
    return listed(output, rows, "no fleet has left anything in this cluster") + "\n"


def age_words(seconds: int) -> str:
    """Return an age as kubectl shows it."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
