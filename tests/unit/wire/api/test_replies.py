import orjson
import pytest

from fleet.errors import RemoteProtocolError
from fleet.k8s.effects import ApiCall, LeaseRenewal, NodeId, Op, Reply, ReplyKind
from fleet.k8s.pods import LeaseView
from fleet.profile.loader import load_mix
from fleet.wire.api import codec
from fleet.wire.api.codec import decode_reply
from fleet.wire.api.operations import build
from fleet.wire.api.requests import Caller, RenderedProfile
from fleet.wire.http2.messages import Failure, Response

STATUS = b'{"kind":"Status","reason":"%b","message":"no"}'


def response(code: int, body: bytes = b"") -> Response:
    return Response(code, body, 5, 9)


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (401, b"Unauthorized", ReplyKind.FORBIDDEN),
        (403, b"Forbidden", ReplyKind.FORBIDDEN),
        (404, b"NotFound", ReplyKind.NOT_FOUND),
        (409, b"AlreadyExists", ReplyKind.EXISTS),
        (409, b"Conflict", ReplyKind.CONFLICT),
        (422, b"Invalid", ReplyKind.REFUSED),
        (429, b"TooManyRequests", ReplyKind.REFUSED),
        (503, b"ServiceUnavailable", ReplyKind.REFUSED),
    ],
)
def test_refusals_by_kind(code: int, reason: bytes, kind: ReplyKind) -> None:
    reply = decode_reply(Op.RENEW_LEASE, response(code, STATUS % reason))
    assert reply == Reply(kind, None, code, "no", 5, 9)
    assert not reply.ok


def test_an_answer_is_decoded_only_where_someone_reads_it() -> None:
    body = b'no JSON, but with "renewTime":"'
    lease = decode_reply(Op.RENEW_LEASE, response(200, body))
    assert lease == Reply(ReplyKind.OK, LeaseView(body), 200, "", 5, 9)
    patched = decode_reply(Op.PATCH_NODE_STATUS, response(200, b"not even JSON"))
    assert patched == Reply(ReplyKind.OK, None, 200, "", 5, 9)


def test_no_answer_is_lost() -> None:
    lost = Response(0, b"", 5, 9, -1, Failure.TIMEOUT, "no answer in time")
    assert decode_reply(Op.GET_NODE_CSI, lost) == Reply(
        ReplyKind.LOST, None, 0, "no answer in time", 5, 9
    )


def test_a_body_that_is_no_status_is_its_own_message() -> None:
    assert decode_reply(Op.GET_NODE_CSI, response(502, b" Bad Gateway\n")).message == "Bad Gateway"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"no JSON", b'{"metadata":7}', b"\xff"])
@pytest.mark.parametrize("each", [codec.JSON, codec.protobuf()], ids=["json", "pb"])
@pytest.mark.parametrize("op", [Op.GET_NODE_CSI, Op.GET_POD, Op.GET_CSINODE, Op.CREATE_TOKEN])
def test_what_cannot_be_read_is_the_peers_fault(op: Op, each: codec.Codec, body: bytes) -> None:
    if op is Op.CREATE_TOKEN and each is codec.JSON and b"}" in body:
        return  # a token that says nothing of its end
    with pytest.raises(RemoteProtocolError):
        decode_reply(op, response(200, body), each)


def test_a_lease_without_renew_time_gets_one() -> None:
    """It may be of someone else: `kubectl create` makes such."""
    body = b'{"kind":"Lease","metadata":{"name":"n","resourceVersion":"5"}}'
    lease = decode_reply(Op.GET_LEASE, response(200, body)).record
    assert isinstance(lease, LeaseView)
    caller = Caller(0, b"n", RenderedProfile(load_mix().model_of(0), extra_labels={}))
    call = ApiCall(NodeId(0), Op.RENEW_LEASE, "", LeaseRenewal(lease.body, 1_700_000_000 * 10**9))
    sent = orjson.loads(build(call, caller).body)
    assert sent["spec"] == {"renewTime": "2023-11-14T22:13:20.000000Z"}
    assert sent["metadata"] == {"name": "n", "resourceVersion": "5"}
    with pytest.raises(RemoteProtocolError):
        decode_reply(Op.GET_LEASE, response(200, b"[]"))
