"""The command line: parse, call, print; no logic. stdout is the result, stderr all the rest."""

import asyncio
import contextlib
import importlib.util
import logging
import os
import signal
import sys
import traceback
import types
from collections.abc import Container, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click
import orjson
import uvloop
from click.core import ParameterSource

from fleet import KUBERNETES_VERSION, __version__
from fleet.errors import Exit, FleetError, UsageError, masked
from fleet.run.cli_options import (
    CLUSTER,
    NOT_OF_CAPACITY,
    RBAC,
    UP,
    VARIABLES,
    GroupedCommand,
    SettingsCommand,
    capacity_options,
    clean_options,
    fault_options,
    rbac_options,
    report_options,
    run_dir,
    scenario_options,
)

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
    except click.UsageError as error:
        code = _fail(error.format_message(), Exit.USAGE)
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
        """Return the line."""
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


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message=f"fleet %(version)s (kubelet {KUBERNETES_VERSION})")
def cli() -> None:
    """Thousands of virtual kubelets, to load-test a real Kubernetes control plane.

    Options of fleet spawn have variables, in every command that has the option: $FLEET_NODES sets
    --nodes. Only --run-dir and --controlplane-bin have none there. A flag overrides its variable,
    and a variable overrides the default.
    """


@cli.command(cls=SettingsCommand, context_settings=VARIABLES)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def spawn(**given: object) -> int:
    """Bring virtual kubelets up and keep them until Ctrl-C, then clean up.

    With -- COMMAND: run it once all nodes are Ready, with KUBECONFIG set, and exit with its code.
    Without --kubeconfig, --context or --in-cluster the nodes join a local control plane.
    $FLEET_NODES sets --nodes, and so on for all options except --run-dir and --controlplane-bin:
    flag > variable > default.
    """
    from fleet.profile.settings import Settings  # noqa: PLC0415 - `fleet --help` must not load pydantic

    settings = Settings.from_options(**given)
    if settings.dashboard:
        _require("locust", "--dashboard", "locust")
    if settings.is_on_dashboard:
        _require("zmq", "--locust-master", "worker")
        from fleet.dashboard.locust_master import find_loads  # noqa: PLC0415

        settings = settings.model_copy(update={"load": find_loads(settings.load)})

    return _play(settings, None)


@cli.command("run", cls=SettingsCommand, without=(), context_settings=VARIABLES)
@click.argument("file", metavar="FILE")
@scenario_options
def run_scenario(file: str, *, is_dry: bool, **given: object) -> int:
    """Play a scenario: FILE, or one that ships with fleet; exit 1 if it is not as expected.

    The options are those of fleet spawn; --nodes, --profile, --seed and --start stand in for the
    file's.
    """
    from fleet.run import scenario_player  # noqa: PLC0415
    from fleet.scenario import scenario as files  # noqa: PLC0415

    scenario = files.load(path := files.find(file))
    given = _without_variables(given, scenario_player.ENDS_BY_ITSELF)
    settings = scenario_player.settings_of(scenario, path, given)
    if is_dry:
        click.echo(scenario_player.dry_run(scenario, path, settings))
        return Exit.OK
    return _play(settings, scenario_player.ScenarioPlayer(scenario, path))


@cli.command(cls=SettingsCommand, without=NOT_OF_CAPACITY, context_settings=VARIABLES)
@capacity_options
def capacity(
    max_nodes: int,
    first: int | None,
    hold: str,
    ready_within: str,
    precision: str,
    tries: int,
    scenario: str | None,
    run_dir: Path | None,
    output: str | None,
    **given: object,
) -> int:
    """Find the largest number of nodes that a control plane can handle within its SLOs.

    Each size is a run of its own. Sizes double until one breaks, then fleet halves the gap. The
    other options are those of fleet spawn, with their variables ($FLEET_PROFILE ...); options of
    the search have none.
    """
    from fleet.run import capacity as search  # noqa: PLC0415

    options = search.options_of(first, max_nodes, precision, tries, ready_within, run_dir)
    asked = search.asked_of(scenario, hold, max_nodes, given)
    found = _run(search.search(asked, options, _note))
    is_json = output == "json"
    click.echo(search.as_json(found) if is_json else search.text(found, options.directory))
    return found.exit_code


def _without_variables(given: Mapping[str, object], names: Container[str]) -> dict[str, object]:
    """Leave out options of these names that variables gave: they are for other commands."""
    source = click.get_current_context().get_parameter_source
    return {
        name: value
        for name, value in given.items()
        if name not in names or source(name) is not ParameterSource.ENVIRONMENT
    }


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
            if not run.was_interrupted_twice:
                raise
            click.echo(f"fleet: {run.left_behind()}", err=True)
            return Exit.INTERRUPTED
        if settings.output == "json":
            click.echo(outcome.json())
        else:
            has_colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
            click.echo(outcome.text(has_colours=has_colours))
        if outcome.problem:
            click.echo(f"fleet: the summary is not kept: {outcome.problem}", err=True)
        return outcome.exit_code

    return uvloop.run(run())


@cli.group()
def scenarios() -> None:
    """List what ships for fleet run, or show how files of one's own are written."""


@scenarios.command("list")
def scenarios_list() -> None:
    """List the scenarios that ship, with their first line."""
    from fleet.scenario.scenario import shipped  # noqa: PLC0415

    for name, path in shipped().items():
        first = path.read_text("utf-8").partition("\n")[0]
        click.echo(f"{name:20} {first.removeprefix('# ')}")


@scenarios.command("schema")
def scenarios_schema() -> None:
    """Print the JSON schema of scenario files, for editors."""
    from fleet.scenario.scenario import json_schema  # noqa: PLC0415

    click.echo(orjson.dumps(json_schema(), option=orjson.OPT_INDENT_2))


@cli.group()
def controlplane() -> None:
    """Run the local control plane on its own."""


directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Where it lives.",
)


@controlplane.command(cls=SettingsCommand, fields=UP, context_settings=VARIABLES)
@directory_option
def up(directory: Path | None, **given: object) -> None:
    """Start a control plane that outlives this command; print its kubeconfig."""
    from fleet.controlplane import standing as plane  # noqa: PLC0415
    from fleet.profile.settings import Settings  # noqa: PLC0415
    from fleet.run.target import plane_options  # noqa: PLC0415

    wanted = plane_options(Settings.from_options(**given), directory)
    info = _run(plane.up(wanted, progress=_note))
    click.echo(f"export KUBECONFIG={info.kubeconfig}")


@controlplane.command()
@directory_option
def down(directory: Path | None) -> None:
    """Stop the control plane."""
    from fleet.controlplane import standing as plane  # noqa: PLC0415

    was_up = _run(plane.down(directory))
    click.echo("stopped" if was_up else "no control plane was running")


@controlplane.command()
@directory_option
def status(directory: Path | None) -> int:
    """Tell whether the control plane runs and is healthy."""
    from fleet.controlplane import standing as plane  # noqa: PLC0415

    found = _run(plane.status(directory))
    if found is None:
        click.echo("no control plane is running")
        return Exit.SETUP
    for name, is_running in found.components.items():
        click.echo(f"{name:26} {'running' if is_running else 'gone'}")
    click.echo(f"{found.info.url} is {'ready' if found.is_ready else 'NOT ready'}")
    click.echo(f"export KUBECONFIG={found.info.kubeconfig}")
    return Exit.OK if found.is_ready else Exit.SETUP


@controlplane.command()
@click.option(
    "--kubernetes-version",
    "wanted",
    multiple=True,
    metavar="MINOR",
    help="Build this minor, e.g. 1.35 (default: find or build the default).",
)
def build(wanted: tuple[str, ...]) -> None:
    """Build the control plane's programs into the user's cache, once."""
    from fleet.controlplane.binaries import release_of  # noqa: PLC0415
    from fleet.controlplane.build import provide_binaries  # noqa: PLC0415

    for release in [release_of(each) for each in wanted or ("",)]:
        click.echo(_run(provide_binaries(None, _note, release=release)).source)


@controlplane.command("list")
def list_releases() -> None:
    """List the releases of Kubernetes that fleet builds, and which of them are built."""
    from fleet.controlplane.binaries import PROGRAM, cached_binaries, releases  # noqa: PLC0415

    for release in releases().values():
        built = cached_binaries(release)
        note = "default" if release == KUBERNETES_VERSION else ""
        if built is None:
            click.echo(f"{release:10}{note:9}not built")
        else:
            directory = Path(built.commands["etcd"][0]).parent.parent
            size = (directory / PROGRAM).stat().st_size
            click.echo(f"{release:10}{note:9}{size >> 20} MiB in {directory}")


@cli.group()
def profiles() -> None:
    """List, show and import node profiles; explain what the programs of pods do."""


@profiles.command("list")
def profiles_list() -> None:
    """List the profiles that ship with fleet."""
    from fleet.profile.loader import list_profiles  # noqa: PLC0415

    listed = list_profiles()
    columns = max(len(profile.name) for profile in listed)
    for profile in listed:
        click.echo(f"{profile.name:{columns}} {profile.kind:14} {profile.description}")


@profiles.command()
@click.argument("name")
def show(name: str) -> None:
    """Print a profile, a start for one of your own; on stderr its keys without effect."""
    from fleet.profile.loader import show_profile, warnings_of  # noqa: PLC0415

    click.echo(show_profile(name), nl=False)
    for line in warnings_of(name):
        click.echo(line, err=True)  # stdout stays the profile


@profiles.command("import")
@click.argument("file", type=click.File(encoding="utf-8", errors="replace"), default="-")
@click.option("--name", help="Name of the new profile.")
def profiles_import(file: TextIO, name: str | None) -> None:
    """Make profiles of Nodes, YAML or JSON: kubectl get nodes -o yaml | fleet profiles import."""
    from fleet.profile.node_import import import_nodes  # noqa: PLC0415

    imported = import_nodes(file.read(), name=name or "")
    click.echo(imported.text, nl=False)
    for line in imported.notices:
        click.echo(line, err=True)  # stdout stays the profiles


@profiles.command("explain")
@click.option(
    "-f",
    "--filename",
    "files",
    type=click.File(encoding="utf-8", errors="replace"),
    multiple=True,
    required=True,
    metavar="FILE",
    help="Pods, or objects with a pod template, as YAML or JSON; - for stdin.",
)
@click.option(
    "--profile",
    multiple=True,
    metavar="NAME|FILE",
    help="Use the defaults and PodBehaviors of this profile, as fleet spawn does.",
)
@click.option(
    "--programs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Use this plug-in, as fleet spawn does.",
)
def profiles_explain(
    files: tuple[TextIO, ...], profile: tuple[str, ...], programs: tuple[Path, ...]
) -> None:
    """Show what fleet takes each program of a pod for: declared, understood, or by role."""
    from fleet.profile.option_types import ProfileChoice  # noqa: PLC0415
    from fleet.run.explain import explain_files  # noqa: PLC0415
    from fleet.runtime.programs import load_programs  # noqa: PLC0415

    load_programs(programs)
    texts = {file.name: file.read() for file in files}
    click.echo(explain_files(texts, tuple(map(ProfileChoice, profile))), nl=False)


@profiles.command()
def schema() -> None:
    """Print the JSON schema of profile files, for editors."""
    from fleet.profile.loader import json_schema  # noqa: PLC0415

    click.echo(orjson.dumps(json_schema(), option=orjson.OPT_INDENT_2))


@cli.command(cls=GroupedCommand)
@click.argument("fault")
@fault_options
@run_dir
def inject(fault: str, run_dir: Path | None, **given: object) -> None:
    """Let something go wrong on a running fleet: docs/how-to/faults.md has the FAULTs."""
    from fleet.run import control_socket  # noqa: PLC0415

    order = control_socket.order_of(fault, given)
    click.echo(_run(control_socket.inject(run_dir, order)))


@cli.command()
@click.argument("fault", default="")
@click.option("--all", "all_faults", is_flag=True, help="Heal every fault.")
@run_dir
def heal(fault: str, run_dir: Path | None, *, all_faults: bool) -> None:
    """End faults of a running fleet: FAULT is a number or a type; without it list what is on."""
    from fleet.run import control_socket  # noqa: PLC0415

    click.echo(_run(control_socket.heal(run_dir, fault, is_all=all_faults)))


@cli.command(cls=SettingsCommand, fields=CLUSTER, context_settings=VARIABLES)
@clean_options
def clean(statefulset: str | None, **given: Any) -> int:
    """List what runs left in a cluster, or remove it; without arguments nothing is deleted."""
    from fleet.cluster.credentials import ClusterSelection  # noqa: PLC0415
    from fleet.report.display import ask_on_terminal  # noqa: PLC0415
    from fleet.run import clean_command  # noqa: PLC0415

    named = ClusterSelection(**{name: given.pop(name) for name in CLUSTER})
    choice = clean_command.Choice(**given, is_gone_fine=statefulset is not None)
    ask = ask_on_terminal if sys.stdin.isatty() else None
    done = clean_command.clean_cluster(
        named, choice, statefulset or "", ask=ask, say=click.echo, note=_note
    )
    return _run(done)


@cli.command(cls=SettingsCommand, fields=RBAC, context_settings=VARIABLES)
@rbac_options
def rbac(
    service_account: str, user: str, name: str, *, legacy_impersonation: bool, **given: object
) -> None:
    """Print the least RBAC for runs with these options: fleet rbac | kubectl apply -f -."""
    from fleet.cluster import rbac as printed  # noqa: PLC0415
    from fleet.profile.settings import Settings  # noqa: PLC0415

    settings = Settings.from_options(**given)
    subject = printed.Subject.parse(service_account, user)
    names = printed.node_names(settings) if given["nodes"] else []
    found = printed.of_run(name, subject, settings, names, is_legacy=legacy_impersonation)
    click.echo(printed.text(found), nl=False)


@cli.command()
@click.argument(
    "runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN_DIR..."
)
@report_options
def report(
    runs: tuple[Path, ...],
    baseline: Path | None,
    tolerance: str,
    form: str | None,
    out: Path | None,
    title: str,
) -> int:
    """Make the report of a run, or compare runs with the first of them.

    Of one run it is RUN_DIR/report.html, one file that needs no network.
    """
    from fleet.report.report_command import make_report  # noqa: PLC0415

    text, code = make_report(runs, baseline, tolerance, form, out, title, note=_note)
    if text:
        click.echo(text, nl=False)
    return code


@cli.group()
def locust() -> None:
    """Join fleets to Locust: a master with the Fleet tab, or workers that host nodes."""


locustfiles = click.option(
    "--load",
    multiple=True,
    type=click.Path(path_type=Path),
    envvar="FLEET_LOAD",
    help="A locustfile of API users, or the name of one that ships with fleet.",
)
locust_arguments = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)


@locust.command(context_settings={"ignore_unknown_options": True})
@locustfiles
@locust_arguments
def master(load: tuple[Path, ...], arguments: tuple[str, ...]) -> None:
    """Become a Locust master that knows fleet, on loopback by default.

    ARGUMENTS are Locust's own, and so are its variables ($LOCUST_WEB_HOST ...): `locust --help`.
    """
    _require("locust", "fleet locust master", "locust")
    from fleet.dashboard.locust_master import master_of_its_own  # noqa: PLC0415

    command = master_of_its_own(load, arguments, os.environ)
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


@locust.command(context_settings={"ignore_unknown_options": True})
@locustfiles
@locust_arguments
def users(load: tuple[Path, ...], arguments: tuple[str, ...]) -> None:
    """Become a Locust worker of API users; ARGUMENTS are Locust's own, such as --master-host."""
    _require("locust", "fleet locust users", "locust")
    from fleet.dashboard.locust_master import users_of_their_own  # noqa: PLC0415

    command = users_of_their_own(load, arguments, os.environ)
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


def worker(**given: object) -> object:
    """Have the nodes that a Locust master asks for (default 127.0.0.1:5557); see `fleet spawn`."""
    given["locust_master"] = given.get("locust_master") or "127.0.0.1:5557"
    assert spawn.callback is not None
    return spawn.callback(**given)


locust.add_command(
    SettingsCommand(
        "worker",
        params=spawn.params,
        callback=worker,
        help=worker.__doc__,
        context_settings=spawn.context_settings,
    )
)


def _require(module: str, what: str, extra: str) -> None:
    """Refuse what needs an extra that is not installed; nothing is imported."""
    if importlib.util.find_spec(module) is None:
        raise UsageError(f"{what} needs more: pip install 'fleet-emulator[{extra}]'")


def _run(work: Coroutine[object, object, T]) -> T:
    """Do it; SIGTERM ends it as Ctrl-C does, so that what was begun is undone."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    return uvloop.run(work)


def _note(line: str) -> None:
    click.echo(line, err=True)


if __name__ == "__main__":
    main()
