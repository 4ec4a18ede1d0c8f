"""The nodes of one process: kubelets, reactor, connections, and what another client sees of them.

bring_up: a slot -> a pool -> a kubelet -> its first requests
observer: one more connection, fleet's own, whose watch decides what counts as Ready
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter

from fleet import __version__
from fleet.clock import NS_PER_S, Draws, SystemClock
from fleet.cluster import ownership
from fleet.cluster.agent_access import agents_of
from fleet.cluster.api_client import Cluster
from fleet.cluster.daemonsets import EXCLUDE_FROM_BALANCERS
from fleet.cluster.identity import Identity, Impersonation, RefusalWatch, probe
from fleet.cluster.runs import RunLease
from fleet.errors import FleetError, SetupError
from fleet.host.managed_nodes import ManagedNodes
from fleet.host.node_certificates import Bootstrap, CertificateContext, NodeCertificates
from fleet.host.observed_nodes import AdminLabels, Readiness
from fleet.host.pacing import Pacing, StartLimit, StartStage
from fleet.host.reactor_loop import ReactorLoop
from fleet.host.static_pods import StaticSource
from fleet.host.transports import WATCH_LIMITS, LightPools, Transports
from fleet.k8s.effects import NodeId, WatchEvent, WatchKind
from fleet.k8s.holds import Hold
from fleet.k8s.objects import CertificateKind
from fleet.k8s.pods import NodeView
from fleet.kubelet.environment import CATALOG_KINDS, KUBELET, LIGHT, Environment
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.node.node_status import RegistrationPhase
from fleet.metrics import FleetCounts
from fleet.profile.addresses import ControllerPreset
from fleet.profile.loader import NodeMix
from fleet.profile.node_model import NodeModel, Resources
from fleet.profile.settings import Encoding, Fidelity, IdentityMode, Settings
from fleet.reactor.reactor import Reactor
from fleet.report.figures import HostState
from fleet.wire.api.codec import JSON, protobuf, without_managers
from fleet.wire.api.requests import Caller, RenderedProfile
from fleet.wire.sockets.connection import ConnectionHealth

OBSERVER_POOL = 0
LOOK_S = 5.0  # for refusals, and whether credentials run out
NO_CERTIFICATE = "nobody has approved and signed its request for a certificate"
RENEWED = "the client certificate was renewed"
STEP_S = 0.02
SETTLED_STEP_S = 0.1
LAST_ANSWERS_S = 2.0
NOT_READY_NS_MAX = 60 * NS_PER_S
"""A node that has registered and does not become Ready is not waited for: its profile may be so."""

log = logging.getLogger(__name__)


class NodeHost:
    """All virtual nodes of this process. Make it, `bring_up`, and `stop` or `close` it."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        identity: Identity,
        mix: NodeMix,
        lease: RunLease,
        *,
        is_shared: bool,
        fake_taint: tuple[str, str, str] | None,
        bootstrap: Bootstrap | None = None,
        preset: ControllerPreset | None = None,
        health: ConnectionHealth = ConnectionHealth(),  # noqa: B008 - immutable
        raise_bugs: bool = False,
    ) -> None:
        self.settings = settings
        self.wanted = settings.nodes  # for now; a dashboard or `fleet scale` changes that
        self.readiness = Readiness(settings.nodes)
        self.started_ns = 0
        self._time_to_settled_s: float | None = None
        self._cluster = cluster
        self._identity = identity
        self._mix = mix
        self._is_light = settings.fidelity is Fidelity.LIGHT
        self._loop = asyncio.get_running_loop()
        self.draws = Draws(settings.seed)
        codec = protobuf() if settings.wire_encoding is Encoding.PROTOBUF else JSON
        self.reactor = Reactor(
            SystemClock(),
            self.draws,
            raise_bugs=raise_bugs,
            story=frozenset(settings.story),
            codec=without_managers(codec) if self._is_light else codec,
        )
        self.managed = ManagedNodes(settings.nodes) if settings.manage else None
        self.admin_labels = self._admin_labels()
        self.reactor.on_observed = self._on_observed
        self._shares_watches = not settings.has_own_watches
        self.reactor.watches.are_shared = self._shares_watches
        self.reactor.watches.subscriptions.own_prefix = settings.node_name(0).removesuffix("00000")
        self.reactor_loop = ReactorLoop(self.reactor, self._loop)
        self.transports = Transports(
            cluster.credentials, identity, self.reactor, self.reactor_loop, health
        )
        self.run_id = lease.run_id
        self._own_label = settings.manage or f"{ownership.RUN_LABEL}={self.run_id}"
        self._annotations = {
            ownership.OWNER_ANNOTATION: ownership.owner_mark(self.run_id, lease.uid)
        }
        self._labels = {
            ownership.RUN_LABEL: self.run_id,
            ownership.PREFIX_LABEL: settings.name_prefix,
            **({EXCLUDE_FROM_BALANCERS: ""} if is_shared else {}),
        }
        if settings.shard is not None:
            self._labels[ownership.SHARD_LABEL] = f"{settings.shard:04d}"
            self._own_label += f",{ownership.SHARD_LABEL}={settings.shard:04d}"
        self.taint = fake_taint
        self._preset = preset
        self._user_agents = tuple(  # a profile's is one object for all of its nodes
            dict.fromkeys(model.filled(model.user_agent) for model in mix.models)
        )
        self._light_pools = LightPools(
            settings.most, len(self._user_agents), own_watches=settings.has_own_watches
        )
        accept, group = self.reactor.codec.accept, identity.group
        user_agent = f"fleet/{__version__} (observer)".encode()
        self.observer = self.transports.own(user_agent, accept, group)
        self.certificates: NodeCertificates | None = None  # if nodes have their own
        if bootstrap is None:
            self.transport = self.transports.own(self._user_agent_of, accept, group)
        else:
            self.transport = self.transports.anonymous(self._user_agent_of, accept)
            self.certificates = self._node_certificates(bootstrap)
        self.reactor.wires.connect(nodes=self.transport, observer=self.observer)
        self.reactor.run_agents(
            agents_of(mix.models),
            self.transports.of_agents,
            impersonates=identity.mode is not IdentityMode.SHARED,
        )
        self.static_sources: list[StaticSource] = []
        self._running: list[NodeId] = []  # by slot
        self._pacing = Pacing(StartLimit(is_cold=not settings.makes_settled))
        self._is_silent = False
        self._kinds: dict[int, tuple[Environment, RenderedProfile]] = {}

    @property
    def has_own_connections(self) -> bool:
        """Return whether all that reaches a node comes by connections of its own."""
        return not (self._is_light or self._shares_watches)

    @property
    def counts(self) -> FleetCounts:
        return self.reactor.counts

    def unregistered(self) -> dict[NodeId, str]:
        """Return the nodes that could not register until now, and why."""
        waiting = self.certificates.waiting() if self.certificates is not None else ()
        return dict.fromkeys(waiting, NO_CERTIFICATE) | self.reactor.unregistered()

    def state(self) -> HostState:
        """Return how the nodes stand just now."""
        agents, readiness = self.reactor.agents, self.readiness
        kinds = agents.kinds.values() if agents is not None else ()
        took_ns = readiness.ready_at_ns - self.started_ns if readiness.ready_at_ns else None
        stats = self.transport.stats
        own_limits = self.transports.own_limits() + self.counts.own_limits
        requested = self.settings.nodes if self.settings.is_on_dashboard else self.wanted
        return HostState(
            requested=requested if self.managed is None else self.readiness.wanted,
            wanted=self.wanted if self.managed is None else self.size,
            running=self.size,
            present=len(readiness.present),
            ready=len(readiness.ready),
            ever_not_ready=len(readiness.ever_not_ready),
            time_to_ready_s=took_ns / 1e9 if took_ns is not None else None,
            time_to_settled_s=self._time_to_settled_s,
            held_by=self._held_by(own_limits),
            own_limits=own_limits,
            connections=stats,
            closed_slow=stats.closed_slow + self.transports.agents_closed_slow(),
            agents=self.transports.agent_figures(agents) if agents is not None else {},
            unregistered=Counter(self.unregistered().values()),
            rejected=sum((each.counts.rejected for each in kinds), Counter(self.counts.rejected)),
        )

    def _held_by(self, own_limits: Counter[str]) -> str:
        """Return what keeps nodes from starting; once fleet is at its own limits, that it is."""
        held_by = self._pacing.held_by(self._loop.time())
        if held_by and own_limits:
            return f"fleet itself: its limit of {own_limits.most_common(1)[0][0]}"
        return held_by

    def _agent_number(self, model: NodeModel) -> int:
        return self._user_agents.index(model.filled(model.user_agent))

    def _user_agent_of(self, pool: int) -> bytes:
        """Return what the kubelets of a pool call themselves; it manages the fields they set."""
        if self._is_light:
            return self._user_agents[self._light_pools.user_agent_of(pool)]
        return self._user_agents[
            self._agent_number(self.reactor.entries[pool].caller.template.model)
        ]

    def _node_certificates(self, bootstrap: Bootstrap) -> NodeCertificates:
        def user_agent(pool: int) -> bytes:
            return self._user_agent_of(pool // len(CertificateKind))

        return NodeCertificates(
            self.reactor,
            self.draws,
            bootstrap.store,
            self._cluster.credentials.ssl_context(with_client_certificate=False),
            bootstrap=self.transports.to(
                bootstrap.endpoint, bootstrap.context, bootstrap.authorization, user_agent
            ),
            renewal=self.transports.anonymous(user_agent, JSON.accept),
            on_ready=self._begin_node,
            on_renewed=lambda node: self.transport.drop_connections(node, RENEWED),
            approve=bootstrap.approver.approve if bootstrap.approver else None,
        )

    def _begin_node(self, node: NodeId, context: CertificateContext) -> None:
        """Start the kubelet of a node that has a certificate."""
        self.transport.open_pool(node, ssl_context=context)
        self.reactor.start(node)

    def start(self) -> None:
        """Open the observer's watch and begin to turn."""
        if self.managed is not None:
            self.reactor.on_lost = self._on_lost
        # Of shared watches there is one for each ConfigMap and Secret that any pod refers to.
        self.observer.open_pool(OBSERVER_POOL, limits=WATCH_LIMITS)
        self.reactor.share_watch(WatchKind.NODE, self._own_label)
        if self._shares_watches:
            kinds = (
                (WatchKind.PODS,) if self._is_light else (WatchKind.PODS, *sorted(CATALOG_KINDS))
            )
            for kind in kinds:
                self.reactor.share_watch(kind)
        if self._is_light:
            open_pool = self.transport.open_pool
            self._light_pools.open(lambda pool, limits: open_pool(pool, limits=limits))
        self.started_ns = time.monotonic_ns()
        self.reactor_loop.start()

    async def bring_up(self) -> None:
        """Start every kubelet, at the rate asked for if there is one; not all are Ready then."""
        rate = self.settings.rate
        started_s = self._loop.time()
        while self.size < self.settings.nodes:
            left = self.settings.nodes - self.size
            if rate == math.inf:
                due = left
            elif rate:
                due = int((self._loop.time() - started_s) * rate) + 1 - self.size
            else:
                due = self.room()
            for _ in range(min(due, left)):
                self.start_next()
            await asyncio.sleep(STEP_S)

    async def note_settled(self) -> None:
        """Note when each of the first nodes has had all its watches open."""
        slot = 0
        while slot < self.settings.nodes:
            await asyncio.sleep(SETTLED_STEP_S)
            while slot < self.size and self.reactor.watches.are_open(self._running[slot]):
                slot += 1
        self._time_to_settled_s = (time.monotonic_ns() - self.started_ns) / 1e9

    @property
    def size(self) -> int:
        """Return how many nodes run here."""
        return len(self._running)

    def node_at(self, index: int) -> tuple[NodeId, str] | None:
        """Return number and name of the node with an index in the whole fleet, if it runs here.

        From any thread.
        """
        if self.managed is not None:
            return self.managed.at(index)
        slot = index - self.settings.node_index(0)
        if not 0 <= slot < len(self._running):
            return None
        try:
            node = self._running[slot]
        except IndexError:  # removed since
            return None
        if self.reactor.entries[node].kubelet is None:
            return None
        return node, self.settings.node_name(slot)

    @property
    def zones(self) -> list[str]:
        return sorted({zone for model in self._mix.models for zone in model.zones})

    @property
    def nodes_max(self) -> int:
        """Return how many nodes may run here: what was confirmed and checked, and no more."""
        return self.settings.most

    def room(self) -> int:
        """Return how many more nodes may start now."""
        return self._pacing.room(self._stage, self.counts.requests.rows, self._loop.time())

    def on_queues(self, waited_s: float, refused: float) -> None:
        """Take what the API server's metrics say of requests of nodes; see `StartLimit`."""
        self._pacing.limit.on_queues(waited_s, refused, self._loop.time())

    def _stage(self, node: NodeId) -> StartStage:
        """Return how far a node has come; one that is gone or broken is not waited for."""
        kubelet = self.reactor.entries[node].kubelet
        if kubelet is None:
            return StartStage.SETTLED
        if self._is_light:
            return StartStage.SETTLED if kubelet.lease.renewed_ns else StartStage.STARTING
        if kubelet.status.is_settled:
            is_through = bool(kubelet.lease.renewed_ns) and (
                self._shares_watches or self.reactor.watches.are_open(node)
            )
        elif kubelet.is_ready:
            return StartStage.SETTLED if kubelet.name in self.readiness.ready else StartStage.SAID
        else:
            is_through = False
        age_ns = self.reactor.clock.now_ns() - kubelet.facts.started_ns
        is_late = age_ns > NOT_READY_NS_MAX and kubelet.status.phase is RegistrationPhase.REGISTERED
        return StartStage.SETTLED if is_through or is_late else StartStage.STARTING

    def start_next(self) -> None:
        """Start the kubelet of the lowest free slot."""
        settings = self.settings
        slot = len(self._running)
        index, name = settings.node_index(slot), settings.node_name(slot)
        model = self._mix.model_of(index)
        self._start(index, name, model, model.addresses(index))

    def serve(self, name: str, found: Resources, addresses: str, hold: Hold) -> None:
        """Become the kubelet of a Node of others, with what it declares; addresses may be ""."""
        assert self.managed is not None
        if self._is_silent:
            return
        index = self.managed.next_index
        model = self.managed.model_of(self._mix.model_of(index), found)
        # Before its first request is answered: the answer asks whether the Node is ours.
        node = NodeId(len(self.reactor.entries))
        self.managed.add(name, hold.uid, node)
        self._kind(model)[0].holds[node] = hold
        self._start(index, name, model, addresses or model.addresses(index))

    def leave(self, name: str) -> None:
        """Fall silent as the kubelet of a Node of others, which is gone or matches no more."""
        assert self.managed is not None
        node = self.managed.remove(name)
        self._holds_of(node).pop(node, None)
        self._running.remove(node)
        self._pacing.remove(node)
        self.reactor.silence(node)
        self.transport.close_pool(node)
        self.readiness.forget(name)

    def lose(self, name: str, why: str) -> None:
        """Leave a Node of others at once: another kubelet serves it."""
        assert self.managed is not None
        served = self.managed.by_name.get(name)
        if served is None:
            return
        self.leave(name)
        if self.managed.on_lost is not None:
            self.managed.on_lost(name, served.uid, why)

    def is_renewed_by_others(self, name: str, version: str, renewed: str) -> bool:
        """Return whether a Lease of this version and time shows that another kubelet renews it."""
        assert self.managed is not None
        served = self.managed.by_name.get(name)
        if served is None:
            return False
        kubelet = self.reactor.entries[served.node].kubelet
        hold = self._holds_of(served.node).get(served.node)
        if kubelet is None or hold is None or not kubelet.lease.base:
            return False  # the kubelet looks at the Lease before it renews it
        known = self.reactor.codec.version_in(kubelet.lease.base)
        return hold.is_renewed_by_others(renewed, version, known)

    def _holds_of(self, node: NodeId) -> dict[int, Hold]:
        model = self.reactor.entries[node].caller.template.model
        return self._kinds[id(model)][0].holds

    def _on_lost(self, node: NodeId) -> None:
        """Leave a Node whose kubelet has found another one, once the turn is over."""
        name = self.reactor.entries[node].caller.name.decode()
        hold = self._holds_of(node).get(node)

        def leave() -> None:
            served = self.managed.by_name.get(name) if self.managed is not None else None
            if hold is not None and served is not None and served.node == node:
                self.lose(name, hold.why)

        self._loop.call_soon(leave)

    def _on_observed(self, event: WatchEvent) -> None:
        """Take what another client sees of Nodes; of those of others only what is served counts."""
        managed, view = self.managed, event.record
        if managed is None or not isinstance(view, NodeView) or view.name in managed.by_name:
            self.readiness.on_event(event)
        if self.admin_labels is not None:
            self.admin_labels.on_event(event)

    def _admin_labels(self) -> AdminLabels | None:
        has_any = any(map(self._withheld, self._mix.models))
        return AdminLabels(self._admin_labels_of) if has_any else None

    def _withheld(self, model: NodeModel) -> frozenset[str]:
        """Return the labels with which a Node of a profile may not register."""
        if self._identity.mode is IdentityMode.SHARED or self.settings.manage:
            return frozenset()
        return model.admin_labels

    def _admin_labels_of(self, name: str) -> dict[str, str]:
        """Return the labels that fleet itself sets on a Node; none on one that is not ours."""
        if self.settings.slot_of(name) is None:
            return {}
        index = self._index_of(name, "")
        model = self._mix.model_of(index)
        labels = model.identity(index, name).labels
        return {key: labels[key] for key in model.admin_labels if key in labels}

    def _start(self, index: int, name: str, model: NodeModel, addresses: str) -> None:
        node = NodeId(len(self.reactor.entries))  # never used again: late answers find nobody
        env, template = self._kind(model)
        pool = watch_pool = int(node)
        if self._is_light:
            pool, watch_pool = self._light_pools.of(node, self._agent_number(model))
        kubelet = VirtualKubelet(node, name, addresses, env)
        self._running.append(node)
        self._pacing.add(node)
        caller = Caller(index, name.encode(), template)
        if self.certificates is not None:
            self.reactor.register(kubelet, caller, pool)
            self.certificates.add(node, name, model.identity(index, name).addresses, model)
            return
        if not self._is_light:
            self.transport.open_pool(pool, user=self._identity.user_of(name))
        self.reactor.add(kubelet, caller, pool, watch_pool)

    def stop_last(self) -> str:
        """Let the kubelet of the highest slot fall silent; return the name of its node."""
        node = self._running.pop()
        self._pacing.remove(node)
        self.reactor.silence(node)
        has_begun = self.certificates is None or self.certificates.forget(node)
        if has_begun and not self._is_light:
            self.transport.close_pool(node)
        return self.settings.node_name(len(self._running))

    def strays(self) -> list[str]:
        """Return the names of nodes that exist in our slots though no kubelet hosts them."""
        slot_of = self.settings.slot_of
        return sorted(
            name
            for name in self.readiness.present
            if (slot := slot_of(name)) is not None and slot >= self.size
        )

    def _kind(self, model: NodeModel) -> tuple[Environment, RenderedProfile]:
        """Return what the nodes of one model share, made at its first node."""
        found = self._kinds.get(id(model))
        if found is None:
            tolerate = self.taint[0] if self.taint else ""
            env = Environment(
                model,
                self.draws,
                fidelity=LIGHT if self._is_light else KUBELET,
                tolerate_key=tolerate,
                own_watches=not self._shares_watches,
                is_ours=self._is_ours,
                registers=self.managed is None,
                starts_settled=self.settings.makes_settled,
                position_of=self._index_of,
            )
            self.reactor.environments.add(env)
            self._add_static_source(env)
            template = RenderedProfile(
                model,
                extra_labels=self._labels,
                extra_annotations=self._annotations,
                extra_taints=(self.taint,) if self.taint else (),
                impersonate=self._is_light
                and self._identity.impersonation is not Impersonation.NONE,
                preset=self._preset,
                withheld=self._withheld(model),
            )
            found = self._kinds[id(model)] = (env, template)
        return found

    def _is_ours(self, view: NodeView) -> bool:
        if self.managed is None:
            return ownership.is_of_run(view, self.run_id)
        served = self.managed.by_name.get(view.name)
        return served is not None and served.uid == view.uid

    def _index_of(self, name: str, _address: str) -> int:
        """Return the index of a node in the whole fleet."""
        if self.managed is not None:
            served = self.managed.by_name.get(name)
            assert served is not None, name
            return served.slot
        slot = self.settings.slot_of(name)
        assert slot is not None, name
        return self.settings.node_index(slot)

    def _add_static_source(self, env: Environment) -> None:
        """Read the static pods of a profile before its first node starts."""
        if env.model.kubelet.static_pod_path:
            source = StaticSource(env, self.reactor.static_pods_changed)
            source.read_file()
            self.static_sources.append(source)

    async def refresh_credentials(self) -> None:
        """Renew what expires, and see that the server knows the nodes still, until cancelled."""
        refusals = RefusalWatch(self.counts.requests)
        while True:
            await asyncio.sleep(LOOK_S)
            with contextlib.suppress(SetupError):  # it has been reported, and is tried again
                await self._cluster.renewal.renew()
            self.transports.use_fresh_credentials()
            if refusals.is_storm() and self._identity.impersonation is Impersonation.USER:
                await self._probe_again()

    async def _probe_again(self) -> None:
        """Name the nodes' group too, if the server wants it since the run began."""
        api, name = self._cluster.api("identity"), self.settings.node_name(0)
        try:
            found = await probe(api, self._identity.mode, name)
        except FleetError as error:
            log.warning("nodes are refused: %s", error)
            return
        if found != self._identity:
            log.warning("the server takes nodes for others; from now on their group is named too")
            self._identity = found
            self.transport.set_authorization(self._cluster.credentials.authorization(), found.group)

    def silence(self) -> None:
        """Let every kubelet fall silent, so that what is deleted is not reported again."""
        self._is_silent = True
        for _, kubelet in self.reactor.kubelets.living():
            self.reactor.silence(kubelet.node)

    async def last_answers(self) -> None:
        """Wait for the answers to what nodes had asked before they fell silent, so they count."""
        for _ in range(round(LAST_ANSWERS_S / STEP_S)):
            if not self.transport.is_asking():
                return
            await asyncio.sleep(STEP_S)

    async def close(self) -> None:
        """Stop turning and close every connection."""
        self.reactor_loop.stop()
        await self.transports.close()
