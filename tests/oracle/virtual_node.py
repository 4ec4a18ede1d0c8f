"""One node of fleet in virtual time, and all that it asks of an API server in memory.

What it asks is written down as the live judge has it: an audit log, and the headers of requests by
audit ID. So both are compared by the same code.
"""

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import hpack
import orjson
from world.admission import first_status, kept_fields
from world.api_server import Answer, SimApiServer, Stored, Watch
from world.encodings import ENCODINGS, Encoding
from world.sim_clock import SimClock
from world.sim_faults import ConnectionsRefused
from world.taints import TaintEviction
from world.targets import Key, Target, target_of
from world.transport import SimTransport
from world.virtual_time import World

from fleet.clock import NS_PER_S, Draws
from fleet.host.static_pods import LOOK_S, StaticSource
from fleet.k8s.effects import NodeId
from fleet.kubelet.environment import Environment
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.profile.machine import Broken
from fleet.profile.node_model import NodeModel
from fleet.reactor.reactor import Reactor
from fleet.wire.api.requests import Caller, RenderedProfile
from fleet.wire.http2.hpack import (
    METHODS,
    TABLE_BYTES_DEFAULT,
    HeaderPlan,
    content_fields,
    path_lead,
)
from fleet.wire.http2.messages import Request
from oracle.both_nodes import HOLD_S, OWN, SEED
from oracle.normalisation import Json

USER = {"username": f"system:node:{OWN}", "groups": ["system:nodes", "system:authenticated"]}
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
INTERNAL_OPTIONS = {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/__internal"}
"""So an audit log has the options of a deletion. Source: apiserver, handlers/delete.go."""
NULLS: dict[str, Json] = {
    "Event": {"eventTime": None},
    "CSINode": {"spec": {"drivers": None}},
    "TokenRequest": {"spec": {"audiences": None}, "status": {"expirationTimestamp": None}},
}
"""What Go writes of a field that is not set, if its tag has no omitempty."""
STATUSES = {"pods", "nodes"}
WATCHED_PODS = "/api/v1/pods"
Noted = tuple[Json, Json, int]


class WallClock(SimClock):
    """A clock whose first wall time is given."""

    __slots__ = ("EPOCH_NS",)

    def __init__(self, begins_s: float) -> None:
        super().__init__()
        self.EPOCH_NS = int(begins_s * NS_PER_S)


class AuditedServer(SimApiServer):
    """An API server that keeps an audit log of what its one node asks."""

    def __init__(self, clock: SimClock, encoding: Encoding, plan: HeaderPlan) -> None:
        super().__init__(clock, encoding)
        self.audit: list[Json] = []
        self.noted: dict[str, Noted] = {}
        self.asking: Request | None = None
        """The request that is being answered."""
        self._lead, _ = plan.encode(b"", TABLE_BYTES_DEFAULT)

    def handle(self, method: str, path: str, body: bytes) -> Answer:
        """Answer one request that is no watch, and write it down."""
        event = self._entry(VERBS[method], path, body)
        answer = super().handle(method, path, body)
        event["responseStatus"] = {"code": answer.code}
        target = target_of(path.partition("?")[0])
        if target.resource in STATUSES and target.sub == "status" and answer.code == 200:
            key = (target.resource, target.namespace, target.name)
            event["responseObject"] = {"status": written(self.objects[key].obj)}
        return answer

    def _write(self, key: Key, obj: Json) -> Stored:
        """Store an object; of what nodes read, only pods count their generations."""
        if key[0] != "pods":
            meta = {name: each for name, each in obj["metadata"].items() if name != "generation"}
            obj = {**obj, "metadata": meta}
        return super()._write(key, obj)

    def _post(self, target: Target, obj: Json) -> Answer:
        """Create an object; a pod of a node's begins as each pod does."""
        is_pod = target.resource == "pods"
        return super()._post(
            target, {**obj, "status": first_status(obj["spec"])} if is_pod else obj
        )

    def _patch(self, key: Key, sub: str, patch: Json) -> Answer:
        """Change an object; the status of a pod keeps what no kubelet may take from it."""
        if (key[0], sub) == ("pods", "status"):
            patch = {**patch, "status": kept_fields(patch.get("status") or {})}
        return super()._patch(key, sub, patch)

    def remove(self, key: Key) -> Stored:
        """Let an object be gone; a pod is marked before, and stays while it has finalizers.

        Source: registry/generic/registry/store.go, Delete; registry/rest/delete.go, BeforeDelete.
        """
        pod = self.objects[key].obj
        meta = pod["metadata"]
        if key[0] == "pods" and meta.get("deletionGracePeriodSeconds") != 0:
            is_first = "deletionTimestamp" not in meta
            marks = {"deletionGracePeriodSeconds": 0, "generation": meta["generation"] + is_first}
            meta = {"deletionTimestamp": self.now(), **meta, **marks}
            marked = self.replace(key, {**pod, "metadata": meta})
            if meta.get("finalizers"):
                return marked
        return super().remove(key)

    def finish(self, key: Key) -> None:
        """Let a pod be gone that only waited for its finalizers."""
        meta = self.objects[key].obj["metadata"]
        if meta.get("deletionGracePeriodSeconds") == 0 and not meta.get("finalizers"):
            self.remove(key)

    def watch(self, path: str, push: Callable[[bytes], None], end: Callable[[], None]) -> Watch:
        """Open a watch, and write it down."""
        self._entry("watch", path, b"")["responseStatus"] = {"code": 200}
        return super().watch(path, push, end)

    def _entry(self, verb: str, path: str, body: bytes) -> Json:
        target = target_of(path.partition("?")[0])
        asked = self._asked(verb, body)
        name = target.name or ((asked or {}).get("metadata") or {}).get("name", "")
        name = name or one_of(path.partition("?")[2])
        if verb == "delete" and not target.name:
            verb = "deletecollection"
        if verb == "get" and not target.name:
            verb = "list"
        about = {"resource": target.resource, "namespace": target.namespace, "name": name}
        now = datetime.fromtimestamp(self._clock.wall_ns() / NS_PER_S, UTC)
        event: Json = {
            "auditID": f"virtual-{len(self.audit)}",
            "user": USER,
            "verb": verb,
            "requestURI": path,
            "requestReceivedTimestamp": now.isoformat(timespec="microseconds")[:-6] + "Z",
            "objectRef": {**about, **({"subresource": target.sub} if target.sub else {})},
            **({"requestObject": asked} if asked is not None else {}),
        }
        self.audit.append(event)
        assert self.asking is not None, path
        self.noted[event["auditID"]] = (self._headers(self.asking), {}, 0)
        return event

    def _asked(self, verb: str, body: bytes) -> Json | None:
        """Return the object of a request as an audit log has it."""
        if not body:
            return None
        if verb == "patch":
            patch: Json = orjson.loads(body)
            return patch
        found = self.encoding.read(body)
        if verb == "delete":
            return {**found, **INTERNAL_OPTIONS}
        if found["kind"] == "Pod":
            found = {**found, "spec": with_own_defaults(found["spec"])}
        return with_nulls(found, NULLS.get(found["kind"], {}))

    def _headers(self, asked: Request) -> Json:
        """Return the headers of a request as a proxy reads them."""
        block = b"".join(
            (self._lead, METHODS[asked.method], path_lead(len(asked.path)), asked.path)
        )
        if asked.body:
            block += content_fields(asked.content_type, len(asked.body))
        pairs = hpack.Decoder().decode(block, raw=True)
        return {bytes(name).decode(): bytes(value).decode() for name, value in pairs}


class AuditedTransport(SimTransport):
    """Tells the server who asks, and holds what the watch of pods says, as a proxy of the judge."""

    server: AuditedServer
    hold_ns = 0

    def _arrive(self, number: int, exchange: Any, half_ns: int) -> None:
        self.server.asking = exchange.request
        super()._arrive(number, exchange, half_ns)

    def _push(self, number: int, data: bytes) -> None:
        exchange = self._open.get(number)
        path = exchange.request.path if exchange is not None else b""
        self.events_late_ns = self.hold_ns if path.startswith(b"%b?" % WATCHED_PODS.encode()) else 0
        super()._push(number, data)


class VirtualNode:
    """A node that starts at a time of one's choice, with a control plane of its own."""

    def __init__(
        self,
        model: NodeModel,
        encoding: str,
        begins_s: float,
        *,
        hold_s: float = HOLD_S,
        seed: int = SEED,
    ) -> None:
        self.clock = WallClock(begins_s)
        self.starts_s = [begins_s]
        draws = Draws(seed)
        of_server = ENCODINGS[encoding]
        agent = model.filled(model.user_agent)
        plan = HeaderPlan(b"127.0.0.1:6443", None, agent, of_server.codec.accept)
        self.server = AuditedServer(self.clock, of_server, plan)
        self.reactor = Reactor(self.clock, draws, codec=of_server.codec, raise_bugs=True)
        self.wire = AuditedTransport(self.server, self.clock, self.reactor.inbox, draws, [OWN])
        self.wire.hold_ns = int(hold_s * NS_PER_S)
        self.reactor.wires.connect(nodes=self.wire)
        self.world = World(self.clock, self.reactor, [self.wire])
        self.server.create(("services", "default", "kubernetes"), {"spec": {}})
        TaintEviction(self.world, self.server)
        self.environment = env = Environment(model, draws)
        self.reactor.environments.add(env)
        self._static = StaticSource(env, self.reactor.static_pods_changed)
        template = RenderedProfile(model, extra_labels={})
        kubelet = VirtualKubelet(NodeId(0), OWN, model.addresses(0), env)
        self.reactor.add(kubelet, Caller(0, OWN.encode(), template), 0)
        self.world.turn()
        self._look()

    def _look(self) -> None:
        """Look for static pods, as the process of a fleet does."""
        self._static.read_file()
        self.world.after(LOOK_S, self._look)

    def break_machine(self, broken: Broken) -> None:
        """Let something of the machine fail whenever it is asked for, and nothing else."""
        model = dataclasses.replace(self.environment.model, broken=broken)
        self.reactor.change_machine(NodeId(0), self.environment.of_machine(model, 0))

    def restart_kubelet(self) -> None:
        """Kill the kubelet; it comes back at once, and its pods run on."""
        self.starts_s.append(self.now_s())
        self.reactor.restart([NodeId(0)])

    def restart_apiserver(self, down_s: float) -> None:
        """Kill the API server; it comes back after a while."""
        down = ConnectionsRefused()
        down.inject(self.wire)
        self.run_for(down_s)
        down.heal(self.wire)

    def now_s(self) -> float:
        """Return the time since the epoch."""
        return self.clock.wall_ns() / NS_PER_S

    def run_for(self, seconds: float) -> None:
        """Let time go by."""
        self.world.run_until(self.clock.now_ns() + int(seconds * NS_PER_S))


def with_nulls(obj: Json, nulls: Json) -> Json:
    """Return an object with the fields that Go writes even if they are not set."""
    found = {**nulls, **obj}
    for key, inner in nulls.items():
        if isinstance(inner, dict):
            found[key] = with_nulls(obj.get(key, {}), inner)
    return found


def with_own_defaults(spec: Json) -> Json:
    """Return the spec of a mirror pod with what an API server reads into each pod that it is sent.

    Source: pkg/apis/core/v1/defaults.go, SetDefaults_PodSpec, SetDefaults_Container.
    """
    found: Json = {
        "enableServiceLinks": True,
        "schedulerName": "default-scheduler",
        "securityContext": {},
        **spec,
    }
    of_each: Json = {
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }
    for kind in ("initContainers", "containers"):
        if kind in spec:
            found[kind] = [{**of_each, **each} for each in spec[kind]]
    return found


def written(obj: Json) -> Json:
    """Return a status as an API server writes it: of a pod's conditions with each field."""
    status: Json = obj["status"]
    if obj["kind"] != "Pod" or "conditions" not in status:
        return status
    unset = {"lastProbeTime": None, "lastTransitionTime": None}
    conditions = [{**unset, **each} for each in status["conditions"]]
    return {**status, "conditions": conditions}


def one_of(query: str) -> str:
    """Return the name of the one object that a query selects, "" if it selects by anything else.

    Source: apiserver/pkg/endpoints/request/requestinfo.go, NewRequestInfo.
    """
    selector = parse_qs(query).get("fieldSelector", [""])[0]
    field, _, name = selector.partition("=")
    return name if field == "metadata.name" else ""


def manifests_of(model: NodeModel) -> Path:
    """Return where a node looks for static pods."""
    return Path(model.kubelet.static_pod_path)
