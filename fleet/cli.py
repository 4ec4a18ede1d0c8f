"""The command line: parse, call, print; no logic. stdout is the result, stderr all the rest."""

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import logging
import os
import platform
import shlex
import signal
import sys
import traceback
import types
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click
import click.shell_completion

from fleet import KUBERNETES_VERSION, __version__
from fleet.background import run_loop
from fleet.errors import Exit, FleetError, UsageError, masked
from fleet.report.printed import listed, printed, table
from fleet.run import cli_options

if TYPE_CHECKING:
    from fleet.profile.settings import Settings
    from fleet.run.scenario_player import ScenarioPlayer

T = TypeVar("T")


def main() -> None:
    """Run the command line; every foreseen failure is one line and a documented exit code."""
    handler = logging.StreamHandler()
    handler.setFormatter(MaskingFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    sys.excepthook = _show_bug
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        code = Exit.INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        code = Exit.USAGE
    except click.UsageError as error:
        text = error.format_message().removesuffix(".")
        see = " See" if text.endswith("?") else "; see"
        help_ = f"{see} {error.ctx.command_path} --help" if error.ctx is not None else ""
        code = _fail(text + help_, Exit.USAGE)
    except FleetError as error:
        code = _fail(str(error), error.exit_code)
    except BrokenPipeError:  # the reader has seen enough
        code = Exit.SETUP
    except OSError as error:
        code = _fail(_reason(error), Exit.SETUP)
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    sys.exit(code if isinstance(code, int) else Exit.OK)


class MaskingFormatter(logging.Formatter):
    """Writes a record, and the traceback that comes with it, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


def _show_bug(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    sys.stderr.write(masked("".join(traceback.format_exception(kind, error, trace))))


def _fail(message: str, code: Exit) -> int:
    with contextlib.suppress(OSError):  # a log on a full disk
        click.echo(f"fleet: {masked(message)}", err=True)
    return code


def _reason(error: OSError) -> str:
    why = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {why}" if error.filename else why


Names = Callable[[click.Context, click.Parameter, str], list[str]]


def complete(module: str, names: str) -> Names:
    """Return what completes a word in a shell with the names that a module lists."""

    def completed(_context: click.Context, _parameter: click.Parameter, word: str) -> list[str]:
        found = getattr(importlib.import_module(module), names)
        return [each for each in (found() if callable(found) else found) if each.startswith(word)]

    return completed


UV_PIP = ("uv", "pip", "install", "--python", sys.executable)
GLOBAL = {"help_option_names": ["-h", "--help"]}
BY_SETTINGS = {"cls": cli_options.SettingsCommand, "context_settings": cli_options.VARIABLES}


@click.group(cls=cli_options.Commands, context_settings=GLOBAL)
@click.version_option(__version__, message=f"fleet %(version)s (kubelet {KUBERNETES_VERSION})")
def cli() -> None:
    """Load-test a Kubernetes control plane with thousands of virtual kubelets.

    Each option of fleet spawn has a variable, in every command that has the option: $FLEET_NODES
    sets --nodes. Only --run-dir and --controlplane-bin have none. A flag overrides its variable,
    and a variable overrides the default. An empty variable counts as unset.

    For example:
      fleet spawn --nodes 100          run 100 nodes in a local control plane
      fleet run zone-outage            rehearse an outage, then judge the run
      fleet capacity --max-nodes 5000  find the size that breaks an SLO
    """


@cli.command(**BY_SETTINGS, exits=cli_options.EXITS)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def spawn(**given: object) -> int:
    """Run virtual kubelets until Ctrl-C, then clean up.

    Without --kubeconfig, --context or --in-cluster the nodes join a local control plane: a running
    `fleet controlplane up`, or else one that fleet starts for this run. Append -- COMMAND, and
    fleet runs it when all nodes are Ready, with KUBECONFIG set, and exits with its exit code.
    Each option has a variable: $FLEET_NODES sets --nodes.

    For example:
      fleet spawn -n 200 --duration 5m
      fleet spawn -n 100 -- kubectl get nodes
      fleet spawn --context test --confirm-cluster test -n 5000
      fleet spawn -n 20 --profile default=9 --profile gpu=1 --dry-run
    """
    from fleet.profile.settings import Settings  # noqa: PLC0415 - `fleet --help` must not load pydantic

    settings = Settings.from_options(**given)
    if settings.dashboard:
        _require("locust", "--dashboard", "locust")
    if settings.is_on_dashboard:
        _require("zmq", "--locust-master", "worker")
        from fleet.dashboard.locust_master import find_loads  # noqa: PLC0415

        settings = settings.model_copy(update={"load": find_loads(settings.load)})
    if settings.dry_run:
        from fleet.run.run import Run  # noqa: PLC0415

        plan = Run(settings).plan()
        text = "\n".join(table([[key.replace("_", " "), str(plan[key])] for key in plan]))
        click.echo(printed(settings.output, plan, text))
        return Exit.OK
    return _play(settings, None)


@cli.command(
    "run", **BY_SETTINGS, without=(), refused=cli_options.ENDS_BY_ITSELF, exits=cli_options.EXITS
)
@click.argument(
    "file", metavar="SCENARIO", shell_complete=complete("fleet.scenario.scenario", "shipped")
)
def run_scenario(file: str, **given: object) -> int:
    """Play a scenario of nodes, workload and faults, then judge it.

    SCENARIO is a shipped name (see `fleet scenarios list`) or a file. Of the options of fleet
    spawn, --nodes, --profile, --seed and --start replace what the file says.

    For example:
      fleet run zone-outage --dry-run
      fleet run zone-outage -n 500
      fleet run ./mine.yaml --context test --confirm-cluster test
    """
    from fleet.run import scenario_player  # noqa: PLC0415
    from fleet.scenario import scenario as files  # noqa: PLC0415

    scenario = files.load(path := files.find(file))
    settings = scenario_player.settings_of(scenario, path, given)
    if settings.dry_run:
        click.echo(scenario_player.dry_run(scenario, path, settings))
        return Exit.OK
    return _play(settings, scenario_player.ScenarioPlayer(scenario, path))


@cli.command(**BY_SETTINGS, without=cli_options.NOT_OF_CAPACITY, exits=cli_options.EXITS)
@cli_options.capacity_options
@cli_options.output_option
def capacity(hold: str, scenario: str | None, output: str, **given: Any) -> int:
    """Find the most nodes with which a control plane meets its SLOs.

    Each size is a run of its own. Sizes double until one fails, then fleet halves the gap. The
    other options are those of fleet spawn, with their variables ($FLEET_PROFILE ...); options of
    the search have none.

    For example:
      fleet capacity --max-nodes 5000
      fleet capacity --max-nodes 2000 --pods-per-node 10
      fleet capacity --max-nodes 2000 --scenario zone-outage -o json
      fleet capacity --max-nodes 60000 --shard 0/3 --context c --confirm-cluster c
    """
    from fleet.run import capacity as search  # noqa: PLC0415
    from fleet.run.capacity_shards import Part  # noqa: PLC0415

    names = ("first", "max_nodes", "precision", "tries", "ready_within", "run_dir")
    most, within = given["max_nodes"], given["ready_within"]
    workload = search.Workload(given.pop("pods_per_node"), given.pop("pod_churn"))
    part = Part.parse(given.pop("shard"))
    options = search.options_of(*(given.pop(name) for name in names))
    note = _note if not given["quiet"] else lambda _line: None
    asked = search.asked_of(scenario, hold, most, given, workload, within, part)
    if part.shards > 1:
        found = _run(search.search_with_others(asked, options, note))
    else:
        found = _run(search.search(asked, options, note))
    if isinstance(found, int):
        runs = "1 run" if found == 1 else f"{found} runs"
        note(f"the search is over; this machine took part in {runs}")
        return Exit.OK
    click.echo(printed(output, found, search.text(found, options.directory)))
    return found.exit_code


def _play(settings: "Settings", player: "ScenarioPlayer | None") -> int:
    """Play a run and print its summary; return the exit code."""
    from fleet.report.display import ask_on_terminal  # noqa: PLC0415
    from fleet.run.run import Run  # noqa: PLC0415

    async def run() -> int:
        ask = ask_on_terminal if sys.stdin.isatty() else None
        run = Run(settings, ask=ask, player=player)
        try:
            outcome = await run.run()
        except asyncio.CancelledError:
            if not run.interrupts.is_second:
                raise
            click.echo(f"fleet: {run.ending.left_behind()}", err=True)
            return Exit.INTERRUPTED
        has_colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        click.echo(outcome.shown(settings.output, has_colours=has_colours))
        if outcome.problem:
            click.echo(f"fleet: the summary is not kept: {outcome.problem}", err=True)
        return outcome.exit_code

    return run_loop(run())


@cli.group()
def scenarios() -> None:
    """List and show the scenarios that fleet run plays."""


@scenarios.command("list")
@cli_options.output_option
def scenarios_list(output: str) -> None:
    """List the scenarios that ship with fleet.

    For example:
      fleet scenarios list -o yaml
    """
    from fleet.scenario.scenario import shipped  # noqa: PLC0415

    rows = [
        {"name": name, "description": path.read_text("utf-8").partition("\n")[0].lstrip("# ")}
        for name, path in shipped().items()
    ]
    click.echo(listed(output, rows))


@scenarios.command("show")
@click.argument("name", shell_complete=complete("fleet.scenario.scenario", "shipped"))
def scenarios_show(name: str) -> None:
    """Print a scenario, to start one of your own with.

    For example:
      fleet scenarios show zone-outage > mine.yaml
      fleet run ./mine.yaml --dry-run
    """
    from fleet.scenario import scenario as files  # noqa: PLC0415

    files.load(path := files.find(name))
    click.echo(path.read_text("utf-8"), nl=False)


@scenarios.command("schema")
def scenarios_schema() -> None:
    """Print the JSON schema of scenario files, for editors."""
    from fleet.scenario.scenario import json_schema  # noqa: PLC0415

    click.echo(printed("json", json_schema()))


@cli.group()
def faults() -> None:
    """List the faults that fleet inject and scenarios can cause."""


@faults.command("list")
@cli_options.output_option
def faults_list(output: str) -> None:
    """List the types of faults, the options of each, and what it does.

    For example:
      fleet faults list
    """
    from fleet.faults.fault import FAULTS  # noqa: PLC0415

    rows = [
        {"fault": name.value, "options": " ".join(kind.options), "description": kind.words}
        for name, kind in FAULTS.items()
    ]
    click.echo(listed(output, rows))


@cli.group()
def controlplane() -> None:
    """Start and stop a local control plane that outlives runs."""


@controlplane.command(**BY_SETTINGS, fields=cli_options.UP)
@cli_options.directory_option
@cli_options.output_option
def up(directory: Path | None, output: str, **given: object) -> None:
    """Start a control plane and print how to use it.

    Later runs that name no cluster use this control plane.

    For example:
      source <(fleet controlplane up)
      fleet controlplane up --apiserver-flag max-requests-inflight=800
    """
    from fleet.controlplane import standing as plane  # noqa: PLC0415
    from fleet.profile.settings import Settings  # noqa: PLC0415
    from fleet.run.target import plane_options  # noqa: PLC0415

    wanted = plane_options(Settings.from_options(**given), directory)
    info = _run(plane.up(wanted, progress=_note))
    kubeconfig = str(wanted.kubeconfig_out or info.kubeconfig)
    found = {"url": info.url, "kubeconfig": kubeconfig}
    click.echo(printed(output, found, f"export KUBECONFIG={kubeconfig}"))


@controlplane.command()
@cli_options.directory_option
@cli_options.output_option
def down(directory: Path | None, output: str) -> None:
    """Stop the control plane and remove its data."""
    from fleet.controlplane import standing as plane  # noqa: PLC0415

    was_up = _run(plane.down(directory))
    text = "stopped" if was_up else "no control plane was running"
    click.echo(printed(output, {"stopped": was_up}, text))


@controlplane.command()
@cli_options.directory_option
@cli_options.output_option
def status(directory: Path | None, output: str) -> int:
    """Show whether the control plane runs and is healthy."""
    from fleet.controlplane import standing as plane  # noqa: PLC0415

    found = _run(plane.status(directory))
    if found is None:
        click.echo(printed(output, None, "no control plane is running"))
        return Exit.SETUP
    states = {name: "running" if runs else "gone" for name, runs in found.components.items()}
    value = {
        "url": found.info.url,
        "ready": found.is_ready,
        "kubeconfig": str(found.info.kubeconfig),
        "components": states,
    }
    lines = [
        *table([("COMPONENT", "STATE"), *states.items()]),
        f"{found.info.url} is {'ready' if found.is_ready else 'NOT ready'}",
        f"export KUBECONFIG={found.info.kubeconfig}",
    ]
    click.echo(printed(output, value, "\n".join(lines)))
    return Exit.OK if found.is_ready else Exit.SETUP


@controlplane.command()
@cli_options.build_options
@cli_options.output_option
def build(wanted: tuple[str, ...], output: str) -> None:
    """Build the programs of a control plane into your cache, once.

    For example:
      fleet controlplane build --kubernetes-version 1.35
    """
    from fleet.controlplane.binaries import built_release  # noqa: PLC0415
    from fleet.controlplane.build import provide_binaries  # noqa: PLC0415

    rows = []
    for release in [built_release(each) for each in wanted or ("",)]:
        source = _run(provide_binaries(None, _note, release=release)).source
        rows.append({"release": release or KUBERNETES_VERSION, "source": source})
    click.echo(printed(output, rows, "\n".join(each["source"] for each in rows)))


@controlplane.command("list")
@cli_options.output_option
def list_releases(output: str) -> None:
    """List the releases of Kubernetes that fleet builds, and which are built."""
    from fleet.controlplane.binaries import (  # noqa: PLC0415
        BUILT,
        PROGRAM,
        cache_directory,
        cached_binaries,
    )

    rows = []
    for release in BUILT.values():
        built, size = "-", "-"
        if cached_binaries(release) is not None:
            built = str(cache_directory(release))
            size = f"{(cache_directory(release) / PROGRAM).stat().st_size >> 20}Mi"
        is_default = "yes" if release == KUBERNETES_VERSION else "-"
        rows.append({"release": release, "default": is_default, "size": size, "built": built})
    click.echo(listed(output, rows))


@cli.group()
def profiles() -> None:
    """List, show and import profiles of nodes and workloads."""


@profiles.command("list")
@cli_options.output_option
def profiles_list(output: str) -> None:
    """List the profiles that ship with fleet.

    For example:
      fleet profiles list -o json
    """
    from fleet.profile.loader import list_profiles  # noqa: PLC0415

    rows = [
        {"name": each.name, "kind": each.kind, "description": each.description}
        for each in list_profiles()
    ]
    click.echo(listed(output, rows))


@profiles.command()
@click.argument("name", shell_complete=complete("fleet.profile.loader", "shipped"))
def show(name: str) -> None:
    """Print a profile, to start one of your own with.

    stderr lists the keys of the profile that have no effect.

    For example:
      fleet profiles show gpu > mine.yaml
      fleet spawn --profile ./mine.yaml
    """
    from fleet.profile.loader import show_profile, warnings_of  # noqa: PLC0415

    click.echo(show_profile(name), nl=False)
    for line in warnings_of(name):
        click.echo(line, err=True)  # stdout stays the profile


@profiles.command("import")
@click.argument("file", type=click.File(encoding="utf-8", errors="replace"), default="-")
@click.option("--name", help="Name of the new profile.")
def profiles_import(file: TextIO, name: str | None) -> None:
    """Make profiles of existing Nodes, from YAML or JSON.

    For example:
      kubectl get nodes -o yaml | fleet profiles import > mine.yaml
    """
    from fleet.profile.node_import import import_nodes  # noqa: PLC0415

    imported = import_nodes(file.read(), name=name or "")
    click.echo(imported.text, nl=False)
    for line in imported.notices:
        click.echo(line, err=True)  # stdout stays the profiles


@profiles.command("explain")
@cli_options.explain_options
@cli_options.output_option
def profiles_explain(
    files: tuple[TextIO, ...], profile: tuple[str, ...], programs: tuple[Path, ...], output: str
) -> None:
    """Show what the programs of a pod will do on fleet's nodes.

    Each program is declared by a PodBehavior, understood from its command, or behaves by its role.

    For example:
      fleet profiles explain -f deployment.yaml
      kubectl get pods -o yaml | fleet profiles explain -f -
    """
    from fleet.profile.option_types import ProfileChoice  # noqa: PLC0415
    from fleet.run import explain  # noqa: PLC0415
    from fleet.runtime.programs import load_programs  # noqa: PLC0415

    load_programs(programs)
    texts = {file.name: file.read() for file in files}
    found = explain.explain_files(texts, tuple(map(ProfileChoice, profile)))
    click.echo(printed(output, found, explain.text_of(found)))


@profiles.command()
def schema() -> None:
    """Print the JSON schema of profile files, for editors."""
    from fleet.profile.loader import json_schema  # noqa: PLC0415

    click.echo(printed("json", json_schema()))


@cli.command()
@click.argument("fault", shell_complete=complete("fleet.faults.fault", "FAULT_NAMES"))
@cli_options.whom_options
@cli_options.fault_options
@cli_options.run_dir
@cli_options.output_option
def inject(fault: str, run_dir: Path | None, output: str, **given: object) -> None:
    """Cause a fault on a running fleet.

    `fleet faults list` shows the types of FAULT and the options of each. Without options that
    choose nodes, all nodes are hit.

    For example:
      fleet inject NodeDown --share 10% --for 5m
      fleet inject Partition --zone zone-b --mode BlackHole
      fleet inject NodeCondition --condition KernelDeadlock --nodes fleet-00007
    """
    from fleet.run import control_socket  # noqa: PLC0415

    order = control_socket.order_of(fault, given)
    answer = _run(control_socket.ask(control_socket.find_run(run_dir), order))
    click.echo(printed(output, answer, str(answer["told"])))


@cli.command()
@click.argument("fault", default="")
@click.option("--all", "all_faults", is_flag=True, help="Heal every fault.")
@cli_options.run_dir
@cli_options.output_option
def heal(fault: str, run_dir: Path | None, output: str, *, all_faults: bool) -> None:
    """List the faults of a running fleet, or end them.

    FAULT is a number from the list, or a type. Without FAULT and --all the faults are listed.

    For example:
      fleet heal
      fleet heal 2
      fleet heal --all
    """
    from fleet.run import control_socket  # noqa: PLC0415

    answer = _run(control_socket.heal(run_dir, fault, is_all=all_faults))
    if isinstance(answer, list):
        text = listed("text", [*map(control_socket.row_of, answer)], "no fault is on")
    else:
        text = str(answer["told"])
    click.echo(printed(output, answer, text))


@cli.command("status", **BY_SETTINGS, fields=cli_options.CLUSTER)
@cli_options.output_option
def status_of_runs(output: str, **named: Any) -> None:
    """List the runs of this machine, and of a cluster that you name.

    The verdict is that of the run so far. In a cluster it comes from the records of its shards.

    For example:
      fleet status
      fleet status --context test -o json
    """
    from fleet.cluster.credentials import ClusterSelection  # noqa: PLC0415
    from fleet.run import scaling  # noqa: PLC0415

    rows = _run(scaling.status(ClusterSelection(**named)))
    click.echo(listed(output, rows, scaling.NOTHING))


@cli.command(**BY_SETTINGS, fields=cli_options.CLUSTER)
@click.argument("run", default="")
@cli_options.scale_options
@cli_options.output_option
def scale(run: str, nodes: int, output: str, **named: Any) -> None:
    """Change the number of nodes of a running fleet.

    RUN is an id from `fleet status` (default: your only run on this machine). A run has room for
    its --max-nodes. With --context and the like, all shards of the run share the nodes.

    For example:
      fleet scale --nodes 500
      fleet scale 20260102-030405-ab12 --nodes 50
      fleet scale load.fleet --nodes 20000 --context test
    """
    from fleet.cluster.credentials import ClusterSelection  # noqa: PLC0415
    from fleet.run import scaling  # noqa: PLC0415

    selection = ClusterSelection(**named)
    if selection.is_named:
        answer = _run(scaling.scale_in_cluster(selection, run, nodes))
    else:
        answer = _run(scaling.scale_here(run, nodes))
    click.echo(printed(output, answer, str(answer["told"])))


@cli.command(
    **BY_SETTINGS,
    fields=cli_options.CLUSTER,
    exits=cli_options.USUAL
    | {
        Exit.EXPECTATION_FAILED: "Objects of the runs are left.",
        Exit.INVALID: "Objects with fleet's label are left that are not fleet's.",
    },
)
@cli_options.clean_options
@cli_options.output_option
def clean(statefulset: str | None, output: str, **given: Any) -> int:
    """List what runs left in a cluster, or remove it.

    Without --run, --all or --expired nothing is removed.

    For example:
      fleet clean --context test
      fleet clean --context test --run 20260102-030405-ab12
      fleet clean --expired --yes
    """
    from fleet.cluster.credentials import ClusterSelection  # noqa: PLC0415
    from fleet.report.display import ask_on_terminal  # noqa: PLC0415
    from fleet.run import clean_command  # noqa: PLC0415

    named = ClusterSelection(**{name: given.pop(name) for name in cli_options.CLUSTER})
    choice = clean_command.Choice(**given, is_gone_fine=statefulset is not None, output=output)
    ask = ask_on_terminal if sys.stdin.isatty() else None
    done = clean_command.clean_cluster(
        named, choice, statefulset or "", ask=ask, say=click.echo, note=_note
    )
    return _run(done)


@cli.command(**BY_SETTINGS, fields=cli_options.RBAC)
@cli_options.rbac_options
@cli_options.output_option
def rbac(
    service_account: str,
    user: str | None,
    name: str,
    output: str,
    *,
    legacy_impersonation: bool,
    **given: object,
) -> None:
    """Print the least RBAC permissions for a run.

    Give it the options that the run will have.

    For example:
      fleet rbac --user jane | kubectl apply -f -
      fleet rbac --service-account load/fleet --identity csr | kubectl apply -f -
    """
    from fleet.cluster import rbac as printed_rbac  # noqa: PLC0415
    from fleet.profile.settings import Settings  # noqa: PLC0415

    settings = Settings.from_options(**given)
    subject = printed_rbac.Subject.parse(service_account, user)
    names = printed_rbac.node_names(settings) if given["nodes"] else []
    found = printed_rbac.of_run(name, subject, settings, names, is_legacy=legacy_impersonation)
    objects = {"apiVersion": "v1", "kind": "List", "items": found}
    click.echo(printed("json", objects) if output == "json" else printed_rbac.text(found).rstrip())


@cli.command(
    **BY_SETTINGS,
    fields=cli_options.CLUSTER,
    exits=cli_options.USUAL
    | {
        Exit.EXPECTATION_FAILED: "A run is worse than the --baseline; a merged run failed.",
        Exit.INVALID: "Runs cannot be compared; a merged run is invalid or incomplete.",
    },
)
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="RUN_DIR...")
@cli_options.report_options
def report(
    runs: tuple[Path, ...],
    baseline: Path | None,
    tolerance: str,
    form: str | None,
    out: Path | None,
    title: str,
    run: str,
    *,
    is_merged: bool,
    **named: Any,
) -> int:
    """Write the report of a run, or compare runs with the first one.

    The report of one run is RUN_DIR/report.html: one file that needs no network. With --merge the
    directories are those of shards of one run; with --run fleet reads what the shards left in the
    cluster. The exit code is then that of the verdict on the whole run.

    For example:
      fleet report runs/20260102-030405-ab12
      fleet report runs/new --baseline runs/old -o junit --out junit.xml
      fleet report --merge shard-0 shard-1 shard-2
      fleet report --run big --context test
    """
    if bool(run) is bool(runs):
        raise UsageError("name run directories, or the --run of shards in a cluster")
    if (run or is_merged) and baseline is not None:
        raise UsageError("--baseline compares run directories: merge the shards first")
    if run:
        from fleet.cluster.credentials import ClusterSelection  # noqa: PLC0415
        from fleet.run.records import fetch_records  # noqa: PLC0415

        runs = (_run(fetch_records(ClusterSelection(**named), run, out)),)
    if run or is_merged:
        from fleet.report.merge_command import find_records, merge_runs  # noqa: PLC0415

        text, code = merge_runs(find_records(runs), form, out, title)
    else:
        from fleet.report.report_command import make_report  # noqa: PLC0415

        text, code = make_report(runs, baseline, tolerance, form, out, title, note=_note)
    if text:
        click.echo(text, nl=False)
    return code


@cli.group()
def locust() -> None:
    """Run fleets under a Locust master, with its web UI."""


locust_arguments = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
LOCUSTS = {"context_settings": {"ignore_unknown_options": True}}


@locust.command(**LOCUSTS)
@cli_options.locustfiles
@locust_arguments
def master(load: tuple[Path, ...], arguments: tuple[str, ...]) -> None:
    """Run a Locust master that can host fleets, on loopback by default.

    ARGUMENTS and variables ($LOCUST_WEB_HOST ...) are Locust's own: see `locust --help`.

    For example:
      fleet locust master --load api_users --web-port 8089
    """
    _become_locust("master", load, arguments)


@locust.command(**LOCUSTS)
@cli_options.locustfiles
@locust_arguments
def users(load: tuple[Path, ...], arguments: tuple[str, ...]) -> None:
    """Run a Locust worker of API users.

    ARGUMENTS are Locust's own, such as --master-host.

    For example:
      fleet locust users --load api_users --master-host 10.0.0.7
    """
    _become_locust("users", load, arguments)


def _become_locust(what: str, load: tuple[Path, ...], arguments: tuple[str, ...]) -> None:
    """Become a process of Locust with fleet's locustfile."""
    _require("locust", f"fleet locust {what}", "locust")
    from fleet.dashboard import locust_master as of  # noqa: PLC0415

    command = {"master": of.master_of_its_own, "users": of.users_of_their_own}[what]
    words = command(load, arguments, os.environ)
    os.execv(words[0], words)  # noqa: S606 - no shell is wanted


def worker(**given: object) -> object:
    """Host the nodes that a Locust master requests (default 127.0.0.1:5557), at most --nodes.

    For example:
      fleet locust worker --locust-master 10.0.0.7:5557 -n 5000 --context test
    """
    given["locust_master"] = given.get("locust_master") or "127.0.0.1:5557"
    assert spawn.callback is not None
    return spawn.callback(**given)


locust.add_command(
    cli_options.SettingsCommand(
        "worker",
        callback=worker,
        refused=("duration", "until_ready", "dashboard", "dry_run"),
        also=("locust_master", "on_master_quit", "max_nodes", "run_id"),
        help=worker.__doc__,
        context_settings=spawn.context_settings,
        exits=cli_options.EXITS,
    )
)


@cli.command()
@cli_options.output_option
def version(output: str) -> None:
    """Print the versions of fleet and of what it emulates."""
    found = {
        "fleet": __version__,
        "kubelet": KUBERNETES_VERSION,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    click.echo(printed(output, found, "\n".join(table([*found.items()]))))


@cli.command("help")
@click.argument("command", nargs=-1)
def help_(command: tuple[str, ...]) -> None:
    """Print the help of a command.

    For example:
      fleet help spawn
      fleet help controlplane up
    """
    cli.main([*command, "--help"], prog_name="fleet", standalone_mode=False)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    For example:
      source <(fleet completion bash)
      fleet completion fish > ~/.config/fish/completions/fleet.fish
    """
    kind = click.shell_completion.get_completion_class(shell)
    assert kind is not None, shell
    source = kind(cli, {}, "fleet", "_FLEET_COMPLETE").source()
    click.echo(source.replace('split ","', 'split --max 1 ","'))  # fish: a comma in help ends none


def _require(module: str, what: str, extra: str) -> None:
    """Refuse what needs an extra that is not installed; nothing is imported."""
    if importlib.util.find_spec(module) is None:
        raise UsageError(f"{what} needs packages of the extra {extra}: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return what installs the packages of an extra, wherever fleet itself came from."""
    wanted = importlib.metadata.requires("fleet-emulator") or ()
    names = [each.partition(";")[0] for each in wanted if f"extra == '{extra}'" in each]
    has_pip = importlib.util.find_spec("pip") is not None  # `uv tool install` brings none
    pip = (sys.executable, "-m", "pip", "install") if has_pip else UV_PIP
    return shlex.join((*pip, *names))


def _run(work: Coroutine[object, object, T]) -> T:
    """Do it; SIGTERM ends it as Ctrl-C does, so that what was begun is undone.

    A shell without job control lets what it starts with `&` ignore SIGINT, which SIGTERM becomes.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    return run_loop(work)


def _note(line: str) -> None:
    click.echo(line, err=True)


if __name__ == "__main__":
    main()
