"""The options of the commands, and their help: by group, with examples and exit codes.

Options of `fleet spawn` are declared in `Settings`, the others here. A docstring of a command is
its help; its first sentence stands in the list of commands.
"""

import enum
import functools
import inspect
import logging
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

from fleet.errors import Exit, UsageError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

F = Callable[..., object]
PATH = click.Path(path_type=Path)
FORMATS = ("text", "json", "yaml")
SCENARIOS_ONLY = frozenset({"real_nodes"})
ENDS_BY_ITSELF = ("duration", "until_ready", "dashboard", "locust_master", "slo")
"""Options of `fleet spawn` that a scenario leaves no room for."""
VARIABLES = {"auto_envvar_prefix": "FLEET"}
"""Of a command: `$FLEET_NODES` stands for `--nodes`, as everywhere."""
SHORT = {"nodes": "-n", "output": "-o", "quiet": "-q"}
# fmt: off
COMMON = frozenset((
    "nodes", "profiles", "fidelity", "start", "rate", "identity", "kubeconfig", "context",
    "confirm_cluster", "duration_ns", "until_ready", "dry_run", "keep", "kubeconfig_out", "run_dir",
    "slo", "quiet", "output", "dashboard", "processes", "kubernetes_version",
))
# fmt: on
"""Options of `fleet spawn` that most runs need; `--help-all` shows the others too."""
SECTIONS = {
    "Run nodes": ("spawn", "run", "capacity", "scale", "inject", "heal", "locust"),
    "Inspect": ("status", "report", "scenarios", "faults", "profiles"),
    "Clean up": ("clean",),
    "Control plane": ("controlplane", "rbac"),
    "About fleet": ("version", "help", "completion"),
}
EXITS = {
    Exit.OK: "Done; a run is valid and meets its expectations.",
    Exit.EXPECTATION_FAILED: "A service level or another expectation is not met.",
    Exit.USAGE: "An option, a file or a combination of them is wrong.",
    Exit.SETUP: "The set-up failed: a program, a port, a permission, a server.",
    Exit.INVALID: "The result is invalid, incomplete or not judged as asked; see the reasons.",
    Exit.INTERRUPTED: "Interrupted: a second Ctrl-C, or one before there were nodes.",
}
EXAMPLES = "\b\nExamples:\n"
"""What begins the examples of a command, whose lines are kept as they are."""
USUAL = {code: EXITS[code] for code in (Exit.USAGE, Exit.SETUP)} | {Exit.OK: "Done."}


class GroupedOption(click.Option):
    """An option that help shows under a heading, an uncommon one only in `--help-all`."""

    def __init__(self, *arguments: Any, group: str, is_common: bool = True, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.group, self.is_common = group, is_common


def general(names: str, act: Callable[..., None], words: str, **how: bool) -> click.Option:
    """Return an option that does something at once."""
    return click.Option(names.split(), expose_value=False, callback=act, help=words, **how)


def _set_verbosity(_context: click.Context, _option: click.Parameter, times: int) -> None:
    if times:
        logging.getLogger("fleet").setLevel(logging.INFO if times == 1 else logging.DEBUG)


class Command(click.Command):
    """A command whose help has a section for each group of options, and its exit codes."""

    def __init__(self, *arguments: Any, exits: Mapping[Exit, str] = USUAL, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.exits = exits
        self.help = with_examples(self.help or "")
        self.params.append(
            general("-v --verbose", _set_verbosity, "Log each request of fleet itself.", count=True)
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse an empty value: it is mostly a shell's variable that is not set."""
        if not ctx.resilient_parsing:
            given, _, named = self.make_parser(ctx).parse_args([*args])
            for each in named:
                value = given.get(each.name)
                is_empty = "" in value if isinstance(value, (list, tuple)) else value == ""
                if is_empty and each.type is not click.UNPROCESSED:
                    name = max(each.opts, key=len)
                    raise UsageError(f"{name}: is empty; give a value or leave it out")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        parameters = self.get_params(ctx)
        is_whole = bool(ctx.meta.get("help_all"))
        for title, listed in grouped(parameters, is_whole=is_whole).items():
            records = [each.get_help_record(ctx) for each in listed]
            with formatter.section(title):
                formatter.write_dl([record for record in records if record is not None])

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code.value), self.exits[code]) for code in sorted(self.exits)])


class Commands(click.Group):
    """Commands in sections, each with the first sentence of its help."""

    command_class = Command
    group_class = type

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.help = with_examples(self.help or "")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        is_top = ctx.parent is None
        for title, names in (SECTIONS if is_top else {"Commands": tuple(self.commands)}).items():
            width = max(map(len, self.commands))
            rows = [(name.ljust(width), summary(self.commands[name])) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(f"Details of a command: {ctx.command_path} COMMAND --help")


def with_examples(text: str) -> str:
    """Mark the examples of a docstring, so that their lines are kept as they are."""
    return inspect.cleandoc(text).replace("For example:\n", EXAMPLES)


def summary(command: click.Command) -> str:
    """Return the first sentence of a command's help."""
    first = " ".join((command.help or "").partition("\n\n")[0].split())
    return first.partition(". ")[0].removesuffix(".") + "."


class SettingsCommand(Command):
    """A command with options of `fleet spawn`: those of `fields`, or all but those of `without`.

    `fields` may have another help for a field. `also` are common here. The options are made of
    `Settings` when they are asked for: `fleet --help` does without pydantic, which takes 0.25 s. No
    variable stands for the other options of the command, nor for `refused` ones, which only have an
    error to give: one that is set for runs neither deletes nor skips anything.
    """

    def __init__(
        self,
        *arguments: Any,
        fields: Mapping[str, str] = MappingProxyType({}),
        without: Container[str] = SCENARIOS_ONLY,
        refused: Container[str] = (),
        also: Container[str] = (),
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        self._fields, self._without, self._refused, self._also = fields, without, refused, also
        self._made: list[click.Option] | None = None
        if not fields:
            whole = "Show all options, with those for shards, Locust and the control plane."
            self.params.append(general("--help-all", _show_all, whole, is_flag=True, is_eager=True))
        for own in self.params:
            own.allow_from_autoenv = False  # type: ignore[attr-defined]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's own parameters, then those of `Settings`."""
        if self._made is None:
            self._made = [*self._make()]
        *own, help_option = super().get_params(ctx)
        return [*own, *self._made, help_option]

    def _make(self) -> Iterator[click.Option]:
        from fleet.profile.settings import GROUPS, Settings  # noqa: PLC0415 - see above

        group = ""
        for name, field in Settings.model_fields.items():
            group = GROUPS.get(name, group)
            is_ours = name not in self._without and (not self._fields or name in self._fields)
            if field.description and is_ours:
                words = self._fields.get(name) or " ".join(field.description.split())
                option = _option(name, field, group, words)
                option.is_common = bool(self._fields) or name in COMMON or name in self._also
                if option.name in self._refused:
                    option.hidden, option.allow_from_autoenv = True, False
                yield option


def _show_all(context: click.Context, _option: click.Parameter, is_asked: bool) -> None:  # noqa: FBT001
    if is_asked and not context.resilient_parsing:
        context.meta["help_all"] = True
        click.echo(context.get_help())
        context.exit()


def _option(field_name: str, field: "FieldInfo", group: str, words: str) -> GroupedOption:
    from fleet.profile.option_types import Shown  # noqa: PLC0415 - see above
    from fleet.profile.settings import flag_of  # noqa: PLC0415

    shown = next((each for each in field.metadata if isinstance(each, Shown)), Shown())
    kind: Any = field.annotation
    if type(None) in get_args(kind):
        [kind] = (each for each in get_args(kind) if each is not type(None))
    if is_several := get_origin(kind) is tuple:
        kind = get_args(kind)[0]
    flag = flag_of(field_name)
    how: dict[str, Any] = {"type": str}  # of what a validator reads itself
    if kind is bool:
        how = {"is_flag": True, "default": field.default}
        flag += f"/--not-{field_name}" if field.default is None else ""
    elif kind is int:
        how = {"type": int}
    elif kind is Path:
        how = {"type": PATH}
    elif get_origin(kind) is Literal:
        how = {"type": click.Choice(get_args(kind))}
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        how = {"type": click.Choice([str(each) for each in kind])}
    return GroupedOption(
        [*filter(None, [SHORT.get(field_name)]), flag],
        group=group,
        help=words,
        hidden=shown.is_hidden,
        metavar=shown.metavar,
        envvar=shown.variable or None,
        allow_from_autoenv=shown.variable is not None,
        multiple=is_several,
        **how,
    )


def grouped(
    parameters: list[click.Parameter], *, is_whole: bool = True
) -> dict[str, list[click.Option]]:
    """Return the options that help shows by their heading, the general ones last."""
    groups: dict[str, list[click.Option]] = {}
    general = []
    for each in parameters:
        if isinstance(each, GroupedOption):
            if not each.hidden and (is_whole or each.is_common):
                groups.setdefault(each.group, []).append(each)
        elif isinstance(each, click.Option) and not each.hidden:
            general.append(each)
    return groups | {"Options": general}


def options(group: str, *rows: tuple[object, ...]) -> Callable[[F], F]:
    """Return what gives a command options under a heading, "" for the general one.

    A row has the names, the type (a string stands for one in help; bool is a flag; in a list it may
    be repeated), the help, and a default if there is one, ... if the option is required.
    """
    made = []
    for names, kind, words, *default in rows:
        how: dict[str, Any] = {"help": words} | ({"default": default[0]} if default else {})
        if default == [...]:
            how = {"help": words, "required": True}
        [of] = kind if isinstance(kind, list) else [kind]
        how |= {"metavar": of} if isinstance(of, str) else {"type": of}
        how |= {"metavar": "INTEGER"} if isinstance(of, click.IntRange) else {}
        how |= {"multiple": True} if isinstance(kind, list) else {}
        if kind is bool:
            how = {"help": words, "is_flag": True}
        if group:
            how |= {"cls": GroupedOption, "group": group}
        made.append(click.option(*str(names).split(), **how))
    return functools.partial(functools.reduce, lambda command, each: each(command), made[::-1])


output_option = options(
    "", ("-o --output", click.Choice(FORMATS), "Format (default text).", "text")
)
run_dir = click.option(
    "--run-dir",
    type=PATH,
    envvar="FLEET_RUN_DIR",  # as COMMAND of a run finds it
    help="Directory of the run (default: that of your only running fleet).",
)
whom_options = options(
    "Nodes that it hits: those that match all of these",
    ("--selector", "KEY=VALUE[,...]", "Nodes with these labels."),
    ("--zone", "ZONE", "Nodes of this zone."),
    ("--nodes", "NAME[,...]", "Nodes with these names."),
    ("--share", "SHARE", "Random part of these nodes, e.g. 25%."),
)
fault_options = options(
    "What it does",
    ("--for for_", "DURATION", "Heal the fault after this time, e.g. 8m."),
    ("--by", "DURATION", "Delay, or offset of a clock, e.g. 20s or -1h."),
    ("--every", "DURATION", "Period of a fault that is on half of the time."),
    ("--mode", "Reset|BlackHole|Inbound|Outbound", "Kind of a Partition."),
    ("--component", "etcd|kube-apiserver|...", "Control plane component to hit."),
    ("--condition", "TYPE", "Node condition to set, e.g. KernelDeadlock."),
    ("--status", "True|False|Unknown", "Status to set it to (default True)."),
    ("--resource", "NAME", "Resource whose devices fail, e.g. nvidia.com/gpu."),
    ("--count", click.IntRange(1), "Number of failing devices (default all)."),
    ("--heartbeats", "Lease|Status", "Heartbeat to lose (default both)."),
    ("--reason", "TEXT", "Reason that the runtime or a daemon reports."),
    ("--message", "TEXT", "Message that the runtime, a plug-in, a driver or a daemon reports."),
)
PODS = "Pods, or objects with a pod template, as YAML or JSON; - for stdin."
LOCUSTFILES = "Locustfile of API users, or the name of one that ships with fleet."
locustfiles = click.option(
    "--load", multiple=True, type=PATH, envvar="FLEET_LOAD", help=LOCUSTFILES
)
directory_option = options(
    "",
    ("--dir directory", PATH, "Directory of the control plane (default: in your state directory)."),
)
build_options = options("", ("--kubernetes-version wanted", ["MINOR"], "Minor, e.g. 1.35."))
explain_options = options(
    "",
    ("-f --filename files", [click.File(encoding="utf-8", errors="replace")], PODS, ...),
    ("--profile", ["NAME|FILE"], "Use the defaults and PodBehaviors of this profile."),
    ("--programs", [PATH], "Use this plug-in, as fleet spawn does."),
)
clean_options = options(
    "",
    ("--run", "TEXT", "Remove this run.", ""),
    ("--all all_runs", bool, "Remove every run, also running ones."),
    ("--expired", bool, "Remove the runs whose fleet is gone."),
    ("--yes", bool, "Do not ask before --all or --expired removes runs."),
    ("--dry-run is_dry", bool, "Show what would be removed, and remove nothing."),
    ("--statefulset", "NAMESPACE/NAME", "Scale this StatefulSet, which hosts the run, to 0 first."),
)
rbac_options = options(
    "",
    ("--legacy-impersonation", bool, "Print rights for servers before 1.36."),
    ("--service-account", "NAMESPACE/NAME", "Who gets the rights.", "fleet/fleet"),
    ("--user", "TEXT", "User who gets the rights, not a service account."),
    ("--name", "TEXT", "Name of the roles (default fleet).", "fleet"),
)
REPORTS = click.Choice(["html", "markdown", "junit", "openmetrics", *FORMATS])
scale_options = options("", ("-n --nodes", click.IntRange(0), "New number of nodes.", ...))
report_options = options(
    "",
    ("--merge is_merged", bool, "Make one report of the shards of a run."),
    ("--run", "ID", "Make one report of what the shards of this run left in the cluster.", ""),
    ("--baseline", PATH, "Compare with this run; exit with 1 if worse."),
    ("--tolerance", "SHARE", "How much worse a figure may be (default 10%).", "10%"),
    ("-o --output --format form", REPORTS, "Format (default html; markdown for several)."),
    ("--out", PATH, "Write to this file, or with --merge or --run to this directory."),
    ("--title", "TEXT", "Title of the page of a run (default: the run's own).", ""),
)
capacity_options = options(
    "Search",
    ("--max-nodes", int, "Largest size to try.", ...),
    ("--first", int, "First size (default 100, or --max-nodes if smaller)."),
    ("--hold", "DURATION", "Time that a size must hold when Ready (default 75s).", "75s"),
    ("--ready-within", "DURATION", "Time to become Ready in (default 10m).", "10m"),
    ("--precision", "SHARE", "Stop at this gap to a failed size (default 10%).", "10%"),
    ("--tries", int, "Failed runs that fail a size (default 2).", 2),
    ("--pods-per-node", int, "Pods to run on each node (default none: idle nodes)."),
    (
        "--pod-churn",
        float,
        "Pods to replace per second and node (default 0.004 if there are pods).",
    ),
    ("--scenario", "FILE", "Play this scenario with each size."),
    ("--shard", "K/N", "Search with N machines: 0/N leads, 1/N to N-1/N follow.", "0/1"),
    ("--run-dir", PATH, "Directory of all runs (default runs/capacity-<time>)."),
)
# fmt: off
CLUSTER = dict.fromkeys(("kubeconfig", "context", "in_cluster"), "")
UP = dict.fromkeys((
    "kubernetes_version", "kubeconfig_out", "controlplane_bin", "fsync", "audit_log", "etcd_flags",
    "apiserver_flags", "scheduler_flags", "controller_manager_flags",
), "")
"""Fields of `Settings` that `fleet controlplane up` has, too."""
RBAC = dict.fromkeys((
    "identity", "fidelity", "profiles", "no_agents", "simulate_csi", "approve_csrs", "manage",
    "serve", "serve_at", "record",
), "As you will give it to the run.") | {
    "nodes": "Restrict the rights to this number of nodes, by name.",
    "name_prefix": "Prefix of the names of these nodes (default fleet).",
    "processes": "Number of processes, which decides the names of the nodes.",
}
"""Fields of `Settings` that `fleet rbac` has, too, with its help."""
NOT_OF_CAPACITY = frozenset((
    "nodes", "max_nodes", "duration_ns", "until_ready", "dry_run", "keep", "output", "run_dir",
    "kubeconfig_out", "shared", "manage", "shard", "shard_stride", "nodes_total", "run_id",
    "holder", "statefulset", "dashboard", "dashboard_port", "dashboard_hosts", "locust_master",
    "on_master_quit", "load", "api_users", "load_cluster_role", "story",
))
# fmt: on
"""Options of `fleet spawn` that the search sets itself, or that make no sense in it."""
