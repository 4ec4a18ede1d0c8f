"""What the tests of a node's managers share: an environment, replies, a Node as it is read."""

import functools

import orjson

from fleet.clock import Draws
from fleet.k8s.effects import NodeId, NodeObject, Outbox, Reply, ReplyKind
from fleet.k8s.pods import NodeCondition, NodeView
from fleet.kubelet.environment import KUBELET, LIGHT, Environment
from fleet.kubelet.events import EventRecorder
from fleet.kubelet.node_facts import NodeFacts
from fleet.kubelet.turn import Turn
from fleet.profile.loader import load_mix
from fleet.profile.node_model import NodeModel
from fleet.wire.api.decode_json import decode_existing_node
from fleet.wire.api.requests import Caller, RenderedProfile, node_json
from world.sim_clock import SimClock

NODE = NodeId(3)
LOST = Reply(ReplyKind.LOST)
NOT_FOUND = Reply(ReplyKind.NOT_FOUND, None, 404)
CONFLICT = Reply(ReplyKind.CONFLICT, None, 409)
EXISTS = Reply(ReplyKind.EXISTS, None, 409)
REFUSED = Reply(ReplyKind.REFUSED, None, 503)
OK = Reply(ReplyKind.OK, None, 200)
ADDRESS = "198.18.0.1"
"""Of the first node of the pool."""
START_S = SimClock.EPOCH_NS // 1_000_000_000


@functools.cache
def model() -> NodeModel:
    return load_mix().model_of(0)


def environment(*, light: bool = False) -> Environment:
    env = Environment(
        model(), Draws(7), fidelity=LIGHT if light else KUBELET, own_watches=not light
    )
    env.wall_offset_ns = SimClock.EPOCH_NS
    return env


def facts() -> NodeFacts:
    return NodeFacts(NODE, "n", ADDRESS)


def turn(
    env: Environment, now_ns: int, out: Outbox | None = None, known: NodeFacts | None = None
) -> Turn:
    """Return a turn of the node."""
    return Turn(known or facts(), env, EventRecorder(), now_ns, [] if out is None else out)


def view(conditions: tuple[NodeCondition, ...] = (), **fields: object) -> NodeView:
    node = NodeView(
        name="n",
        uid="uid-1",
        resource_version="5",
        deleting=False,
        pod_cidrs=(),
        labels=dict(model().labels),
        taints=(),
        conditions=conditions,
        volumes_attached=(),
    )
    return node._replace(**fields)  # type: ignore[arg-type]


def node_reply(node: NodeView | None = None) -> Reply:
    return Reply(ReplyKind.OK, node or view(), 200)


def existing() -> NodeView:
    """Return the first node of the default profile as a kubelet finds it after a restart."""
    facts = model().identity(model().index_of(ADDRESS), "n")
    made = NodeObject(())
    caller = Caller(0, b"n", RenderedProfile(model(), extra_labels={}))
    node = orjson.loads(node_json(caller, facts, made))
    node["metadata"] |= {"uid": "uid-1", "resourceVersion": "5"}
    return decode_existing_node(node)
