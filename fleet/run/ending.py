"""How a run ends: its nodes removed or left to others, its figures judged, what to do next said.

`RunOutcome` is the end for the command line, `about_run` what a run says of itself for its report,
and `report_of` writes the report.
"""

import contextlib
import datetime as dt
import os
import platform
import shlex
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from fleet import __version__
from fleet.cluster.api_client import Cluster
from fleet.cluster.cleanup import PATIENCE_S, clean_run, is_tenth
from fleet.cluster.leftovers import left_words
from fleet.cluster.ownership import refusal
from fleet.cluster.preflight import SHOWN_MAX
from fleet.cluster.runs import RunLease
from fleet.cluster.statefulset import will_return
from fleet.errors import Exit, FleetError
from fleet.host.node_host import NodeHost
from fleet.profile.settings import Settings, flags_of
from fleet.report.display import Display
from fleet.report.figure import Json
from fleet.report.html_report import write_report
from fleet.report.printed import printed
from fleet.report.report import LONGER, Outcome, RunFigures, summary
from fleet.report.run_directory import read_run
from fleet.report.summary_text import summary_text
from fleet.run.cli_options import CLUSTER
from fleet.run.interrupts import Interrupts
from fleet.run.target import Target


@dataclass(slots=True)
class RunOutcome:
    """How a run ended: what to print and with which code to exit."""

    figures: RunFigures
    run_directory: Path | None
    exit_code: int
    next_steps: list[str] = field(default_factory=list)
    problem: str = ""  # why the summary is printed only
    report: str = ""  # where the report is, or why it is not whole

    def give_up_files(self, problem: str) -> None:
        """Note that the summary could not be written."""
        self.problem = problem
        self.run_directory = None
        self.exit_code = Exit.SETUP

    def shown(self, output: str, *, has_colours: bool = False) -> str:
        """Return the summary as `--output` says: for people, or what `summary.json` holds."""
        text = summary_text(
            self.figures, self.run_directory, self.next_steps, self.report, has_colours=has_colours
        )
        return printed(output, summary(self.figures), text)


def exit_code_of(figures: RunFigures, command: int | None) -> int:
    """Return what a run ends with: the code of its command, if it had one and was valid."""
    decided = figures.judgement()
    if command is None or decided.outcome in {Outcome.INVALID, Outcome.INCOMPLETE}:
        return decided.exit_code
    return command


def how_longer(settings: Settings, *, has_scenario: bool) -> str:
    """Return what to do so that a run of this kind lasts long enough to be judged."""
    if has_scenario:
        return "give the scenario a longer phase, or more nodes and pods"
    if settings.command:
        return "run a COMMAND that takes longer, or no COMMAND and --duration 5m"
    if settings.is_on_dashboard:
        return "keep the number of nodes on the dashboard as it is for longer, for example 5 min"
    if settings.until_ready:
        return "run it with --duration 5m in place of --until-ready"
    return LONGER


CPU_INFO = Path("/proc/cpuinfo")
NOT_TOLD = frozenset({"bootstrap_token", "command"})
"""A credential, and what may have one among its arguments; run directories are uploaded by CI."""


def about_run(settings: Settings, *, is_local: bool) -> Json:
    """Return options that are not the default, versions and machine; no credential."""
    return {
        "fleet_version": __version__,
        "python": platform.python_version(),
        "started": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "local_control_plane": is_local,
        "options": settings.model_dump(mode="json", exclude_defaults=True, exclude=set(NOT_TOLD)),
        "command": settings.command[0] if settings.command else "",
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
            "system": f"{platform.system()} {platform.release()}",
        },
    }


def _cpu() -> str:
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def report_of(settings: Settings, directory: Path) -> str:
    """Write the page of a run that is over; return where it is, or in a line why it is not there.

    Only the first process of a run writes one, and a pod of many writes none. What goes wrong is
    reported and is no reason for a run to fail.
    """
    if settings.no_report or settings.shared is not None or settings.statefulset is not None:
        return ""
    try:
        return str(write_report(read_run(directory)))
    except FleetError as error:
        return f"no report: {error}"


@dataclass(eq=False)
class Ending:
    """The end of one run. `settings` are those of all of its processes."""

    _settings: Settings
    _run_id: str
    _target: Target
    _interrupts: Interrupts
    _figures: RunFigures
    _display: Display

    def invalidate(self, reason: str) -> None:
        """Write down that the figures are not to be trusted, and why."""
        self._figures.invalid_reasons = [*self._figures.invalid_reasons, reason]

    def stop_early(self, reason: str, cluster: Cluster) -> None:
        """Write down that the run did not get to its end, and why; from now on spare the server."""
        self._figures.stop_reason = reason
        self.lacks(reason)
        self._display.note(f"the run ends: {reason}")
        cluster.go_gently()

    def lacks(self, reason: str) -> None:
        """Write down one more reason why the run did not get to its end."""
        self._figures.incomplete_reasons = [*self._figures.incomplete_reasons, reason]

    async def settle(self, cluster: Cluster, lease: RunLease) -> None:
        """Remove the nodes or leave them to a successor, then give up their names.

        Names are kept while nodes are left that nobody answers for. A second Ctrl-C may have come
        before this began: then it does not begin.
        """
        if self._interrupts.is_second:
            return
        if lease.lost_to:
            self.invalidate(f"run {lease.lost_to} took the nodes over")
        elif not self._target.is_own and (await self._keeps_nodes() or await self._clean(cluster)):
            with contextlib.suppress(FleetError):
                await lease.release()

    async def leaves_nodes(self, lease: RunLease) -> bool:
        """Return whether the nodes need not be removed by us."""
        return self._target.is_own or bool(lease.lost_to) or await self._keeps_nodes()

    async def _keeps_nodes(self) -> bool:
        """Return whether the nodes are for a successor."""
        settings = self._settings
        if settings.keep:
            return True
        is_moved = self._interrupts.is_terminated
        return is_moved and await will_return(settings.statefulset, settings.shard)

    async def _clean(self, cluster: Cluster) -> bool:
        self._display.phase("cleaning up")

        def show(what: str, done: int, total: int) -> None:
            if is_tenth(done, total):
                self._display.phase(f"cleaning up: {what} {done}/{total}")

        try:
            api = cluster.api("cleanup", patience_s=PATIENCE_S)
            shards = self._settings.shards
            done = await clean_run(api, self._run_id, show, shards=shards, keeps_records=True)
        except FleetError as error:
            text = f"the clean-up failed: {error}; go on with: {self._clean_command}"
            self._display.note(text)
            self.invalidate("the clean-up failed")
            return False
        if done.refused:
            self._display.note(refusal(done.refused))
        for path in done.left:
            self._display.note(f"{left_words(path)}; go on with: {self._clean_command}")
        return True

    def judge(self, node_host: NodeHost, cluster: Cluster, failures: list[str]) -> None:
        """Write down what makes the run worth less than it seems."""
        counts, invalidate = node_host.counts, self.invalidate
        for reason in failures:
            invalidate(reason)
        if cluster.renewal.has_failed:
            invalidate("fleet had no valid credentials for some time, see the log")
        if counts.foreign and not self._settings.manage:  # they go, and others come by that name
            names = ", ".join(counts.foreign_names[:SHOWN_MAX])
            invalidate(f"{counts.foreign} nodes exist that are not this run's: {names}")
        if counts.quarantined:
            invalidate(f"{counts.quarantined} nodes were quarantined after a bug in fleet")
        if counts.bugs:
            invalidate(f"{counts.bugs} times a bug in fleet interrupted it, see the log")

    def left_behind(self) -> str:
        """Say what a run that was interrupted has left, and how to remove it."""
        if self._target.is_own:
            return "interrupted: the local control plane is gone, with everything in it"
        return (
            f"interrupted: nodes, leases and pods of run {self._run_id}, and what its scenario "
            f"applied, may be left; remove them with: {self._clean_command}"
        )

    def next_steps(self) -> list[str]:
        """Return the commands that a user may want now."""
        if self._settings.keep and not self._target.is_own:
            return [f"{self._clean_command}  # removes the nodes that were kept"]
        settings, nodes = self._settings, self._settings.nodes
        if settings.names_cluster or settings.command or settings.is_on_dashboard:
            return []
        match self._figures.judgement().outcome:
            case Outcome.INVALID:
                fewer = max(nodes // 2, 1)
                return [f"fleet spawn --nodes {fewer}  # fewer nodes, or more --processes"]
            case Outcome.FAIL:
                return [f"fleet capacity --max-nodes {nodes}  # the most nodes within the SLOs"]
            case Outcome.PASS | Outcome.NOT_JUDGED:
                return [
                    f"fleet spawn --nodes {nodes} -- kubectl get nodes  # run a test suite",
                    f"fleet capacity --max-nodes {10 * nodes}  # the most nodes within the SLOs",
                ]
        return []

    @property
    def _clean_command(self) -> str:
        settings = self._settings
        named = flags_of({name: getattr(settings, name) for name in CLUSTER})
        return shlex.join(["fleet", "clean", *named, "--run", self._run_id])
