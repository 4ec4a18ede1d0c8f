"""What is in the target cluster before fleet touches it, and whether it may.

A cluster that was named, or that has a node which fleet did not create, is shared: real workloads,
real money, if not now then later. There fleet says what it would do and goes on only if a person
agrees or the command line names the cluster once more. A local control plane that nobody named is
fleet's own. Nothing in this file writes to the server.
"""

import ipaddress
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fleet.cluster.api_client import METADATA_ONLY, Api, Json
from fleet.cluster.credentials import IN_CLUSTER_CONTEXT
from fleet.cluster.daemonsets import Landing, NodeShape, landings
from fleet.cluster.ownership import NODES, RUN_LABEL, FoundNode, find_nodes, refusal
from fleet.cluster.runs import RunHolder, check_free, holder_of
from fleet.errors import SetupError, UsageError
from fleet.k8s.well_known import MANAGED_ANNOTATION
from fleet.profile.addresses import POD_POOL_V4, POD_POOL_V6

KUBE_SYSTEM = "/api/v1/namespaces/kube-system"
DAEMON_SETS = "/apis/apps/v1/daemonsets"
SAMPLED_NODES_MAX = 200
"""So many foreign nodes are read whole, for their pod CIDRs; the others are only counted."""
LOCAL = frozenset({"", "fleet", "kind", "k3s", "minikube", "kwok"})
"""Schemes behind which there is no cloud that looks machines up."""
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
SHOWN_MAX = 8  # the question must stand on one screen, below what it is about

Ask = Callable[[str], Awaitable[bool]]  # show a person a text and return the answer


class PodCidrs(NamedTuple):
    """The pod ranges of the nodes that are there. Fleet's nodes draw from the same pool."""

    nodes: int  # how many of the nodes that were looked at have one
    prefix_lengths: tuple[int, ...]  # of one node's range, per address family
    spans: tuple[str, ...]  # the least network that holds them all, per address family
    looked_at: int = 0  # how many nodes that was


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """The target cluster as it was found."""

    server: str
    context: str
    server_version: str
    kube_system_uid: str
    is_shared: bool  # whether others use it too, or may: decided once, whatever nodes come later
    foreign_names: frozenset[str]  # Nodes that no fleet created, or that lack one of its marks
    managed_names: frozenset[str]  # of these, the ones whose kubelet a fleet is, or was: `--manage`
    refused: tuple[FoundNode, ...]  # of these, the ones with fleet's label
    prefix: str
    existing: tuple[FoundNode, ...]  # Nodes of earlier runs under the prefix
    holder: RunHolder | None
    landings: tuple[Landing, ...]
    pod_cidrs: PodCidrs
    cloud: str = ""  # the scheme of the real nodes' providerIDs

    @property
    def foreign_nodes(self) -> int:
        """Return how many nodes no fleet created."""
        return len(self.foreign_names)

    def check_names(self, names: Iterable[str]) -> None:
        """Raise SetupError if a node that is not fleet's has one of these names."""
        taken = sorted(self.foreign_names.intersection(names))
        if not taken:
            return
        refused = [node for node in self.refused if node.name in set(taken)]
        why = f"; {refusal(refused)}" if refused else ""
        raise SetupError(
            f"{len(taken)} nodes that fleet did not create have names that this run would use "
            f"({taken[0]}, ...): choose another --name-prefix{why}"
        )

    @property
    def daemon_pods(self) -> int:
        """Return how many pods the DaemonSets will put on fleet nodes."""
        return sum(landing.pods for landing in self.landings)

    @property
    def confirmation(self) -> str:
        """Return what `--confirm-cluster` must name."""
        in_cluster = self.context == IN_CLUSTER_CONTEXT
        return self.kube_system_uid if in_cluster else self.context


async def inspect(
    api: Api,
    *,
    server: str,
    context: str,
    server_version: str,
    prefix: str,
    lease_prefix: str,
    run_id: str,
    shapes: Sequence[NodeShape],
    is_named: bool,
    matching: frozenset[str] = frozenset(),
) -> TargetFacts:
    """Look at the target; writes nothing. `is_named` is off for a local control plane of fleet's.

    `lease_prefix` is that of the run's own shard. `matching` are the Nodes of others that the run
    is about: they make no cluster a shared one. Raises SetupError if another run that lives holds
    `lease_prefix`, or if the server refuses an answer.
    """
    system = await api.get(KUBE_SYSTEM, "namespace kube-system")
    holder = await holder_of(api, lease_prefix)
    if holder is not None:
        check_free(lease_prefix, holder, run_id)
    found = await find_nodes(api, RUN_LABEL)
    unlabelled = await _unlabelled(api)
    foreign = frozenset((*unlabelled, *(node.name for node in found.refused)))
    daemon_sets: list[Json] = []
    async for page in api.pages(DAEMON_SETS, "daemonsets"):
        daemon_sets += page
    pod_cidrs, cloud = await _sample(api) if foreign else (PodCidrs(0, (), ()), "")
    return TargetFacts(
        server=server,
        context=context,
        server_version=server_version,
        kube_system_uid=system["metadata"]["uid"],
        is_shared=is_named or bool(foreign - matching),
        foreign_names=foreign,
        managed_names=frozenset(name for name, is_managed in unlabelled.items() if is_managed),
        refused=found.refused,
        prefix=prefix,
        existing=tuple(node for node in found.owned if node.prefix == prefix),
        holder=holder,
        landings=tuple(landings(daemon_sets, shapes)),
        pod_cidrs=pod_cidrs,
        cloud=cloud,
    )


async def _unlabelled(api: Api) -> dict[str, bool]:
    """Return the Nodes without fleet's label, and whether a fleet has been their kubelet."""
    found: dict[str, bool] = {}
    selector = f"!{RUN_LABEL}"
    async for page in api.pages(NODES, "nodes", accept=METADATA_ONLY, labelSelector=selector):
        for item in page:
            metadata = item["metadata"]
            notes = metadata.get("annotations") or {}
            found[metadata["name"]] = MANAGED_ANNOTATION in notes
    return found


async def _sample(api: Api) -> tuple[PodCidrs, str]:
    """Read the first foreign nodes: they show mask and pool of pod ranges, and the cloud."""
    selector, limit = f"!{RUN_LABEL}", SAMPLED_NODES_MAX
    async for page in api.pages(NODES, "nodes", labelSelector=selector, limit=limit):
        specs = [item.get("spec", {}) for item in page]
        found = summarize_cidrs(
            [spec.get("podCIDRs") or [spec["podCIDR"]] for spec in specs if spec.get("podCIDR")]
        )
        cloud = cloud_of(spec.get("providerID") or "" for spec in specs)
        return found._replace(looked_at=len(page)), cloud
    return PodCidrs(0, (), ()), ""


def summarize_cidrs(ranges: Sequence[Sequence[str]]) -> PodCidrs:
    """Find mask and least common network of the nodes' ranges, for each address family."""
    by_version: dict[int, list[Network]] = {}
    for node_ranges in ranges:
        for cidr in node_ranges:
            network = ipaddress.ip_network(cidr, strict=False)
            by_version.setdefault(network.version, []).append(network)
    return PodCidrs(
        nodes=len(ranges),
        prefix_lengths=tuple(networks[0].prefixlen for networks in by_version.values()),
        spans=tuple(map(_span, by_version.values())),
    )


def _span(networks: Sequence[Network]) -> str:
    """Return the least network that has all of these, of one family."""
    span = networks[0]
    while not all(each.subnet_of(span) for each in networks):  # type: ignore[arg-type]
        span = span.supernet()
    return str(span)


def shared_cluster_notice(
    facts: TargetFacts, nodes: int, *, is_tainted: bool = True, provider_ids: Sequence[str] = ()
) -> str:
    """Return what a person must read before fleet adds `nodes` nodes to a shared cluster.

    `provider_ids` are the providerIDs that the profiles make.
    """
    lines = [
        *_about(facts),
        f"  will get    at most {nodes:,} nodes {facts.prefix}-* that run nothing",
    ]
    if facts.existing:
        lines.append(f"  takes over  {len(facts.existing):,} of them, left by an earlier run")
    if facts.holder is not None and facts.holder.has_applied:
        lines.append(f"  loses       what the scenario of run {facts.holder.run} left here")
    lines += ["", *_landing_lines(facts)]
    lines += _cidr_lines(facts.pod_cidrs, nodes)
    if is_tainted:
        lines.append(
            "- Only pods that tolerate the taint fleet.emulator/fake are scheduled to them."
        )
    else:
        lines.append(
            "- --no-taint: ANY pod of this cluster may be scheduled to a node that is fake."
        )
    lines += provider_lines(facts.cloud, provider_ids, nodes)
    lines.append(
        "- An autoscaler, cloud controller or node monitor may act on nodes it cannot find."
    )
    return "\n".join(lines) + "\n"


def managed_notice(facts: TargetFacts, nodes: int, selector: str, matching: int) -> str:
    """Return what a person must read before fleet serves Nodes of a shared cluster."""
    lines = [
        *_about(facts),
        f"  will have   fleet as the kubelet of Nodes that match {selector}: of {matching:,} now,",
        f"              of at most {nodes:,}, those to come among them",
        "",
        "- All other Nodes are left alone, and those that have a kubelet of their own or get one.",
        "- Pods that are bound to these Nodes become Ready, though nothing runs there.",
        "- fleet creates and deletes no Node here. What it leaves at its end becomes NotReady.",
    ]
    return "\n".join(lines) + "\n"


def _about(facts: TargetFacts) -> list[str]:
    has = "it has nodes that fleet did not create"
    if not facts.foreign_nodes:
        has = "it was named, and may be others' too"
    return [
        f"This is a SHARED cluster: {has}.",
        "",
        f"  context     {facts.context}",
        f"  server      {facts.server} ({facts.server_version})",
        f"  has         {_count(facts.foreign_nodes)} of its own",
    ]


def _count(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes:,} nodes" if nodes else "no node"


def _landing_lines(facts: TargetFacts) -> list[str]:
    if not facts.landings:
        return ["- No DaemonSet will put pods on them."]
    count = "1 DaemonSet" if len(facts.landings) == 1 else f"{len(facts.landings)} DaemonSets"
    lines = [f"- {count} will land on them, which makes {facts.daemon_pods:,} more pods:"]
    for landing in facts.landings[:SHOWN_MAX]:
        never = "" if landing.knows_fleet else "; they will not become Ready"
        lines.append(f"    {landing.namespace}/{landing.name}: {landing.pods:,} pods{never}")
    if len(facts.landings) > SHOWN_MAX:
        lines.append(f"    and {len(facts.landings) - SHOWN_MAX} more")
    return lines


def _cidr_lines(cidrs: PodCidrs, nodes: int) -> list[str]:
    """Say what the fleet takes from the cluster's pod addresses, if it hands them out by node."""
    own = (
        f"  A node that gets no podCIDR gives its pods addresses of {POD_POOL_V4} or "
        f"{POD_POOL_V6} that no other fleet uses and no Node's podCIDR here overlaps."
    )
    if not cidrs.looked_at:
        unknown = "- No Node here shows whether the cluster gives each Node a podCIDR: if it does, "
        return [f"{unknown}each node of the fleet takes one too.", own]
    if not cidrs.nodes:
        most = "first " if cidrs.looked_at == SAMPLED_NODES_MAX else ""
        looked = (
            f"{most}{cidrs.looked_at:,} real nodes have" if cidrs.looked_at > 1 else "real node has"
        )
        return [f"- The {looked} no podCIDR: the fleet takes none from real nodes.", own]
    lines = []
    for length, span in zip(cidrs.prefix_lengths, cidrs.spans, strict=True):
        needed = (nodes - 1).bit_length()
        pool = f"a /{length - needed}" if needed <= length else "more than there is"
        lines.append(
            f"- Pod CIDRs at risk: each node takes a /{length}, {nodes:,} of them {pool}, if the "
            f"cluster gives them one as it did {cidrs.nodes:,} of {cidrs.looked_at:,} real nodes; "
            f"those lie in {span}. When the pool is used up, real nodes get none."
        )
    return [*lines, own]


def scheme_of(provider_id: str) -> str:
    """Return the scheme of a providerID, "" for none."""
    return provider_id.partition("://")[0] if "://" in provider_id else ""


def cloud_of(provider_ids: Iterable[str]) -> str:
    """Return the scheme that most of some machines have, "" if they are of no cloud."""
    found = Counter(map(scheme_of, provider_ids))
    clouds = [each for each, _ in found.most_common() if each not in LOCAL]
    return clouds[0] if clouds else ""


def provider_lines(cloud: str, templates: Iterable[str], nodes: int) -> list[str]:
    """Return what the controllers of the cloud will make of each kind of providerID, if it is one.

    `templates` are those of the profiles, "" for none. Source: k8s.io/cloud-provider/controllers/
    nodelifecycle/node_lifecycle_controller.go, MonitorNodes, ensureNodeExistsByProviderID: of each
    Node that is not Ready, every 5 s.
    """
    if not cloud:
        return []
    return [_provider_line(cloud, each, nodes) for each in dict.fromkeys(templates)]


def _provider_line(cloud: str, template: str, nodes: int) -> str:
    if not template:
        return (
            f"- providerID: none. The cloud controller of {cloud} looks a Node that is not Ready "
            "up by its name, finds no machine, and deletes the Node for good, also while it starts."
        )
    if scheme_of(template) == cloud:
        return (
            f"- providerID: {template}. It looks like a machine of {cloud}: of a Node that is not "
            "Ready its cloud controller finds no machine, and deletes the Node. Controllers and "
            "autoscalers may act on a real machine that has such an ID."
        )
    return (
        f"- providerID: {template}. The controllers of {cloud} cannot read it: they leave the "
        f"Node, but some try again without end, here for {nodes:,} nodes (a tagging controller may "
        "become the largest load of the cluster). --provider-id none leaves it out."
    )


async def confirm(
    facts: TargetFacts, *, confirmed: str | None, ask: Ask | None, notice: str
) -> None:
    """Return if fleet may add nodes to this cluster.

    `confirmed` is the value of --confirm-cluster: the context's name, or the UID of the namespace
    kube-system, which no other cluster has. `ask` is None without a terminal. `notice` is what a
    person reads. Raises UsageError otherwise. A wrong name is refused whatever the cluster: it was
    meant for another one.
    """
    if confirmed is not None and confirmed not in (facts.confirmation, facts.kube_system_uid):
        raise UsageError(
            f"--confirm-cluster {confirmed}: this is {facts.confirmation} ({facts.server}); "
            "nothing was created"
        )
    if not facts.is_shared or confirmed is not None:
        return
    if ask is None:
        raise UsageError(
            f"context {facts.context} is a shared cluster ({_count(facts.foreign_nodes)} that "
            f"fleet did not create): confirm with --confirm-cluster {facts.confirmation}"
        )
    if not await ask(notice):
        raise UsageError("not confirmed; nothing was created")
