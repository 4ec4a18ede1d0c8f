"""Whether a run may load its cluster: looked at, told, asked, before anything is created."""

from collections.abc import Iterator
from dataclasses import replace

from fleet.cluster.cluster import Cluster
from fleet.cluster.daemonsets import NodeShape
from fleet.cluster.managed import matching_names
from fleet.cluster.ownership import RUN_LABEL
from fleet.cluster.preflight import (
    Ask,
    TargetFacts,
    confirm,
    inspect,
    managed_notice,
    shared_cluster_notice,
)
from fleet.profile.loader import NodeMix
from fleet.profile.settings import Settings
from fleet.report.display import Display


async def may_load(
    cluster: Cluster,
    settings: Settings,
    mix: NodeMix,
    run_id: str,
    display: Display,
    ask: Ask | None,
) -> TargetFacts:
    """Return what is there if the run may go on. Raises UsageError or SetupError else.

    `settings` are those of the whole run, with all its processes.
    """
    shapes = [
        NodeShape(
            count=settings.most // len(mix.models) or 1,
            labels={**model.labels, RUN_LABEL: run_id},
        )
        for model in mix.models
    ]
    api, selector = cluster.api("preflight"), settings.manage
    matching = await matching_names(api, selector) if selector else frozenset()
    if selector:
        shapes = []  # whatever lands on Nodes of others does so already
    facts = await inspect(
        api,
        server=f"https://{cluster.credentials.address}",
        context=cluster.credentials.context,
        server_version=cluster.version,
        prefix=settings.name_prefix,
        shapes=shapes,
        is_named=settings.names_cluster,
        matching=matching,
    )
    if settings.shared is not None:
        facts = replace(facts, is_shared=settings.shared)
    display.pause()
    tainted = not settings.no_taint
    notice = shared_cluster_notice(facts, settings.most, is_tainted=tainted)
    if selector:
        notice = managed_notice(facts, settings.most, selector, len(matching))
    if facts.is_shared and (ask is None or settings.confirm_cluster):
        display.note(notice)
    await confirm(
        facts,
        settings.most,
        confirmed=settings.confirm_cluster or None,
        ask=ask,
        notice=notice,
    )
    display.start()
    if not selector:
        facts.check_names(_names(settings))
    return facts


def _names(settings: Settings) -> Iterator[str]:
    """Yield the names of all nodes that the run may ever have, in all its processes."""
    if settings.processes == 1:
        yield from settings.node_names()
        return
    for number in range(settings.processes):
        yield from settings.share(number).node_names()
