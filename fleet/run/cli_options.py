"""The options of the commands: those of `fleet spawn` in the groups of its help, and of others."""

import enum
import functools
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

F = Callable[..., object]
PATH = click.Path(path_type=Path)


SCENARIOS_ONLY = frozenset({"real_nodes"})
VARIABLES = {"auto_envvar_prefix": "FLEET"}
"""Of a command: `$FLEET_NODES` stands for `--nodes`, as everywhere."""


class GroupedOption(click.Option):
    """An option that help shows under a heading."""

    def __init__(self, *arguments: Any, group: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose help has a section for each group, in the order of its options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        for title, listed in grouped(self.get_params(ctx)).items():
            records = [each.get_help_record(ctx) for each in listed]
            with formatter.section(title):
                formatter.write_dl([record for record in records if record is not None])


class SettingsCommand(GroupedCommand):
    """A command with options of `fleet spawn`: those of `fields`, or all but those of `without`.

    `fields` may have another help for a field. The options are made of `Settings` when they are
    asked for: `fleet --help` does without pydantic, which takes 0.25 s. No variable stands for the
    other options of the command: one that is set for runs neither deletes nor skips anything.
    """

    def __init__(
        self,
        *arguments: Any,
        fields: Mapping[str, str] = MappingProxyType({}),
        without: Container[str] = SCENARIOS_ONLY,
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        self._fields, self._without = fields, without
        self._made: list[click.Option] | None = None
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
                yield _option(field.alias or name, field, group, words)


def _option(name: str, field: "FieldInfo", group: str, words: str) -> click.Option:
    """Return the option of a field of `Settings`."""
    from fleet.profile.option_types import Shown  # noqa: PLC0415 - see above

    shown = next((each for each in field.metadata if isinstance(each, Shown)), Shown())
    kind: Any = field.annotation
    if type(None) in get_args(kind):
        [kind] = (each for each in get_args(kind) if each is not type(None))
    if is_several := get_origin(kind) is tuple:
        kind = get_args(kind)[0]
    flag = f"--{name.replace('_', '-')}"
    how: dict[str, Any] = {"type": str}  # of what a validator reads itself
    if kind is bool:
        how = {"is_flag": True, "default": field.default}
        flag += f"/--not-{name}" if field.default is None else ""
    elif kind is int:
        how = {"type": int}
    elif kind is Path:
        how = {"type": PATH}
    elif get_origin(kind) is Literal:
        how = {"type": click.Choice(get_args(kind))}
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        how = {"type": click.Choice([str(each) for each in kind])}
    return GroupedOption(
        [flag],
        group=group,
        help=words,
        hidden=shown.is_hidden,
        metavar=shown.metavar,
        envvar=shown.variable or None,
        allow_from_autoenv=shown.variable is not None,
        multiple=is_several,
        **how,
    )


def grouped(parameters: list[click.Parameter]) -> dict[str, list[click.Option]]:
    """Return the options that help shows by their heading."""
    groups: dict[str, list[click.Option]] = {}
    for each in parameters:
        if isinstance(each, click.Option) and not each.hidden:
            title = each.group if isinstance(each, GroupedOption) else "Options"
            groups.setdefault(title, []).append(each)
    return groups


def join(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Make one decorator of several."""

    def decorate(function: F) -> F:
        return functools.reduce(lambda made, each: each(made), reversed(decorators), function)

    return decorate


def in_group(group: str) -> Callable[..., Callable[[F], F]]:
    """Return `click.option` for a group."""
    return functools.partial(click.option, cls=GroupedOption, group=group)


whom = in_group("Whom it hits: all nodes that match all of these")
what = in_group("What it does")

CLUSTER = dict.fromkeys(("kubeconfig", "context", "in_cluster"), "")
UP = dict.fromkeys(
    (
        *("kubeconfig_out", "controlplane_bin", "kubernetes_version", "fsync", "audit_log"),
        *("etcd_flags", "apiserver_flags", "scheduler_flags", "controller_manager_flags"),
    ),
    "",
)
"""Fields of `Settings` that `fleet controlplane up` has, too."""
run_dir = click.option(
    "--run-dir",
    type=PATH,
    envvar="FLEET_RUN_DIR",  # as COMMAND of a run finds it
    help="Directory of the run (default: that of your only running fleet).",
)
fault_options = join(
    whom("--selector", metavar="KEY=VALUE[,...]", help="Nodes with these labels."),
    whom("--zone", help="Nodes of this zone."),
    whom("--nodes", metavar="NAME[,...]", help="These nodes."),
    whom("--share", metavar="SHARE", help="A part of those, drawn with the seed: 25%."),
    what("--for", "for_", metavar="DURATION", help="Heal it after this long, e.g. 8m."),
    what("--by", metavar="DURATION", help="How late, or how far off a clock is."),
    what("--every", metavar="DURATION", help="It comes and goes: on for half of this, then off."),
    what("--mode", metavar="Reset|BlackHole|Inbound|Outbound", help="Of a Partition."),
    what("--component", metavar="etcd|kube-apiserver|...", help="Of the run's control plane."),
    what("--condition", metavar="TYPE", help="Of a Node, e.g. KernelDeadlock."),
    what("--status", metavar="True|False|Unknown", help="Of the condition (default True)."),
    what("--resource", metavar="NAME", help="Whose devices fail, e.g. nvidia.com/gpu."),
    what("--count", type=click.IntRange(1), help="How many devices of a node (default all)."),
    what("--heartbeats", metavar="Lease|Status", help="Only this one (default both)."),
    what("--reason", help="That the runtime or a daemon gives."),
    what("--message", help="That the runtime, a network plugin, a driver or a daemon gives."),
)
scenario_options = click.option(
    "--dry-run", "is_dry", is_flag=True, help="Print the time line and a forecast, and do nothing."
)
clean_options = join(
    click.option("--run", default="", help="Remove this run."),
    click.option("--all", "all_runs", is_flag=True, help="Remove every run, running ones too."),
    click.option("--expired", is_flag=True, help="Remove the runs whose fleet is gone."),
    click.option("--yes", is_flag=True, help="Ask nothing; --all and --expired ask otherwise."),
    click.option(
        "--dry-run", "is_dry", is_flag=True, help="Show what would go, and remove nothing."
    ),
    click.option(
        "--statefulset",
        metavar="NAMESPACE/NAME",
        help="End the pods of the run first: scale it to 0.",
    ),
)
RBAC = dict.fromkeys(
    (
        *("identity", "fidelity", "profiles", "no_agents", "simulate_csi", "approve_csrs"),
        *("manage", "serve", "serve_at"),
    ),
    "As of the run.",
) | {
    "nodes": "Only for these nodes, by name.",
    "name_prefix": "Of those nodes (default fleet).",
    "processes": "Of the run: its nodes have the names of shards.",
}
"""Fields of `Settings` that `fleet rbac` has, too, with its help."""
rbac_options = join(
    click.option("--legacy-impersonation", is_flag=True, help="For servers before 1.36."),
    click.option(
        "--service-account",
        default="fleet/fleet",
        metavar="NAMESPACE/NAME",
        help="Who gets the rights (default fleet/fleet).",
    ),
    click.option("--user", default="", help="Or this user, instead."),
    click.option("--name", default="fleet", help="Of the roles (default fleet)."),
)
report_options = join(
    click.option("--baseline", type=PATH, help="Compare with this run; exit 1 if worse."),
    click.option(
        "--tolerance",
        default="10%",
        metavar="SHARE",
        help="Accept figures that are worse by up to this share: 10% or 0.1 (default 10%).",
    ),
    click.option(
        "--format",
        "form",
        type=click.Choice(["html", "markdown", "json", "junit"]),
        help="Default: html for one run, markdown for several.",
    ),
    click.option("--out", type=PATH, help="Write it here."),
    click.option("--title", default="", help="The title of a run's page (default: the run's own)."),
)
# fmt: off
NOT_OF_CAPACITY = frozenset((
    "nodes", "max_nodes", "duration_ns", "until_ready", "keep", "output", "run_dir",
    "kubeconfig_out", "shared", "manage", "shard", "shard_stride", "nodes_total", "run_id",
    "holder", "statefulset", "dashboard", "dashboard_port", "dashboard_hosts", "locust_master",
    "on_master_quit", "load", "api_users", "load_cluster_role", "story",
))
# fmt: on
"""Options of `fleet spawn` that the search sets itself, or that make no sense in it."""
search = in_group("Search")
PRECISION = "Stop when held and broken sizes are this near: 10% or 0.1 (default 10%)."
capacity_options = join(
    search("--max-nodes", type=int, required=True, help="Try no more than these."),
    search("--first", type=int, help="The first size (default 100, or --max-nodes if less)."),
    search("--hold", default="75s", help="How long a size must hold when Ready (default 75s)."),
    search("--ready-within", default="10m", help="A size that takes longer broke (default 10m)."),
    search("--precision", default="10%", metavar="SHARE", help=PRECISION),
    search("--tries", type=int, default=2, help="In how many runs it must break (default 2)."),
    search("--scenario", metavar="FILE", help="Play this with each size, instead of holding it."),
    search("--run-dir", type=PATH, help="Where all runs go (default runs/capacity-<time>)."),
    search("--output", type=click.Choice(["text", "json"]), help="How the answer is printed."),
)
