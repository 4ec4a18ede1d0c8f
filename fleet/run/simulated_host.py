"""The nodes of a simulated run, with the control plane that they talk to, in virtual time."""

from collections import Counter
from collections.abc import Callable

from fleet.clock import NS_PER_S, TICK_NS, Draws, SimClock
from fleet.cluster.ownership import PREFIX_LABEL, RUN_LABEL
from fleet.host.node_certificates import NodeCertificates
from fleet.host.readiness import Readiness
from fleet.k8s.effects import NodeId, WatchKind
from fleet.kubelet.environment import Environment
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.metrics import FleetCounts
from fleet.profile.loader import NodeMix
from fleet.profile.node_model import NodeModel
from fleet.profile.settings import Settings
from fleet.reactor.reactor import Reactor
from fleet.report.host_state import HostState
from fleet.simulation.api_server import SimApiServer
from fleet.simulation.components import Asked, Components
from fleet.simulation.controllers import Controllers
from fleet.simulation.encodings import ENCODINGS
from fleet.simulation.transport import Sent, SimTransport
from fleet.simulation.user_requests import UserRequests
from fleet.simulation.world import World
from fleet.wire.api.callers import Caller, RenderedProfile
from fleet.wire.sockets.transport_reports import TransportStats

RUN = "simulated"
"""The id of the run in labels: it must not differ from run to run, unlike that of its directory."""
RATE = 50.0
"""Nodes that start a second, without --rate."""
ENCODING = "json"


class SimulatedHost:
    """See the top of this file. `record` takes each request when it has been answered."""

    def __init__(
        self, settings: Settings, mix: NodeMix, record: Callable[[Sent | Asked], None]
    ) -> None:
        self.settings = settings
        self.certificates: NodeCertificates | None = None  # of identity csr
        self.clock = SimClock()
        self.server = SimApiServer(self.clock, ENCODINGS[ENCODING])
        self.draws = Draws(settings.seed)
        codec = self.server.encoding.codec
        story = frozenset(settings.story)
        self.reactor = Reactor(self.clock, self.draws, codec=codec, raise_bugs=True, story=story)
        self.readiness = Readiness(settings.nodes, self.clock.now_ns)
        self.reactor.on_observed = self.readiness.on_event
        names = [settings.node_name(slot) for slot in range(settings.nodes)]
        inbox = self.reactor.inbox
        self._nodes = SimTransport(self.server, self.clock, inbox, self.draws, names)
        draws = Draws(settings.seed + 1)
        self._observer = SimTransport(self.server, self.clock, inbox, draws, ["fleet"])
        self.reactor.wires.connect(nodes=self._nodes, observer=self._observer)
        wires = (self._nodes, self._observer)
        for wire in wires:
            wire.record = record
        self.world = World(self.clock, self.reactor, wires, edge_ns=TICK_NS)
        self.components = Components(self.world, self.server, wires, record)
        self.controllers = Controllers(self.components, self.draws)
        self.requests = UserRequests(self.server, self.controllers.workloads)
        self.requests.add_namespace("default")
        self.server.create(("services", "default", "kubernetes"), {"spec": {}})
        self._names = names
        self._mix = mix
        self._kinds: dict[int, tuple[Environment, RenderedProfile]] = {}
        self._started = 0

    # ---- as faults and figures see it ----

    @property
    def has_own_connections(self) -> bool:
        """Return whether all that reaches a node comes by connections of its own: yes."""
        return True

    @property
    def size(self) -> int:
        """Return how many nodes have started."""
        return self._started

    @property
    def counts(self) -> FleetCounts:
        """Return what the kubelets did so far."""
        return self.reactor.counts

    def state(self) -> HostState:
        """Return how the nodes stand just now."""
        readiness, counts = self.readiness, self.counts
        took_ns = readiness.ready_at_ns
        return HostState(
            requested=self.settings.nodes,
            wanted=self.settings.nodes,
            running=self._started,
            present=len(readiness.present),
            ready=len(readiness.ready),
            ever_not_ready=len(readiness.ever_not_ready),
            time_to_ready_s=took_ns / NS_PER_S if took_ns else None,
            held_by="",
            own_limits=Counter(),
            connections=TransportStats(),
            closed_slow=0,
            agents={},
            unregistered=Counter(self.reactor.unregistered().values()),
            rejected=counts.rejected,
        )

    # ---- bring-up ----

    def start(self) -> None:
        """Plan the start of every kubelet, at the rate asked for, and look on."""
        self.reactor.share_watch(WatchKind.NODE, f"{RUN_LABEL}={RUN}")
        self.world.turn()
        rate = self.settings.rate or RATE
        for slot in range(self.settings.nodes):
            self.world.after(slot / rate, self._start_next)

    def _start_next(self) -> None:
        slot = self._started
        self._started += 1
        index = self.settings.node_index(slot)
        model = self._mix.model_of(index)
        env, template = self._kind(model)
        name = self._names[slot]
        kubelet = VirtualKubelet(NodeId(slot), name, model.addresses(index), env)
        self.reactor.add(kubelet, Caller(index, name.encode(), template), slot)

    def _kind(self, model: NodeModel) -> tuple[Environment, RenderedProfile]:
        """Return what the nodes of one model share, made at its first node."""
        found = self._kinds.get(id(model))
        if found is None:
            env = Environment(model, self.draws, light=False)
            self.reactor.environments.add(env)
            labels = {RUN_LABEL: RUN, PREFIX_LABEL: self.settings.name_prefix}
            template = RenderedProfile(model, extra_labels=labels)
            found = self._kinds[id(model)] = (env, template)
        return found
