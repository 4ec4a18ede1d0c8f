"""Whether a run may load its cluster: looked at, said, asked, before anything is created.

On a shared cluster the pods of a scenario are kept on the nodes of the run. What COMMAND creates
passes by fleet: it gets the node selector in its environment, and the question says so.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

from fleet.cluster import preflight
from fleet.cluster.api_client import Api, Cluster
from fleet.cluster.daemonsets import FAKE_KEY, NodeShape
from fleet.cluster.identity import who_fleet_is
from fleet.cluster.managed import matching_names, not_opted_in, opted_in
from fleet.cluster.ownership import RUN_LABEL
from fleet.cluster.rbac import node_names
from fleet.errors import UsageError
from fleet.k8s.well_known import OPT_IN_LABEL
from fleet.profile.loader import NodeMix
from fleet.profile.settings import Settings, flags_of
from fleet.report.display import Display
from fleet.run.cli_options import RBAC
from fleet.run.scenario_player import ScenarioPlayer
from fleet.scenario.placement import Placement

SERVICE_ACCOUNT = "system:serviceaccount:"
BY_NAME = frozenset({"nodes", "name_prefix", "processes"})
"""Options of `fleet rbac` that only narrow its rights to nodes by name."""
EQUALS = re.compile(r"\s*([^\s=!]+)\s*==?\s*([^\s=!]*)\s*")


async def may_load(
    cluster: Cluster,
    settings: Settings,
    mix: NodeMix,
    run_id: str,
    display: Display,
    ask: preflight.Ask | None,
    player: ScenarioPlayer | None = None,
) -> preflight.TargetFacts:
    """Return what is there if the run may go on. Raises UsageError or SetupError else.

    `settings` are those of the whole run, with all its processes.
    """
    shapes = [
        NodeShape(
            count=settings.most // len(mix.models) or 1, labels={**model.labels, RUN_LABEL: run_id}
        )
        for model in mix.models
    ]
    api, selector = cluster.api("preflight"), settings.manage
    matching = await matching_names(api, selector) if selector else frozenset()
    if selector:
        shapes = []  # whatever lands on Nodes of others does so already
    facts = await preflight.inspect(
        api,
        server=cluster.credentials.route,
        context=cluster.credentials.context,
        server_version=cluster.version,
        prefix=settings.name_prefix,
        lease_prefix=settings.shares()[0].lease_prefix,
        run_id=run_id,
        shapes=shapes,
        is_named=settings.names_cluster,
        matching=matching,
    )
    if settings.shared is not None:
        facts = replace(facts, is_shared=settings.shared)
    display.pause()
    tainted = not settings.no_taint
    provider_ids = [each.provider_id for each in mix.models]
    notice = preflight.shared_cluster_notice(
        facts, settings.most, is_tainted=tainted, provider_ids=provider_ids
    )
    allowed = matching
    if selector and facts.is_shared:
        allowed = await matching_names(api, opted_in(selector))
        notice = preflight.managed_notice(facts, settings.most, opted_in(selector), len(allowed))
    if facts.is_shared:
        notice += "".join(f"{line}\n" for line in _loads(settings, run_id, player))
    if facts.is_shared and (ask is None or settings.confirm_cluster):
        display.note(notice)
    if without := sorted(matching - allowed):
        display.note(not_opted_in(without, selector))
    confirmed = settings.confirm_cluster or None
    await preflight.confirm(facts, confirmed=confirmed, ask=ask, notice=notice)
    display.start()
    if not selector:
        facts.check_names(node_names(settings))
    return facts


async def how_to_grant(api: Api, settings: Settings) -> str:
    """Return the command that grants our user what a run with these settings needs."""
    user = await who_fleet_is(api) or "YOUR_USER"  # of a server that does not say
    account = user.removeprefix(SERVICE_ACCOUNT).replace(":", "/")
    subject = ["--user", user] if account == user else ["--service-account", account]
    given = settings.stated(name for name in RBAC if name not in BY_NAME)
    command = shlex.join(["fleet", "rbac", *subject, *flags_of(given)])
    return f"an administrator can grant this with: {command} | kubectl apply -f -"


def node_selector(settings: Settings, run_id: str) -> dict[str, str]:
    """Return the labels that the nodes of a run have, and no other nodes.

    Nodes that fleet only serves have the labels that the user has named, and the one by which their
    owner lets fleet serve them. Raises UsageError for a selector that is more than labels and their
    values.
    """
    if not settings.manage:
        return {RUN_LABEL: run_id}
    found = {OPT_IN_LABEL: "true"}
    for part in settings.manage.split(","):
        label = EQUALS.fullmatch(part)
        if label is None:
            raise UsageError(
                f"--manage {settings.manage}: the scenario's pods need labels with one value each, "
                "such as KEY=VALUE, to stay on these Nodes; --real-nodes lets them run anywhere"
            )
        found[label[1]] = label[2]
    return found


def _loads(settings: Settings, run_id: str, player: ScenarioPlayer | None) -> Iterator[str]:
    """Keep the pods of a scenario on the run's nodes; yield what a person must know of loads."""
    if settings.command:
        yield (
            "- COMMAND creates its own objects. Its pods land on REAL machines unless they have the"
        )
        yield (
            f"  node selector {RUN_LABEL}={run_id} ($FLEET_NODE_SELECTOR) and tolerate {FAKE_KEY}."
        )
    if settings.load:
        yield "- --load: API users create what their files say. Pods of those that do not use"
        yield "  KubeUser.on_our_nodes() land on REAL machines."
    wanted = player.demand(settings.nodes_of_run) if player is not None else []
    if player is None or not wanted:
        return
    if settings.real_nodes:
        yield "- --real-nodes: pods of the scenario may run on REAL machines. It creates:"
    else:
        selector = node_selector(settings, run_id)
        names = frozenset(_names_of_run(settings)) if not settings.manage else frozenset()
        player.place(Placement(selector, names.__contains__))
        shown = ",".join(f"{key}={value}" for key, value in selector.items())
        yield f"- Pods of the scenario run on nodes with {shown} only. It creates:"
    yield from (f"    {line}" for line in wanted)


def _names_of_run(settings: Settings) -> Iterator[str]:
    """Yield the names of all nodes that the run may have, in all its shards."""
    if settings.shard is None:
        yield from node_names(settings)
        return
    for shard in range(settings.shards_wanted // settings.processes):
        yield from node_names(settings.model_copy(update={"shard": shard}).of_total())
