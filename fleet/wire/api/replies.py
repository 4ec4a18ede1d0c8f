"""Responses of the transport as the replies that kubelets understand."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from fleet.errors import RemoteProtocolError
from fleet.objects.effects import Op, Reply, ReplyKind
from fleet.wire.api.decode_json import (
    decode_csinode,
    decode_existing_node,
    decode_lease,
    decode_node,
    decode_pod_view,
    decode_status,
    decode_token,
)
from fleet.wire.api.decode_volumes import decode_attachment, decode_claim, decode_persistent_volume
from fleet.wire.api.dynamic_resources import decode_resource_claim
from fleet.wire.http2.messages import MALFORMED, Response

UNREADABLE = "an answer that cannot be read"


class ReplyDecoders(NamedTuple):
    """How the answers in one encoding are read."""

    objects: Mapping[Op, Callable[[bytes], object]]  # of the calls whose answer is read
    status: Callable[[bytes], tuple[str, str]]  # reason and message of a refusal
    malformed: tuple[type[Exception], ...] = MALFORMED  # what they raise of a broken body


_DECODERS: dict[Op, Callable[[bytes], object]] = {
    Op.GET_NODE: decode_node,
    Op.GET_NODE_EXISTING: decode_existing_node,
    Op.GET_NODE_HEARTBEAT: decode_node,
    Op.CREATE_NODE: decode_node,
    Op.GET_CSINODE: decode_csinode,
    Op.GET_LEASE: decode_lease,
    Op.CREATE_LEASE: decode_lease,
    Op.RENEW_LEASE: decode_lease,
    Op.GET_POD: decode_pod_view,
    Op.CREATE_TOKEN: decode_token,
    Op.GET_RESOURCE_CLAIM: decode_resource_claim,
    Op.GET_CLAIM: decode_claim,
    Op.GET_VOLUME: decode_persistent_volume,
    Op.GET_ATTACHMENT: decode_attachment,
    Op.GET_NODE_ATTACHED: decode_node,
}
JSON = ReplyDecoders(_DECODERS, decode_status)
_KINDS = {401: ReplyKind.FORBIDDEN, 403: ReplyKind.FORBIDDEN, 404: ReplyKind.NOT_FOUND}


def decode_reply(op: Op, response: Response, decoders: ReplyDecoders = JSON) -> Reply:
    """Return the reply to one call; answers that nobody reads are not decoded.

    Raises RemoteProtocolError for an answer that cannot be read.
    """
    try:
        return _decode_reply(op, response, decoders)
    except decoders.malformed as error:
        raise RemoteProtocolError(UNREADABLE) from error


def lost_reply(response: Response, message: str) -> Reply:
    """Return the reply to a call that has no answer."""
    return Reply(ReplyKind.LOST, None, 0, message, response.sent_ns, response.arrived_ns)


def _decode_reply(op: Op, response: Response, decoders: ReplyDecoders) -> Reply:
    code = response.code
    if 200 <= code < 300:
        decode = decoders.objects.get(op)
        record = None if decode is None else decode(response.body)
        return Reply(ReplyKind.OK, record, code, "", response.sent_ns, response.arrived_ns)
    if not code:
        return lost_reply(response, response.detail)
    reason, message = decoders.status(response.body)
    if code == 409:
        kind = ReplyKind.EXISTS if reason == "AlreadyExists" else ReplyKind.CONFLICT
    else:
        kind = _KINDS.get(code, ReplyKind.REFUSED)
    return Reply(kind, None, code, message, response.sent_ns, response.arrived_ns)
