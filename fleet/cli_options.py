"""The options of the commands: those of `fleet spawn` in the groups of its help, and of others."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

F = Callable[..., object]
PATH = click.Path(path_type=Path)


VARIABLES = {"auto_envvar_prefix": "FLEET"}
"""Of a command: `$FLEET_NODES` stands for `--nodes`, as everywhere. See `of_its_own`."""


def of_its_own(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Make options of a command that no variable stands for: `fleet spawn` has none like them.

    So a variable that is set for runs neither deletes nor skips anything in another command.
    """

    def decorate(function: F) -> F:
        made: Any = function
        before = len(getattr(made, "__click_params__", ()))
        made = join(*decorators)(made)
        for each in made.__click_params__[before:]:
            each.allow_from_autoenv = False
        return function

    return decorate


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


nodes = in_group("Nodes")
identity = in_group("Who the nodes are")
target = in_group("Cluster")
life = in_group("Run")
locust = in_group("Locust")
shards = in_group("Processes and pods")
plane = in_group("Local control plane")
whom = in_group("Whom it hits: all nodes that match all of these")
what = in_group("What it does")

kubeconfig_out = life("--kubeconfig-out", type=PATH, help="Write a kubeconfig for kubectl here.")
cluster_options = join(
    target("--kubeconfig", type=PATH, help="Use this kubeconfig."),
    target("--context", help="Use this context of the kubeconfig."),
    target("--in-cluster", is_flag=True, help="Use the pod's own service account."),
)
plane_options = join(
    plane(
        "--controlplane-bin",
        type=PATH,
        help="Directory of its programs (default: docs/reference/versions.md).",
        allow_from_autoenv=False,  # $FLEET_CONTROLPLANE_BIN is one place of several
    ),
    plane("--fsync", is_flag=True, help="Let etcd wait for the disk."),
    plane("--audit-log", type=PATH, help="Log each request here."),
    *(
        plane(f"--{name}-flag", multiple=True, metavar="NAME=VALUE", help=f"More flags for {of}.")
        for name, of in (
            ("etcd", "etcd"),
            ("apiserver", "kube-apiserver"),
            ("scheduler", "kube-scheduler"),
            ("controller-manager", "kube-controller-manager"),
        )
    ),
)
run_dir = click.option(
    "--run-dir",
    type=PATH,
    envvar="FLEET_RUN_DIR",  # as COMMAND of a run finds it
    help="Directory of the run (default: that of your only running fleet).",
)
fault_options = of_its_own(
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
real_nodes = target(
    "--real-nodes",
    is_flag=True,
    allow_from_autoenv=False,  # it must stand on the command line of each run
    help="Let the scenario's pods run on any node of a shared cluster (default: on fleet's only).",
)
scenario_options = of_its_own(
    click.option(
        "--dry-run",
        "is_dry",
        is_flag=True,
        help="Print the time line and a forecast, and do nothing.",
    ),
    real_nodes,
)
_OF_THE_RUN = "As of the run."
_clean_options = of_its_own(
    click.option("--run", "run_id", default="", help="Remove this run."),
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
clean_options = join(cluster_options, _clean_options)
rbac_options = join(
    click.option(
        "--identity", type=click.Choice(["impersonate", "csr", "shared"]), help=_OF_THE_RUN
    ),
    click.option("--fidelity", type=click.Choice(["kubelet", "light"]), help=_OF_THE_RUN),
    click.option("--profile", multiple=True, metavar="NAME|FILE[=WEIGHT]", help=_OF_THE_RUN),
    click.option("--no-agents", is_flag=True, help=_OF_THE_RUN),
    click.option("--simulate-csi", is_flag=True, help=_OF_THE_RUN),
    click.option("--approve-csrs", is_flag=True, help=_OF_THE_RUN),
    click.option("--manage", metavar="SELECTOR", help=_OF_THE_RUN),
    click.option(
        "--serve",
        type=click.Choice(["auto", "loopback", "ports", "path", "off"]),
        help=_OF_THE_RUN,
    ),
    click.option("--serve-at", metavar="ADDRESS:PORT", help=_OF_THE_RUN),
    click.option("--nodes", type=int, help="Only for these nodes, by name."),
    click.option("--name-prefix", help="Of those nodes (default fleet)."),
    click.option("--processes", type=int, help="Of the run: its nodes have the names of shards."),
    of_its_own(
        click.option("--legacy-impersonation", is_flag=True, help="For servers before 1.36."),
        click.option(
            "--service-account",
            default="fleet/fleet",
            metavar="NAMESPACE/NAME",
            help="Who gets the rights (default fleet/fleet).",
        ),
        click.option("--user", default="", help="Or this user, instead."),
        click.option("--name", default="fleet", help="Of the roles (default fleet)."),
    ),
)
report_options = of_its_own(
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
)
spawn_options = join(
    nodes("--nodes", type=int, help="How many virtual kubelets (default 100)."),
    nodes("--name-prefix", help="Nodes are PREFIX-00000 ... (default fleet)."),
    nodes("--profile", multiple=True, metavar="NAME|FILE[=WEIGHT]", help="What nodes are like."),
    nodes(
        "--fidelity",
        type=click.Choice(["kubelet", "light"]),
        help="All requests of a kubelet (default), or the fewest.",
    ),
    nodes(
        "--encoding",
        type=click.Choice(["protobuf", "json"]),
        help="How objects travel (default protobuf; json with light).",
    ),
    nodes(
        "--watches",
        type=click.Choice(["per-node", "shared"]),
        help="Whose they are (default per-node; shared with light).",
    ),
    nodes(
        "--rate",
        metavar="N|max",
        help="Nodes started per second, or all at once (default: as the API server takes them).",
    ),
    nodes("--no-agents", is_flag=True, help="Without the node agents that profiles name."),
    nodes("--simulate-csi", is_flag=True, help="Be the CSI driver csi.fleet.emulator."),
    nodes("--seed", type=int, help="Of everything random."),
    nodes(
        "--serve",
        type=click.Choice(["auto", "loopback", "ports", "path", "off"]),
        help="Where kubelets answer logs, exec, scrapes (default: 127.x on a local control plane).",
    ),
    nodes(
        "--serve-at",
        metavar="ADDRESS:PORT",
        help="With ports: of the first node, the next ones have the next ports; with path: of all.",
    ),
    nodes(
        "--pod-resources",
        type=PATH,
        metavar="DIR",
        help="Serve PodResources (gRPC) of each node at DIR/NODE/kubelet.sock.",
    ),
    identity(
        "--identity",
        type=click.Choice(["impersonate", "csr", "shared"]),
        help="Impersonated (default), with certificates of their own, or you.",
    ),
    identity(
        "--cert-dir",
        type=PATH,
        envvar="FLEET_CERT_DIR",
        help="With csr: keeps their keys and certificates.",
    ),
    identity(
        "--bootstrap-token",
        metavar="TOKEN",
        envvar="FLEET_BOOTSTRAP_TOKEN",
        help="With csr: joins.",
    ),
    identity("--bootstrap-kubeconfig", type=PATH, help="The same, a file."),
    identity("--approve-csrs", is_flag=True, help="With csr: approve the nodes' requests."),
    cluster_options,
    target("--confirm-cluster", metavar="CONTEXT|UID", help="Load this shared cluster, unasked."),
    target("--shared/--not-shared", default=None, hidden=True),  # told to the run's processes
    target("--no-taint", is_flag=True, help="Dedicated clusters only: any pod may come."),
    target("--zone-labels", is_flag=True, help="Set zone labels on a cluster that was named too."),
    target(
        "--provider-id",
        metavar="none|fleet|TEMPLATE",
        help="Give the nodes no providerID, fleet://ZONE/NAME, or one such as "
        "aws:///{{zone}}/{{name}} (default: as their profiles say).",
    ),
    target(
        "--manage",
        metavar="SELECTOR",
        help="Be the kubelet of Nodes that others make: those with these labels, --nodes at most. "
        "On a shared cluster they also need the label fleet.emulator/managed=true.",
    ),
    life("--duration", help="End this long after all nodes are Ready, e.g. 90s, 5m."),
    life("--until-ready", is_flag=True, help="Clean up and exit once all nodes are Ready."),
    life(
        "--stop-if",
        metavar="RULES",
        help="End the run when the API server is sick: readyz[:DURATION], "
        "errors[:SHARE[:DURATION]], or never (default: readyz:30s,errors:20%:30s on a shared "
        "cluster, else never).",
    ),
    life("--keep", is_flag=True, help="Leave the nodes in the cluster at the end."),
    kubeconfig_out,
    life(
        "--run-dir",
        type=PATH,
        help="Where summary and time series go (default runs/<id>).",
        allow_from_autoenv=False,  # $FLEET_RUN_DIR tells COMMAND where that of its run is
    ),
    life("--slo", type=PATH, help="What the run is held to (default: SIG Scalability's SLOs)."),
    life("--no-report", is_flag=True, help="Write no report.html at the end."),
    life("--quiet", is_flag=True, help="Show no progress on stderr, only what needs attention."),
    life("--output", type=click.Choice(["text", "json"]), help="How the summary is printed."),
    life("--metrics-port", type=int, help="Serve Prometheus metrics here."),
    life("--metrics-host", help="Where it listens (default 127.0.0.1)."),
    life("--restart-share", help="Share of the kubelets that SIGHUP restarts, e.g. 25%."),
    life("--story", multiple=True, metavar="NODE", help="Keep what this node did, for bugs."),
    locust("--dashboard", is_flag=True, help="Show and steer the fleet with Locust's web UI."),
    locust("--dashboard-port", type=int, help="Its port (default: a free one)."),
    locust(
        "--dashboard-host",
        multiple=True,
        metavar="NAME",
        help="A name that browsers know it by, beside localhost.",
    ),
    locust(
        "--load",
        multiple=True,
        type=PATH,
        metavar="FILE",
        help="A locustfile of API users beside the nodes.",
    ),
    locust("--api-users", type=int, help="How many users of those files."),
    locust(
        "--load-cluster-role",
        metavar="NAME",
        help="Their ClusterRole (default: the least rights for api_users).",
    ),
    locust(
        "--max-nodes",
        type=int,
        help="The most that a dashboard may ask for (default --nodes).",
    ),
    locust(
        "--locust-master",
        metavar="HOST:PORT",
        help="Have the nodes that this Locust master asks for.",
    ),
    locust(
        "--on-master-quit",
        type=click.Choice(["exit", "hold"]),
        help="Then remove the nodes and exit, or keep them for the next master.",
    ),
    shards("--processes", type=int, help="Share the nodes among so many processes."),
    shards(
        "--shard",
        metavar="N|hostname",
        help="Own the names PREFIX-N-00000 ..., N as hostname ends.",
    ),
    shards("--shard-stride", type=int, help="The most nodes of a shard, the same for all."),
    shards("--nodes-total", type=int, help="Of all shards: the last takes what is left."),
    shards("--run-id", help="Name the run; several shards may be of one (default: a new name)."),
    shards("--holder", help="Which of those this process is, e.g. its pod's UID."),
    shards(
        "--statefulset",
        metavar="NAMESPACE/NAME",
        help="Ours: SIGTERM keeps the nodes if it starts this shard again.",
    ),
    plane_options,
)

# fmt: off
NOT_OF_CAPACITY = frozenset((
    "nodes", "max_nodes", "duration", "until_ready", "keep", "output", "run_dir",
    "kubeconfig_out", "shared", "manage", "shard", "shard_stride", "nodes_total", "run_id",
    "holder", "statefulset", "dashboard", "dashboard_port", "dashboard_host", "locust_master",
    "on_master_quit", "load", "api_users", "load_cluster_role", "restart_share", "story",
))
# fmt: on
"""Options of `fleet spawn` that the search sets itself, or that make no sense in it."""
search = functools.partial(in_group("Search"), allow_from_autoenv=False)


def capacity_options(function: F) -> F:
    """Give a command the options of `fleet capacity`: its own, and those of its runs."""
    made: Any = spawn_options(function)
    kept = [each for each in made.__click_params__ if each.name not in NOT_OF_CAPACITY]
    made.__click_params__ = kept
    return _search_options(made)


PRECISION = "Stop when held and broken sizes are this near: 10% or 0.1 (default 10%)."
_search_options = join(
    search("--max-nodes", type=int, required=True, help="Try no more than these."),
    search("--first", type=int, help="The first size (default 100, or --max-nodes if less)."),
    search("--hold", default="75s", help="How long a size must hold when Ready (default 75s)."),
    search("--ready-within", default="10m", help="A size that takes longer broke (default 10m)."),
    search("--precision", default="10%", metavar="SHARE", help=PRECISION),
    search("--tries", type=int, default=2, help="In how many runs it must break (default 2)."),
    search("--scenario", metavar="FILE", help="Play this with each size, instead of holding it."),
    real_nodes,
    search("--run-dir", type=PATH, help="Where all runs go (default runs/capacity-<time>)."),
    search("--output", type=click.Choice(["text", "json"]), help="How the answer is printed."),
)
