import pytest

from fleet.effects import Op, Reply, ReplyKind
from fleet.objects import LeaseView
from fleet.wire.messages import Failure, Response
from fleet.wire.replies import decode_reply

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
    lease = decode_reply(Op.RENEW_LEASE, response(200, b"{lease}"))
    assert lease == Reply(ReplyKind.OK, LeaseView(b"{lease}"), 200, "", 5, 9)
    patched = decode_reply(Op.PATCH_NODE_STATUS, response(200, b"not even JSON"))
    assert patched == Reply(ReplyKind.OK, None, 200, "", 5, 9)


def test_no_answer_is_lost() -> None:
    lost = Response(0, b"", 5, 9, -1, Failure.TIMEOUT, "no answer in time")
    assert decode_reply(Op.GET_NODE, lost) == Reply(
        ReplyKind.LOST, None, 0, "no answer in time", 5, 9
    )


def test_a_body_that_is_no_status_is_its_own_message() -> None:
    assert decode_reply(Op.GET_NODE, response(502, b" Bad Gateway\n")).message == "Bad Gateway"
