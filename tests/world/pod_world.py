"""One NodePods against a small API server in virtual time: pods are records, latency is 2 ms."""

import base64
import copy
import hashlib
import heapq

import orjson
import yaml
from support.go_program import TESTED

from fleet.clock import NS_PER_MS, NS_PER_S, Draws, TimerWheel
from fleet.k8s.effects import (
    ApiCall,
    EventObject,
    Milestone,
    NodeId,
    Op,
    Outbox,
    PodStatusPatch,
    Reply,
    ReplyKind,
    Report,
    SetTimer,
    StartWatch,
    StopWatch,
    Timer,
    TokenRequest,
    WatchEvent,
    WatchKind,
)
from fleet.k8s.pods import (
    ContainerSpec,
    ContainerStatus,
    EnvRef,
    EventType,
    ObjectSource,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    PodUid,
    PodView,
    ScriptSpec,
    Token,
    TokenSource,
    Variable,
    VolumeSpec,
)
from fleet.k8s.volumes import ObjectData
from fleet.kubelet.environment import KUBELET, LIGHT, Environment
from fleet.kubelet.events import EventRecorder
from fleet.kubelet.node_facts import NodeFacts
from fleet.kubelet.pods.node_pods import NodePods
from fleet.kubelet.turn import Turn
from fleet.profile.loader import NodeMix, load_mix, parse_documents
from fleet.profile.node_model import NodeModel
from fleet.profile.node_profile import NodeProfile
from fleet.profile.schema import API_VERSION
from fleet.runtime.ports import PortSession
from fleet.runtime.program import HttpReply
from fleet.wire.api.operations import OPERATIONS
from world.sim_clock import SimClock

NODE = NodeId(0)
HOST_IP = "192.0.2.2"
LATENCY_NS = 2 * NS_PER_MS
UID = PodUid("04c9b91f-aca5-4ecd-ab8c-6056fcc32e70")
_mix: list[NodeMix] = []


def model_of(**spec: object) -> NodeModel:
    """Return the model of a profile whose spec is given as it would be written.

    It is a kubelet of the release that is tested, unless the spec says otherwise.
    """
    document = {"apiVersion": API_VERSION, "kind": "NodeProfile", "metadata": {"name": "test"}}
    (found,) = parse_documents(yaml.safe_dump({**document, "spec": spec}), "test")
    assert isinstance(found, NodeProfile)
    made = found.compiled()
    return made.on_server(TESTED) if made.follows_server else made


def container(name: str = "c", *command: str, **fields: object) -> ContainerSpec:
    spec = ContainerSpec(
        name=name,
        image="nginx:1",
        pull_policy="IfNotPresent",
        command=command,
        args=(),
        restart_policy="",
        requests_json=b"",
        resources_json=b"{}",
        volume_mounts_json=b"",
    )
    return spec._replace(**fields)  # type: ignore[arg-type]


def needs(*sources: EnvRef) -> ScriptSpec:
    """Return the surroundings of a container whose environment needs objects."""
    return ScriptSpec(env_from=tuple(Variable("", source=each) for each in sources))


TOKEN_VOLUME = VolumeSpec(
    "kube-api-access-9zkmg",
    "projected",
    (ObjectSource("kube-root-ca.crt"),),
    (TokenSource("", 3607, "token"),),
)
SCHEDULED = PodStatus(
    phase="Pending",
    qos_class="BestEffort",
    conditions=(PodCondition("PodScheduled", "True", "", "", SimClock.EPOCH_NS // NS_PER_S, 1),),
)


def make_pod(
    *containers: ContainerSpec, uid: str = UID, name: str = "web", **fields: object
) -> Pod:
    spec = PodSpec(containers=containers or (container(),), volumes=(TOKEN_VOLUME,))
    pod = Pod("default", name, PodUid(uid), resource_version="7", spec=spec, status=SCHEDULED)
    return replaced(pod, **fields)


def replaced(pod: Pod, **fields: object) -> Pod:
    """Return a copy with other fields, of the metadata or of the spec."""
    new = copy.copy(pod)
    for name, value in fields.items():
        if name in PodSpec._fields:
            new.spec = new.spec._replace(**{name: value})  # type: ignore[arg-type]
        else:
            setattr(new, name, value)
    return new


def turn_of(env: Environment, now_ns: int, out: Outbox | None = None) -> Turn:
    """Return a turn of a node that nothing is known of."""
    facts = NodeFacts(NODE, "n", HOST_IP)
    return Turn(facts, env, EventRecorder(), now_ns, [] if out is None else out)


def token_of(uid: str) -> str:
    """Return a pod's token: as long as a real one, and as hard to guess."""
    account = {"name": "default", "uid": "f0c2c9b6-7a52-4b0f-9e0d-6d1e2f3a4b33"}
    bound = {"namespace": "default", "pod": {"name": "web", "uid": uid}, "serviceaccount": account}
    issuer = "https://kubernetes.default.svc.cluster.local"
    claims = {
        "aud": [issuer],
        "exp": 1826963646,
        "iat": 1795427646,
        "iss": issuer,
        "jti": hashlib.md5(uid.encode()).hexdigest(),
        "kubernetes.io": bound,
        "nbf": 1795427646,
        "sub": "system:serviceaccount:default:default",
    }
    drawn = hashlib.blake2b(uid.encode()).digest()
    parts = (b'{"alg":"ES256","kid":"%b"}' % drawn[:21].hex().encode(), orjson.dumps(claims), drawn)
    return ".".join(base64.urlsafe_b64encode(each).rstrip(b"=").decode() for each in parts)


class World:
    def __init__(
        self,
        *,
        light: bool = False,
        tolerate_key: str = "",
        pod_cidr: str = "10.244.3.0/24",
        host_ips: str = HOST_IP,
    ) -> None:
        if not _mix:
            _mix.append(load_mix())
        model = _mix[0].model_of(0)
        fidelity = LIGHT if light else KUBELET
        self.env = Environment(
            model,
            Draws(7),
            fidelity=fidelity,
            own_watches=not light,
            tolerate_key=tolerate_key,
        )
        self.env.wall_offset_ns = SimClock.EPOCH_NS
        self.facts = NodeFacts(NODE, "n", host_ips)
        self.facts.pod_cidrs = pod_cidr
        self.loop = NodePods(self.facts, self.env)
        self.recorder = EventRecorder()
        self.now_ns = 0
        self.wheel = TimerWheel()
        self.pods: dict[str, Pod] = {}
        self.objects = {(WatchKind.CONFIG_MAP, "default", "kube-root-ca.crt")}
        self.watched: set[tuple[WatchKind, str, str]] = set()
        self.refuse: dict[Op, Reply] = {}
        self.log: list[str] = []
        self.calls: list[ApiCall] = []
        self.statuses: list[PodStatus] = []
        self.reports: list[Report] = []
        self.timers = 0
        self._inbox: list[tuple[int, int, object]] = []
        self._seq = 0

    def create(self, pod: Pod) -> None:
        self.pods[pod.uid] = pod
        self.deliver(WatchEvent(WatchKind.PODS, EventType.ADDED, copy.copy(pod)))

    def delete(self, uid: str = UID, grace_s: int = 30) -> None:
        pod = self.pods[uid]
        if not grace_s:
            del self.pods[uid]
            self.deliver(WatchEvent(WatchKind.PODS, EventType.DELETED, pod))
            return
        self.change(
            uid,
            deletion_s=self.env.wall_s(self.now_ns) + grace_s,
            deletion_grace_s=grace_s,
            generation=pod.generation + 1,
        )

    def change(self, uid: str = UID, **fields: object) -> None:
        pod = self.pods[uid] = replaced(self.pods[uid], **fields)
        self.deliver(WatchEvent(WatchKind.PODS, EventType.MODIFIED, copy.copy(pod)))

    def turn(self, out: Outbox) -> Turn:
        return Turn(self.facts, self.env, self.recorder, self.now_ns, out)

    def deliver(self, event: WatchEvent) -> None:
        out: Outbox = []
        self.loop.on_watch_event(event, self.turn(out))
        self.execute(out)

    def run(self, seconds: float) -> None:
        end_ns = self.now_ns + int(seconds * NS_PER_S)
        while True:
            timer_ns = self.wheel.next_ns()
            reply_ns = self._inbox[0][0] if self._inbox else None
            due = [each for each in (timer_ns, reply_ns) if each is not None and each <= end_ns]
            if not due:
                break
            self.now_ns = max(self.now_ns, min(due))
            if reply_ns is not None and reply_ns <= self.now_ns:
                self._answer(heapq.heappop(self._inbox)[2])
            else:
                self._fire()
        self.now_ns = end_ns

    def execute(self, out: Outbox) -> None:
        for effect in out:
            if isinstance(effect, SetTimer):
                self.wheel.set(effect.due_ns, effect.node, effect.timer, effect.key)
                self.timers += 1
            elif isinstance(effect, Report):
                self.reports.append(effect)
            else:
                self._note(effect)
                if not isinstance(effect, StopWatch):
                    self._seq += 1
                    due_ns = self.now_ns + LATENCY_NS
                    heapq.heappush(self._inbox, (due_ns, self._seq, effect))

    def counts(self, milestone: Milestone) -> int:
        return sum(each.milestone is milestone for each in self.reports)

    def container(self, uid: str = UID) -> ContainerStatus:
        return self.pods[uid].status.containers[0]

    def condition(self, name: str, uid: str = UID) -> PodCondition:
        return next(each for each in self.pods[uid].status.conditions if each.type == name)

    def take_log(self) -> list[str]:
        log, self.log = self.log, []
        return log

    def _note(self, effect: object) -> None:
        if isinstance(effect, ApiCall):
            self.calls.append(effect)
            text = effect.op.name
            payload = effect.payload
            if isinstance(payload, EventObject):
                text += f" {payload.reason}"
            elif isinstance(payload, PodStatusPatch):
                text += f" {payload.new.phase}"
            self.log.append(text)
        elif isinstance(effect, StartWatch | StopWatch):
            key = (effect.kind, effect.namespace, effect.name)
            if isinstance(effect, StartWatch):
                self.watched.add(key)
                self.log.append(f"WATCH {effect.name}")
            else:
                self.watched.remove(key)
                self.log.append(f"UNWATCH {effect.name}")

    def _fire(self) -> None:
        for _, _, _, timer, key in self.wheel.expire(self.now_ns, 1):
            out: Outbox = []
            if timer == Timer.EVENT_SEND:
                self.recorder.on_timer(self.turn(out))
            else:
                self.loop.on_timer(Timer(timer), key, self.turn(out))
            self.execute(out)

    def _answer(self, effect: object) -> None:
        if isinstance(effect, StartWatch):
            self._answer_watch(effect)
            return
        assert isinstance(effect, ApiCall)
        refused = self.refuse.get(effect.op)
        reply = refused if refused is not None else self._serve(effect)
        out: Outbox = []
        if effect.op in (Op.CREATE_EVENT, Op.PATCH_EVENT):
            self.recorder.on_reply(effect, reply, self.turn(out))
        else:
            self.loop.on_reply(OPERATIONS[effect.op].owner, effect, reply, self.turn(out))
        self.execute(out)

    def _answer_watch(self, effect: StartWatch) -> None:
        key = (effect.kind, effect.namespace, effect.name)
        if key not in self.watched:
            return
        if key in self.objects:
            meta = ObjectData(effect.name, "1")
            self.deliver(WatchEvent(effect.kind, EventType.ADDED, meta, key[1], key[2]))
        self.deliver(WatchEvent(effect.kind, EventType.SYNCED, None, key[1], key[2]))

    def _serve(self, call: ApiCall) -> Reply:
        if call.op is Op.CREATE_TOKEN:
            assert isinstance(call.payload, TokenRequest)
            expires_s = self.env.wall_s(self.now_ns) + call.payload.expiration_s
            return Reply(ReplyKind.OK, Token(expires_s, token_of(call.payload.pod_uid)))
        if call.op in (Op.CREATE_EVENT, Op.PATCH_EVENT):
            return Reply(ReplyKind.OK)
        pod = self.pods.get(call.key)
        if pod is None:
            return Reply(ReplyKind.NOT_FOUND, None, 404)
        if call.op is Op.GET_POD:
            return Reply(ReplyKind.OK, PodView(pod.uid, "1", pod.deleting, pod.status))
        if call.op is Op.PATCH_POD_STATUS:
            assert isinstance(call.payload, PodStatusPatch)
            self.statuses.append(call.payload.new)
            self.change(call.key, status=call.payload.new)
            return Reply(ReplyKind.OK)
        assert call.op is Op.DELETE_POD
        del self.pods[call.key]
        self.deliver(WatchEvent(WatchKind.PODS, EventType.DELETED, pod))
        return Reply(ReplyKind.OK)


def session_of(pod: Pod) -> PortSession:
    """Return a connection to a container of which nothing is known."""
    return PortSession(lambda _path, _now_ns: HttpReply(200, pod.name.encode()))
