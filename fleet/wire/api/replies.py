"""Responses of the transport as the replies that kubelets understand."""

from fleet.errors import RemoteProtocolError
from fleet.k8s.effects import Op, Reply, ReplyKind
from fleet.wire.api.codec import JSON, Codec
from fleet.wire.http2.messages import Response

UNREADABLE = "an answer that cannot be read"
_KINDS = {401: ReplyKind.FORBIDDEN, 403: ReplyKind.FORBIDDEN, 404: ReplyKind.NOT_FOUND}


def decode_reply(op: Op, response: Response, codec: Codec = JSON) -> Reply:
    """Return the reply to one call; answers that nobody reads are not decoded.

    Raises RemoteProtocolError for an answer that cannot be read.
    """
    try:
        return _decode_reply(op, response, codec)
    except codec.malformed as error:
        raise RemoteProtocolError(UNREADABLE) from error


def lost_reply(response: Response, message: str) -> Reply:
    """Return the reply to a call that has no answer."""
    return Reply(ReplyKind.LOST, None, 0, message, response.sent_ns, response.arrived_ns)


def _decode_reply(op: Op, response: Response, codec: Codec) -> Reply:
    code = response.code
    if 200 <= code < 300:
        read = codec.operations[op].read
        record = None if read is None else read(response.body)
        return Reply(ReplyKind.OK, record, code, "", response.sent_ns, response.arrived_ns)
    if not code:
        return lost_reply(response, response.detail)
    reason, message = codec.decode_status(response.body)
    if code == 409:
        kind = ReplyKind.EXISTS if reason == "AlreadyExists" else ReplyKind.CONFLICT
    else:
        kind = _KINDS.get(code, ReplyKind.REFUSED)
    return Reply(kind, None, code, message, response.sent_ns, response.arrived_ns)
