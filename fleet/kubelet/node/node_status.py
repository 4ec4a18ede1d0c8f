"""Registration and the status of one Node: the setters in upstream order, and when to patch.

    STARTING --POST--> REGISTERED            --exists--> GET --differs--> PATCH --> REGISTERED
       ^ |refused: 100 ms doubling to 7 s, slept before each try    |not of this run
       +-+                                                          +--> FOREIGN, silent for ever

Once registered, a tick every 10 s compares the status with the Node as it was read last; it is
patched when something but a heartbeat changed, or when the report is due. A tick that would find
nothing is not armed: the next one that matters is computed from the phase.
Source: pkg/kubelet/kubelet_node_status.go, registerWithAPIServer, tryUpdateNodeStatus,
fastNodeStatusUpdate; pkg/kubelet/nodestatus/setters.go.
"""

import enum
from typing import NamedTuple

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.kubelet.devices.node_resources import Wanted, differing_resources
from fleet.kubelet.environment import Environment
from fleet.kubelet.events import Reason
from fleet.kubelet.node.node_facts import NodeFacts
from fleet.kubelet.node.node_reconcile import both, reconcile
from fleet.objects.effects import (
    ApiCall,
    Milestone,
    NodeObject,
    NodeStatusPatch,
    Op,
    Outbox,
    PowerOff,
    Reply,
    ReplyKind,
    Report,
    SetTimer,
    Timer,
)
from fleet.objects.pods import NodeCondition, NodeView

REGISTER_FIRST_NS = 100 * NS_PER_MS
REGISTER_MAX_NS = 7 * NS_PER_S
FAST_NS = 100 * NS_PER_MS
FAST_LIMIT_NS = 120 * NS_PER_S
_SLOW = -1
JITTER = 0.04
RETRIES_MAX = 5
_TICK_STREAM = 0x5747
_DELAY_STREAM = 0xDE1A

PRESSURES = (
    (
        "MemoryPressure",
        ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
        (Reason.NODE_HAS_SUFFICIENT_MEMORY, Reason.NODE_HAS_INSUFFICIENT_MEMORY),
    ),
    (
        "DiskPressure",
        ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("KubeletHasDiskPressure", "kubelet has disk pressure"),
        (Reason.NODE_HAS_NO_DISK_PRESSURE, Reason.NODE_HAS_DISK_PRESSURE),
    ),
    (
        "PIDPressure",
        ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
        (Reason.NODE_HAS_SUFFICIENT_PID, Reason.NODE_HAS_INSUFFICIENT_PID),
    ),
)
READY_MESSAGE = "kubelet is posting ready status"


class NodeInputs(NamedTuple):
    """What the setters draw from, handed in by the kubelet at each computation."""

    memory_pressure: bool = False
    disk_pressure: bool = False
    pid_pressure: bool = False
    not_ready: tuple[str, ...] = ()  # why the node is not ready, in upstream order
    volumes_in_use: tuple[str, ...] | None = None  # None: as the server shows them
    extended: Wanted = ()  # what device plugins offer
    images_json: bytes = b""  # the `images` member if it differs from what was reported


def under_pressure(inputs: NodeInputs, conditions: tuple[str, ...]) -> NodeInputs:
    """Return the inputs of a node that is under these conditions."""
    return inputs._replace(
        memory_pressure="MemoryPressure" in conditions,
        disk_pressure="DiskPressure" in conditions,
        pid_pressure="PIDPressure" in conditions,
    )


class RegistrationPhase(enum.IntEnum):
    """How far registration has come."""

    STARTING = 0
    CREATING = 1
    GETTING = 2  # the Node exists already
    RECONCILING = 3
    REGISTERED = 4
    FOREIGN = 5  # somebody else's: the kubelet ends


def set_pressure(
    old: NodeCondition | None, index: int, *, under_pressure: bool, now_s: int
) -> tuple[NodeCondition, Reason | None]:
    """Refresh one pressure condition; return it and the event to record if it flipped.

    The heartbeat moves on every call, the transition only on a flip; a new condition is Unknown,
    so the first call flips it.
    Source: pkg/kubelet/nodestatus/setters.go, MemoryPressureCondition and its two sisters.
    """
    kind, fine, bad, events = PRESSURES[index]
    status = "True" if under_pressure else "False"
    if old is not None and old.status == status:
        return old._replace(heartbeat_s=now_s), None
    reason, message = bad if under_pressure else fine
    return NodeCondition(kind, status, reason, message, now_s, now_s), events[under_pressure]


def set_ready(
    old: NodeCondition | None, causes: tuple[str, ...], now_s: int
) -> tuple[NodeCondition, Reason | None]:
    """Rebuild the Ready condition; the event comes only when an existing one changed.

    Source: setters.go, ReadyCondition; the causes are joined as apimachinery's Aggregate does.
    """
    if causes:
        message = causes[0] if len(causes) == 1 else "[" + ", ".join(causes) + "]"
        new = NodeCondition("Ready", "False", "KubeletNotReady", message, now_s, now_s)
    else:
        new = NodeCondition("Ready", "True", "KubeletReady", READY_MESSAGE, now_s, now_s)
    if old is None:
        return new, None
    if old.status == new.status:
        return new._replace(transition_s=old.transition_s), None
    return new, Reason.NODE_NOT_READY if causes else Reason.NODE_READY


def compute_conditions(
    old: tuple[NodeCondition, ...], inputs: NodeInputs, now_s: int
) -> tuple[tuple[NodeCondition, ...], list[Reason]]:
    """Run the condition setters in upstream order; foreign conditions keep their place.

    Source: kubelet_node_status.go, defaultNodeStatusFuncs.
    """
    found = {condition.type: condition for condition in old}
    events = []
    pressures = (inputs.memory_pressure, inputs.disk_pressure, inputs.pid_pressure)
    for index, under_pressure in enumerate(pressures):
        kind = PRESSURES[index][0]
        found[kind], event = set_pressure(
            found.get(kind), index, under_pressure=under_pressure, now_s=now_s
        )
        if event is not None:
            events.append(event)
    found["Ready"], event = set_ready(found.get("Ready"), inputs.not_ready, now_s)
    if event is not None:
        events.append(event)
    return tuple(found.values()), events


def has_changed(old: tuple[NodeCondition, ...], new: tuple[NodeCondition, ...]) -> bool:
    """Return whether anything but heartbeats differs. Source: nodeStatusHasChanged."""
    if len(old) != len(new):
        return True
    return any(
        before._replace(heartbeat_s=0) != after._replace(heartbeat_s=0)
        for before, after in zip(old, new, strict=True)
    )


class NodeStatus:
    """Register the Node and keep its status reported.

    `conditions` and `uid` show the Node as it was read last; `uid` is "" while the informer shows
    no Node.
    """

    __slots__ = (
        "_cidr_applied",
        "_delay_ns",
        "_due_ns",
        "_fast_due_ns",
        "_reported_ns",
        "_schedulable",
        "_ticked_ns",
        "_tries",
        "conditions",
        "facts",
        "phase",
    )

    def __init__(self, facts: NodeFacts) -> None:
        self.facts = facts
        self.phase = RegistrationPhase.STARTING
        self.conditions: tuple[NodeCondition, ...] = ()
        self._cidr_applied = ""
        self._schedulable = True  # as the last computation left it
        self._due_ns = 0  # the REGISTER or NODE_STATUS timer that counts
        self._fast_due_ns = 0  # _SLOW once Ready was reported
        self._ticked_ns = 0  # the end of the last tick: the phase of the next ones
        self._tries = -1  # of the tick under way, -1 when there is none
        self._reported_ns = 0
        self._delay_ns = REGISTER_FIRST_NS  # of the next try to register, then of the next report

    @property
    def is_fast(self) -> bool:
        """Return whether Ready was not reported yet: changes are looked for each 100 ms."""
        return self._fast_due_ns != _SLOW

    def start(self, env: Environment, now_ns: int, out: Outbox) -> None:
        """Begin to register; the loop sleeps before each try, the first one too."""
        self.facts.started_ns = now_ns
        self._register_at(now_ns if env.light else now_ns + self._delay_ns, out)

    def _register_at(self, due_ns: int, out: Outbox) -> None:
        self.phase = RegistrationPhase.STARTING
        self._due_ns = due_ns
        out.append(SetTimer(self.facts.node, due_ns, Timer.REGISTER))

    def on_register_timer(
        self, inputs: NodeInputs, env: Environment, now_ns: int, out: Outbox
    ) -> list[Reason]:
        """Build the Node anew and POST it; return the events of its fresh conditions.

        Source: registerWithAPIServer, initialNode.
        """
        if self.phase is not RegistrationPhase.STARTING or now_ns < self._due_ns:
            return []
        self._delay_ns = min(self._delay_ns * 2, REGISTER_MAX_NS)
        self.phase = RegistrationPhase.CREATING
        conditions, events = compute_conditions((), inputs, env.wall_s(now_ns))
        out.append(ApiCall(self.facts.node, Op.CREATE_NODE, "", NodeObject(conditions)))
        return events

    def on_register_reply(self, reply: Reply, env: Environment, now_ns: int, out: Outbox) -> bool:
        """Take an answer on the way to a registered Node; return whether it was the last step.

        Source: tryRegisterWithAPIServer: a Node that exists, or a refused create, is looked at.
        Differs: a kubelet takes any Node of its name, fleet's only one that this run owns.
        """
        if self.phase is RegistrationPhase.CREATING:
            if reply.kind in (ReplyKind.EXISTS, ReplyKind.FORBIDDEN):
                self.phase = RegistrationPhase.GETTING
                out.append(ApiCall(self.facts.node, Op.GET_NODE_EXISTING))
                return False
        elif self.phase is RegistrationPhase.GETTING and reply.ok:
            assert isinstance(reply.record, NodeView), reply
            if not env.is_ours(reply.record):
                self.phase = RegistrationPhase.FOREIGN
                out += [Report(self.facts.node, Milestone.FOREIGN), PowerOff(self.facts.node)]
                return False
            patch = reconcile(self.facts.node, reply.record, self.facts.host_ip, env)
            if patch is not None:
                self.phase = RegistrationPhase.RECONCILING
                out.append(ApiCall(self.facts.node, Op.PATCH_NODE_STATUS, "", patch))
                return False
        if not reply.ok:
            self._register_at(now_ns + self._delay_ns, out)
            return False
        self.phase = RegistrationPhase.REGISTERED
        self._delay_ns = 0
        self._ticked_ns = now_ns
        out.append(Report(self.facts.node, Milestone.REGISTERED, now_ns - self.facts.started_ns))
        return True

    def on_node(self, view: NodeView | None) -> None:
        """Take the Node as the informer shows it, None once it was deleted."""
        if view is None:
            self.facts.uid = ""
            self.facts.is_deleting = False
            self.conditions = ()
            return
        facts = self.facts
        facts.uid = view.uid
        facts.is_deleting = view.deleting
        facts.state = view.state
        self.conditions = view.conditions
        facts.pod_cidr = view.pod_cidrs[0] if view.pod_cidrs else ""

    def report_created(
        self, inputs: NodeInputs, env: Environment, now_ns: int, out: Outbox
    ) -> None:
        """Count the POST as the first report. Differs: only in fidelity light."""
        self._fast_due_ns = _SLOW
        if self._finds_change(inputs, env, now_ns):  # it existed already
            self.sync(inputs, env, now_ns, out)
            return
        self._draw_delay(now_ns, env, changed=True)
        self._reported_ns = now_ns
        self.arm(inputs, env, now_ns, out)

    def arm(self, inputs: NodeInputs, env: Environment, now_ns: int, out: Outbox) -> None:
        """Set the timer of the next tick that would find something; called on every change."""
        if self.phase is not RegistrationPhase.REGISTERED or self._tries >= 0:
            return
        if self.is_fast and self.facts.uid and not inputs.not_ready:
            self._arm_fast(now_ns, out)
        wanted_ns = now_ns
        # An event, no patch.
        is_cordoned_anew = self.facts.state.unschedulable is self._schedulable
        if self.facts.uid and not is_cordoned_anew and not self._finds_change(inputs, env, now_ns):
            wanted_ns = max(now_ns, self._report_due_ns(env))
        due_ns = self._next_tick(wanted_ns, env)
        if self._due_ns <= self._ticked_ns or due_ns < self._due_ns:
            self._due_ns = due_ns
            out.append(SetTimer(self.facts.node, due_ns, Timer.NODE_STATUS))

    def on_status_timer(
        self, inputs: NodeInputs, env: Environment, now_ns: int, out: Outbox
    ) -> list[Reason]:
        """Run one tick: the first try takes the Node from the informer, without a GET."""
        if (
            self.phase is not RegistrationPhase.REGISTERED
            or self._tries >= 0
            or now_ns < self._due_ns
        ):
            return []
        return self.sync(inputs, env, now_ns, out)

    def sync(self, inputs: NodeInputs, env: Environment, now_ns: int, out: Outbox) -> list[Reason]:
        """Compute and report now; return the events. Source: syncNodeStatus."""
        assert self._tries < 0, self._tries
        self._tries = 0
        if not self.facts.uid:
            self._try_again(env, now_ns, out)
            return []
        return self._try(inputs, env, now_ns, out)

    def sync_now(
        self, inputs: NodeInputs, env: Environment, now_ns: int, out: Outbox
    ) -> list[Reason]:
        """Report now; what a tick that is under way does not say, the next one will."""
        if self.phase is not RegistrationPhase.REGISTERED or self._tries >= 0:
            return []
        return self.sync(inputs, env, now_ns, out)

    def on_fast_timer(
        self, inputs: NodeInputs, env: Environment, now_ns: int, out: Outbox
    ) -> list[Reason]:
        """Report Ready within 100 ms of becoming so, once. Source: fastNodeStatusUpdate."""
        if not self.is_fast or now_ns < self._fast_due_ns or not self._fast_due_ns:
            return []
        self._fast_due_ns = 0
        if self._tries >= 0 or inputs.not_ready or not self.facts.uid:
            return []  # armed again when the tick is over, or when the node is ready
        self._fast_due_ns = _SLOW
        if any(c.type == "Ready" and c.status == "True" for c in self.conditions):
            return []
        self._tries = 0
        return self._patch(inputs, env, now_ns, out)

    def on_status_reply(
        self,
        call: ApiCall,
        reply: Reply,
        inputs: NodeInputs,
        env: Environment,
        now_ns: int,
        out: Outbox,
    ) -> list[Reason]:
        """Take the answer to a GET or PATCH of the tick under way."""
        assert self._tries >= 0, call
        if not reply.ok:
            self._try_again(env, now_ns, out)
            return []
        if call.op is Op.GET_NODE_HEARTBEAT:
            assert isinstance(reply.record, NodeView), reply
            return self._try_on(reply.record, inputs, env, now_ns, out)
        self._reported_ns = now_ns
        env.outdated.pop(self.facts.node, None)
        self._finish(inputs, env, now_ns, out)
        return []

    def _try_on(
        self, view: NodeView, inputs: NodeInputs, env: Environment, now_ns: int, out: Outbox
    ) -> list[Reason]:
        """Try with the Node as a GET showed it; the informer's view stays, as in the lister."""
        facts, conditions = self.facts, self.conditions
        shown = facts.uid, facts.is_deleting, facts.state, facts.pod_cidr
        self.on_node(view)
        events = self._try(inputs, env, now_ns, out)
        facts.uid, facts.is_deleting, facts.state, facts.pod_cidr = shown
        self.conditions = conditions
        return events

    def _try(self, inputs: NodeInputs, env: Environment, now_ns: int, out: Outbox) -> list[Reason]:
        changed = self._finds_change(inputs, env, now_ns)
        events = self._schedulable_events()
        if changed or now_ns >= self._report_due_ns(env):
            return events + self._patch(inputs, env, now_ns, out)
        self._finish(inputs, env, now_ns, out)
        return events

    def _patch(
        self, inputs: NodeInputs, env: Environment, now_ns: int, out: Outbox
    ) -> list[Reason]:
        """Send the difference. Source: patchNodeStatus."""
        now_s = env.wall_s(now_ns)
        changed = self._finds_change(inputs, env, now_ns)
        conditions, events = compute_conditions(self.conditions, inputs, now_s)
        old = {condition.type: condition for condition in self.conditions}
        pairs = tuple((old.get(condition.type), condition) for condition in conditions)
        self._cidr_applied = self.facts.pod_cidr
        self._draw_delay(now_ns, env, changed=changed)
        resources = differing_resources(self.facts.state, inputs.extended, env.model.capacity)
        images = inputs.images_json
        if not images and not self._reported_ns and env.model.images_preloaded and not env.light:
            images = env.images.status_json()  # the list was empty when the Node was created
        patch = NodeStatusPatch(
            conditions=pairs,
            status_json=b",".join(part for part in (images, resources) if part),
            volumes_in_use=inputs.volumes_in_use,
        )
        if self.facts.node in env.outdated:
            patch = both(patch, env.outdated[self.facts.node])
        out.append(ApiCall(self.facts.node, Op.PATCH_NODE_STATUS_HEARTBEAT, "", patch))
        return events

    def _draw_delay(self, now_ns: int, env: Environment, *, changed: bool) -> None:
        """Move the next report after a change, and the first one. Source: calculateDelay."""
        self._delay_ns = 0
        if changed or not self._reported_ns:
            share = env.draws.uniform(self.facts.node, _DELAY_STREAM, now_ns) - 0.5
            self._delay_ns = int(env.model.kubelet.status_report_ns * share)

    def _report_due_ns(self, env: Environment) -> int:
        if not self._reported_ns:
            return 0
        return self._reported_ns + env.model.kubelet.status_report_ns + self._delay_ns

    def _try_again(self, env: Environment, now_ns: int, out: Outbox) -> None:
        """Go on with a quorum read, or leave it to the next tick after five tries."""
        self._tries += 1
        if self._tries < RETRIES_MAX:
            out.append(ApiCall(self.facts.node, Op.GET_NODE_HEARTBEAT))
            return
        self._tries = -1
        self._ticked_ns = now_ns
        self._due_ns = self._next_tick(now_ns + 1, env)
        out.append(SetTimer(self.facts.node, self._due_ns, Timer.NODE_STATUS))

    def _finish(self, inputs: NodeInputs, env: Environment, now_ns: int, out: Outbox) -> None:
        self._tries = -1
        self._ticked_ns = now_ns
        self.arm(inputs, env, now_ns, out)

    def _finds_change(self, inputs: NodeInputs, env: Environment, now_ns: int) -> bool:
        """Tell whether a patch would hold more than heartbeats. In light a CIDR is no reason."""
        conditions, _ = compute_conditions(self.conditions, inputs, env.wall_s(now_ns))
        return (
            (self.facts.pod_cidr != self._cidr_applied and not env.light)
            or inputs.volumes_in_use is not None
            or bool(differing_resources(self.facts.state, inputs.extended, env.model.capacity))
            or bool(inputs.images_json)
            or self.facts.node in env.outdated
            or has_changed(self.conditions, conditions)
        )

    def _schedulable_events(self) -> list[Reason]:
        """Source: recordNodeSchedulableEvent."""
        if self.facts.state.unschedulable is not self._schedulable:
            return []
        self._schedulable = not self.facts.state.unschedulable
        return [Reason.NODE_SCHEDULABLE if self._schedulable else Reason.NODE_NOT_SCHEDULABLE]

    def _arm_fast(self, now_ns: int, out: Outbox) -> None:
        if now_ns - self.facts.started_ns >= FAST_LIMIT_NS:
            self._fast_due_ns = _SLOW
        elif self._fast_due_ns <= now_ns:
            past_ns = (now_ns - self.facts.started_ns) % FAST_NS
            self._fast_due_ns = now_ns + FAST_NS - past_ns
            out.append(SetTimer(self.facts.node, self._fast_due_ns, Timer.FAST_STATUS))

    def _next_tick(self, wanted_ns: int, env: Environment) -> int:
        """Return the first tick at or after an instant; each is 10 s x U[1, 1.04] after the last.

        Many ticks ahead the sum of the jitters is drawn at once, about its mean.
        """
        period_ns = env.model.kubelet.node_status_update_frequency_ns
        share = env.draws.uniform(self.facts.node, _TICK_STREAM, self._ticked_ns)
        mean_ns = int(period_ns * (1 + JITTER / 2))
        ticks = max(1, -(-(wanted_ns - self._ticked_ns) // mean_ns))
        due_ns = self._ticked_ns + ticks * mean_ns + int((share - 0.5) * JITTER * period_ns)
        return due_ns if due_ns >= wanted_ns else due_ns + mean_ns
