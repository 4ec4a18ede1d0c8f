"""Registration and the status of one Node: the setters in upstream order, and when to patch.

    STARTING --POST--> REGISTERED            --exists--> GET --differs--> PATCH --> REGISTERED
       | of a Node that others make                       ^
       +--------------------------------------------------+
       ^ |refused: 100 ms doubling to 7 s, slept before each try    |not of this run
       +-+                                                          +--> FOREIGN, silent for ever

The POST of a settled node says all that the first patch would. If that Node exists, or the server
refuses it, the kubelet begins a cold start.

Once registered, a tick every 10 s compares the status with the Node as it was read last; it is
patched when something but a heartbeat changed, or when the report is due. A tick that would find
nothing is not armed: the next one that matters is computed from the phase.
Source: pkg/kubelet/kubelet_node_status.go, registerWithAPIServer, tryUpdateNodeStatus,
fastNodeStatusUpdate; pkg/kubelet/nodestatus/setters.go.
"""

import enum
from dataclasses import dataclass

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s import effects
from fleet.k8s.admission import NodeState
from fleet.k8s.pods import NodeCondition, NodeView
from fleet.kubelet.environment import Environment
from fleet.kubelet.events import Reason
from fleet.kubelet.node import node_reconcile
from fleet.kubelet.node.setters import (
    NodeInputs,
    compute_conditions,
    differing_resources,
    has_changed,
)
from fleet.kubelet.node_facts import NodeFacts
from fleet.kubelet.turn import Turn

REGISTER_FIRST_NS = 100 * NS_PER_MS
REGISTER_MAX_NS = 7 * NS_PER_S  # registerWithAPIServer doubles the step up to this
LOOKS_BEFORE = 2  # at a Node that nobody has yet: for the container manager, to wipe slices
FAST_NS = 100 * NS_PER_MS  # fastStatusUpdateOnce polls so often
FAST_LIMIT_NS = 120 * NS_PER_S  # nodeReadyGracePeriod: then it gives up
_SLOW = -1
_SENT = -2  # Ready is being reported
JITTER = 0.04
RETRIES_MAX = 5  # nodeStatusUpdateRetry
_TICK_STREAM = 0x5747
_DELAY_STREAM = 0xDE1A


class RegistrationPhase(enum.IntEnum):
    """How far registration has come."""

    STARTING = 0
    CREATING = 1
    GETTING = 2  # the Node exists already
    RECONCILING = 3
    REGISTERED = 4
    FOREIGN = 5  # somebody else's: the kubelet ends


@dataclass(slots=True, eq=False)
class NodeStatus:
    """Register the Node and keep its status reported.

    `conditions` shows the Node as it was read last; so do the facts that it sets.
    """

    phase: RegistrationPhase = RegistrationPhase.STARTING
    conditions: tuple[NodeCondition, ...] = ()
    is_settled: bool = False  # began as if it had been up for long
    _cidr_applied: str = ""
    _created: bool = False  # the Node is as we have made it
    _schedulable: bool = True  # as the last computation left it
    _sound: int = 0  # stands for the report of the Node that was found to be right
    _due_ns: int = 0  # the REGISTER or NODE_STATUS timer that counts
    _fast_due_ns: int = 0  # of the next quick look, 0 for none yet; _SLOW once Ready was reported
    _ticked_ns: int = 0  # the end of the last tick: the phase of the next ones
    _tries: int = -1  # of the tick under way, -1 when there is none
    _reported_ns: int = 0
    _delay_ns: int = REGISTER_FIRST_NS  # of the next try to register, then of the next report

    @property
    def is_first_try(self) -> bool:
        """Return whether nothing was sent yet to register."""
        return self.phase is RegistrationPhase.STARTING and self._delay_ns == REGISTER_FIRST_NS

    def start(self, turn: Turn) -> None:
        """Begin to register; the loop sleeps before each try, the first one too."""
        turn.facts.started_ns = turn.now_ns
        if not turn.finds_plugins:
            turn.facts.booted_ns = turn.now_ns
        is_quick = self.is_settled or not turn.env.fidelity.registers_in_steps
        waits_ns = 0 if is_quick else self._delay_ns
        self._register_at(turn.now_ns + waits_ns, turn)

    def _register_at(self, due_ns: int, turn: Turn) -> None:
        self.phase = RegistrationPhase.STARTING
        self._due_ns = due_ns
        turn.arm(due_ns, effects.Timer.REGISTER)

    def on_register_timer(self, inputs: NodeInputs, turn: Turn) -> list[Reason]:
        """Build the Node again and POST it; return the events of its fresh conditions.

        Until the informer has the Node, each look at it builds it again as well.
        Source: registerWithAPIServer, initialNode; kubelet_getters.go, getNodeAnyWay; kubelet.go,
        initializeRuntimeDependentModules; pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go,
        wipeResourceSlices.
        Differs: they look 100 ms sooner, and as soon as the runtime is up.
        """
        if self.phase is not RegistrationPhase.STARTING or turn.now_ns < self._due_ns:
            return []
        looks = LOOKS_BEFORE if self.is_first_try and not turn.facts.uid else 0
        self._delay_ns = min(self._delay_ns * 2, REGISTER_MAX_NS)
        conditions, events = compute_conditions((), inputs, turn.wall_s)
        if turn.env.registers:
            self.phase = RegistrationPhase.CREATING
            offered = tuple(each for each in inputs.extended if each[1] >= 0)
            turn.call(
                effects.Op.CREATE_NODE,
                "",
                effects.NodeObject(conditions, _images_json(turn), offered),
            )
        else:
            self.phase = RegistrationPhase.GETTING
            turn.call(effects.Op.GET_NODE_EXISTING)
        return events * (1 + looks)

    def on_register_reply(self, reply: effects.Reply, turn: Turn) -> bool:
        """Take an answer on the way to a registered Node; return whether it was the last step.

        Source: tryRegisterWithAPIServer: a Node that exists, or a refused create, is looked at.
        Differs: a kubelet takes any Node of its name, fleet's only one that this run owns.
        """
        if self.phase is RegistrationPhase.CREATING:
            if reply.kind in (effects.ReplyKind.EXISTS, effects.ReplyKind.FORBIDDEN):
                self.phase = RegistrationPhase.GETTING
                turn.call(effects.Op.GET_NODE_EXISTING)
                return False
            self._created = reply.ok
        elif self.phase is RegistrationPhase.GETTING and reply.ok:
            assert isinstance(reply.record, NodeView), reply
            if not turn.env.is_ours(reply.record):
                self.phase = RegistrationPhase.FOREIGN
                turn.report(effects.Milestone.FOREIGN)
                turn.out.append(effects.PowerOff(turn.node))
                return False
            if self.is_lost(reply.record, turn):
                return False
            booted = node_reconcile.rebooted(turn.node, reply.record, turn.env)
            if booted:
                message = f"Node {turn.facts.name} has been rebooted, boot id: {booted}"
                turn.node_event(Reason.REBOOTED, message)
            patch = node_reconcile.reconcile(turn.node, reply.record, turn.facts.host_ips, turn.env)
            if patch is not None:
                self.phase = RegistrationPhase.RECONCILING
                turn.call(effects.Op.PATCH_NODE_STATUS, "", _held(patch, turn))
                return False
        if not reply.ok:
            self._register_at(turn.now_ns + self._delay_ns, turn)
            return False
        self.phase = RegistrationPhase.REGISTERED
        self._delay_ns = 0
        self._ticked_ns = turn.now_ns
        turn.report(effects.Milestone.REGISTERED, turn.now_ns - turn.facts.started_ns)
        return True

    def on_node(self, view: NodeView | None, facts: NodeFacts) -> None:
        """Take the Node as the informer shows it, None once it was deleted."""
        if view is None:
            facts.uid = ""
            facts.is_deleting = False
            self.conditions = ()
            return
        facts.uid = view.uid
        facts.is_deleting = view.deleting
        facts.state = view.state
        self.conditions = view.conditions
        facts.pod_cidrs = ",".join(view.pod_cidrs)
        if self.is_settled and not self._cidr_applied:
            self._cidr_applied = facts.pod_cidrs  # a kubelet that is up for long has used it

    def is_lost(self, view: NodeView, turn: Turn) -> bool:
        """Fall silent if another kubelet reports the Node, which others made; return whether.

        A Node of another uid is another Node, and another's to judge.
        """
        hold = turn.env.holds.get(turn.node)
        if hold is None or view.uid != hold.uid:
            return False
        why = hold.other_machine(
            node_reconcile.node_info(view),
            node_reconcile.machine_ids(turn.node, view.name, turn.env),
        )
        if why:
            self.phase = RegistrationPhase.FOREIGN
            turn.lose(hold, why)
            return True
        hold.version = view.resource_version
        return False

    def look_at_report(self, view: NodeView, turn: Turn) -> None:
        """Find out what others have changed in the Node of what its kubelet says; a tick mends it.

        Source: updateNode, nodeStatusHasChanged. Differs: in light, and of Nodes that others make,
        only a kubelet that starts looks.
        """
        env, report = turn.env, view.report
        looks = env.fidelity.follows_own_node and env.registers
        if not looks or report is None or not self._reported_ns:
            return
        labels = map(view.labels.get, node_reconcile.REQUIRED_LABELS)
        key = hash((report.raw, turn.node in env.silent, *labels))
        is_sound = key == self._sound
        patch = (
            None
            if is_sound
            else node_reconcile.put_right(turn.node, view, turn.facts.host_ips, env)
        )
        if patch is None:
            self._sound = key
            env.outdated.pop(turn.node, None)
        else:
            env.outdated[turn.node] = patch

    def report_created(self, inputs: NodeInputs, turn: Turn) -> None:
        """Count the POST as the first report. Differs: of settled nodes and in fidelity light."""
        self._fast_due_ns = _SLOW
        if self._finds_change(inputs, turn):  # it existed already
            self.sync(inputs, turn)
            return
        self._draw_delay(turn, changed=True)
        self._reported_ns = turn.now_ns
        self.arm(inputs, turn)

    def arm(self, inputs: NodeInputs, turn: Turn) -> None:
        """Set the timer of the next tick that would find something; called on every change."""
        if self.phase is not RegistrationPhase.REGISTERED or self._tries >= 0:
            return
        if self._fast_due_ns >= 0 and turn.facts.uid:
            self._arm_fast(inputs, turn)
        wanted_ns = turn.now_ns
        # An event, no patch.
        is_cordoned_anew = turn.facts.state.unschedulable is self._schedulable
        if turn.facts.uid and not is_cordoned_anew and not self._finds_change(inputs, turn):
            wanted_ns = max(turn.now_ns, self._report_due_ns(turn.env))
        due_ns = self._next_tick(wanted_ns, turn)
        if self._due_ns <= self._ticked_ns or due_ns < self._due_ns:
            self._due_ns = due_ns
            turn.arm(due_ns, effects.Timer.NODE_STATUS)

    def on_status_timer(self, inputs: NodeInputs, turn: Turn) -> list[Reason]:
        """Run one tick: the first try takes the Node from the informer, without a GET."""
        return self.sync(inputs, turn) if turn.now_ns >= self._due_ns else []

    def sync(self, inputs: NodeInputs, turn: Turn) -> list[Reason]:
        """Compute and report now; return the events. Source: syncNodeStatus.

        What a tick that is under way does not say, the next one will.
        """
        if self.phase is not RegistrationPhase.REGISTERED or self._tries >= 0:
            return []
        self._tries = 0
        if not turn.facts.uid:
            self._try_again(turn)
            return []
        return self._try(inputs, turn)

    def on_fast_timer(self, inputs: NodeInputs, turn: Turn) -> list[Reason]:
        """Report Ready within 100 ms of becoming so, once. Source: fastNodeStatusUpdate."""
        if self._fast_due_ns <= 0 or turn.now_ns < self._fast_due_ns:
            return []
        self._fast_due_ns = 0
        if self._tries >= 0 or inputs.not_ready or not turn.facts.uid:
            return []  # armed again when the tick is over, or when the node is ready
        self._fast_due_ns = _SLOW
        if any(c.type == "Ready" and c.status == "True" for c in self.conditions):
            return []
        self._tries, self._fast_due_ns = 0, _SENT
        return self._patch(inputs, turn)

    def on_status_reply(
        self, call: effects.ApiCall, reply: effects.Reply, inputs: NodeInputs, turn: Turn
    ) -> list[Reason]:
        """Take the answer to a GET or PATCH of the tick under way.

        A tick of its own follows if the quick report failed. Source: fastNodeStatusUpdate.
        """
        assert self._tries >= 0, call
        was_fast, self._fast_due_ns = self._fast_due_ns == _SENT, max(self._fast_due_ns, _SLOW)
        sent = turn.env.sent.pop(turn.node, None)
        if not reply.ok:
            if sent is not None:
                turn.env.outdated.setdefault(turn.node, sent)
            if was_fast:
                return self._try(inputs, turn)
            self._try_again(turn)
            return []
        if call.op is effects.Op.GET_NODE_HEARTBEAT:
            assert isinstance(reply.record, NodeView), reply
            if self.is_lost(reply.record, turn):
                return []
            return self._try_on(reply.record, inputs, turn)
        self._reported_ns = turn.now_ns
        self._finish(inputs, turn)
        return []

    def _try_on(self, view: NodeView, inputs: NodeInputs, turn: Turn) -> list[Reason]:
        """Try with the Node as a GET showed it; the informer's view stays, as in the lister."""
        facts, conditions = turn.facts, self.conditions
        shown = facts.uid, facts.is_deleting, facts.state, facts.pod_cidrs
        self.on_node(view, facts)
        self.look_at_report(view, turn)
        events = self._try(inputs, turn)
        facts.uid, facts.is_deleting, facts.state, facts.pod_cidrs = shown
        self.conditions = conditions
        return events

    def _try(self, inputs: NodeInputs, turn: Turn) -> list[Reason]:
        changed = self._finds_change(inputs, turn)
        if changed or turn.now_ns >= self._report_due_ns(turn.env):
            return self._patch(inputs, turn)
        events = self._schedulable_events(turn.facts.state)
        self._finish(inputs, turn)
        return events

    def _patch(self, inputs: NodeInputs, turn: Turn) -> list[Reason]:
        """Send the difference; the setter of events comes last. Source: patchNodeStatus."""
        changed = self._finds_change(inputs, turn)
        conditions, events = compute_conditions(self.conditions, inputs, turn.wall_s)
        old = {condition.type: condition for condition in self.conditions}
        pairs = tuple((old.get(condition.type), condition) for condition in conditions)
        self._cidr_applied = turn.facts.pod_cidrs
        self._draw_delay(turn, changed=changed)
        env, images = turn.env, inputs.images_json
        resources = differing_resources(turn.facts.state, inputs.extended, env.model.capacity)
        if not (images or self._reported_ns or self._created):
            images = _images_json(turn)  # the Node may have another list
        patch = effects.NodeStatusPatch(
            conditions=pairs,
            status_json=b",".join(part for part in (images, resources) if part),
            volumes_in_use=inputs.volumes_in_use,
        )
        if turn.node in env.outdated:  # what is seen until the answer comes is another edit
            env.sent[turn.node] = env.outdated.pop(turn.node)
            patch = node_reconcile.both(patch, env.sent[turn.node])
        turn.call(effects.Op.PATCH_NODE_STATUS_HEARTBEAT, "", _held(patch, turn))
        return events + self._schedulable_events(turn.facts.state)

    def _draw_delay(self, turn: Turn, *, changed: bool) -> None:
        """Move the next report after a change, and the first one. Source: calculateDelay."""
        self._delay_ns = 0
        if changed or not self._reported_ns:
            share = turn.draw(_DELAY_STREAM) - 0.5
            self._delay_ns = int(turn.env.model.kubelet.status_report_ns * share)

    def _report_due_ns(self, env: Environment) -> int:
        if not self._reported_ns:
            return 0
        return self._reported_ns + env.model.kubelet.status_report_ns + self._delay_ns

    def _try_again(self, turn: Turn) -> None:
        """Go on with a quorum read, or leave it to the next tick after five tries."""
        self._tries += 1
        if self._tries < RETRIES_MAX:
            turn.call(effects.Op.GET_NODE_HEARTBEAT)
            return
        self._tries = -1
        self._ticked_ns = turn.now_ns
        self._due_ns = self._next_tick(turn.now_ns + 1, turn)
        turn.arm(self._due_ns, effects.Timer.NODE_STATUS)

    def _finish(self, inputs: NodeInputs, turn: Turn) -> None:
        self._tries = -1
        self._ticked_ns = turn.now_ns
        self.arm(inputs, turn)

    def _finds_change(self, inputs: NodeInputs, turn: Turn) -> bool:
        """Return whether a patch would hold more than heartbeats. In light a CIDR is no reason."""
        conditions, _ = compute_conditions(self.conditions, inputs, turn.wall_s)
        return (
            (turn.facts.pod_cidrs != self._cidr_applied and turn.env.fidelity.follows_own_node)
            or inputs.volumes_in_use is not None
            or bool(differing_resources(turn.facts.state, inputs.extended, turn.env.model.capacity))
            or bool(inputs.images_json)
            or turn.node in turn.env.outdated
            or has_changed(self.conditions, conditions)
        )

    def _schedulable_events(self, state: NodeState) -> list[Reason]:
        """Source: recordNodeSchedulableEvent."""
        if state.unschedulable is not self._schedulable:
            return []
        self._schedulable = not state.unschedulable
        return [Reason.NODE_SCHEDULABLE if self._schedulable else Reason.NODE_NOT_SCHEDULABLE]

    def _arm_fast(self, inputs: NodeInputs, turn: Turn) -> None:
        up_ns = turn.now_ns - turn.facts.started_ns
        if up_ns >= FAST_LIMIT_NS:
            self._fast_due_ns = _SLOW
        elif inputs.not_ready:
            self._cidr_applied = turn.facts.pod_cidrs  # a quick look uses it, and reports nothing
        elif self._fast_due_ns <= turn.now_ns:
            self._fast_due_ns = turn.now_ns + FAST_NS - up_ns % FAST_NS
            turn.arm(self._fast_due_ns, effects.Timer.FAST_STATUS)

    def _next_tick(self, wanted_ns: int, turn: Turn) -> int:
        """Return the first tick at or after an instant; each is 10 s x U[1, 1.04] after the last.

        Many ticks ahead the sum of the jitters is drawn at once, about its mean.
        """
        period_ns = turn.env.model.kubelet.node_status_update_frequency_ns
        share = turn.env.draws.uniform(turn.node, _TICK_STREAM, self._ticked_ns)
        mean_ns = int(period_ns * (1 + JITTER / 2))
        ticks = max(1, -(-(wanted_ns - self._ticked_ns) // mean_ns))
        due_ns = self._ticked_ns + ticks * mean_ns + int((share - 0.5) * JITTER * period_ns)
        return due_ns if due_ns >= wanted_ns else due_ns + mean_ns


def _held(patch: effects.NodeStatusPatch, turn: Turn) -> effects.NodeStatusPatch:
    """Return a patch that the server refuses if somebody else has changed the Node since.

    Only of Nodes that others make: between the look and the write another kubelet may have come.
    Differs: a kubelet's own patch names no version.
    """
    hold = turn.env.holds.get(turn.node)
    return patch if hold is None else patch._replace(version=hold.version)


def _images_json(turn: Turn) -> bytes:
    """Return the `images` of a Node's status as a kubelet that starts says them, b"" if none.

    The image list is read when the kubelet starts, before its first try to register.
    Source: image_gc_manager.go, Start.
    """
    env = turn.env
    entry = env.images.node(turn.node)
    if not env.fidelity.pulls_images or (entry is None and not env.model.images_preloaded):
        return b""
    return env.images.status_json(None if entry is None else entry.listed)
