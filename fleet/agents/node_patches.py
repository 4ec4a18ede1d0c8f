"""Byte templates: path and body of what node agents write about their Node. JSON throughout.

Source: client-go/tools/events/event_recorder.go, client-go/tools/record/event.go, makeEvent;
kubernetes/node-problem-detector pkg/exporters/k8sexporter/problemclient, SetConditions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import orjson

from fleet.clock import NS_PER_S
from fleet.k8s.pods import NodeCondition
from fleet.k8s.times import rfc3339, rfc3339_micro
from fleet.profile.agent_behavior import NODE, AgentEvent, AgentRead
from fleet.wire.api.callers import CALL_TIMEOUT_NS
from fleet.wire.api.encode_node import condition_json
from fleet.wire.http2.messages import ContentType, Request

EVENT = (
    b'{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{"name":"%b",'
    b'"namespace":"default"},"eventTime":"%b","reportingController":"%b",'
    b'"reportingInstance":"%b-%b","action":"%b","reason":"%b",'
    b'"regarding":{"kind":"Node","name":"%b","apiVersion":"v1"},%b"type":"%b"}'
)
LEGACY_EVENT = (
    b'{"kind":"Event","apiVersion":"v1","metadata":{"name":"%b","namespace":"default"},'
    b'"involvedObject":{"kind":"Node","name":"%b","uid":"%b"},"reason":"%b","message":%b,'
    b'"source":{"component":"%b","host":"%b"},"firstTimestamp":"%b","lastTimestamp":"%b",'
    b'"count":1,"type":"%b","eventTime":null,"reportingComponent":"%b","reportingInstance":"%b"}'
)


class Condition(NamedTuple):
    """A condition of the Node as an agent sees it now; the transition is wall time."""

    type: str
    status: str
    reason: str
    message: str
    transition_ns: int


def read(what: AgentRead, node: bytes) -> Request:
    """Return a GET of an agent."""
    return Request(b"GET", what.full_path.replace(NODE, node), timeout_ns=CALL_TIMEOUT_NS)


def patch_conditions(node: bytes, conditions: Sequence[Condition], wall_ns: int) -> Request:
    """Return the patch that says all conditions anew, without a look at those of others."""
    now_s = wall_ns // NS_PER_S
    rendered = b",".join(
        condition_json(
            NodeCondition(
                each.type,
                each.status,
                each.reason,
                each.message,
                now_s,
                each.transition_ns // NS_PER_S,
            )
        )
        for each in conditions
    )
    return Request(
        b"PATCH",
        b"/api/v1/nodes/%b/status" % node,
        b'{"status":{"conditions":[%b]}}' % rendered,
        ContentType.STRATEGIC_MERGE_PATCH,
        timeout_ns=CALL_TIMEOUT_NS,
    )


def create_event(node: bytes, event: AgentEvent, wall_ns: int) -> Request:
    """Return the creation of an event about the Node."""
    name = b"%b.%x" % (node, wall_ns)
    reason, component = event.reason.encode(), event.component.encode()
    kind = event.type.encode()
    if event.is_legacy:
        path = b"/api/v1/namespaces/default/events"
        at = rfc3339(wall_ns // NS_PER_S)
        about = (name, node, node, reason, orjson.dumps(event.message), component, node)
        body = LEGACY_EVENT % (*about, at, at, kind, component, node)
    else:
        path = b"/apis/events.k8s.io/v1/namespaces/default/events"
        note = b'"note":%b,' % orjson.dumps(event.message) if event.message else b""
        at = rfc3339_micro(wall_ns)
        action = event.action.encode()
        who = (component, component, node, action, reason)
        body = EVENT % (name, at, *who, node, note, kind)
    return Request(b"POST", path, body, ContentType.JSON, timeout_ns=CALL_TIMEOUT_NS)
