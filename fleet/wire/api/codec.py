"""The two encodings of a fleet's API traffic: what is sent, how what comes is read, and replies.

Source: cmd/kubelet/app/server.go, setContentTypeForClient, for what is accepted.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from fleet.errors import RemoteProtocolError
from fleet.k8s.effects import Op, Reply, ReplyKind
from fleet.k8s.pods import LeaseView
from fleet.wire.api import decode_json
from fleet.wire.api.framing import Split, split_frames, split_lines
from fleet.wire.api.operations import OPERATIONS, Operation
from fleet.wire.api.watch import Decode, DecodeList
from fleet.wire.http2.messages import MALFORMED, Response


class Codec(NamedTuple):
    """One encoding. Answers that are no success may come as plain text in either."""

    accept: bytes  # the header of every request
    operations: dict[Op, Operation]
    decode_status: Callable[[bytes], tuple[str, str]]  # reason and message of a refusal
    malformed: tuple[type[Exception], ...]  # what readers raise of a broken body
    split: Split  # of a watch's stream
    decode_watch_event: Decode
    decode_list: DecodeList
    version_in: Callable[[bytes], str]  # the resourceVersion of an answer that is an object
    forget_managers: Callable[[bytes], bytes]  # of a Lease: have its next PUT clear them


JSON = Codec(
    accept=b"application/json",
    operations=OPERATIONS,
    decode_status=decode_json.decode_status,
    malformed=MALFORMED,
    split=split_lines,
    decode_watch_event=decode_json.decode_watch_event,
    decode_list=decode_json.decode_list,
    version_in=decode_json.version_in,
    forget_managers=decode_json.forget_managers,
)


@cache
def protobuf() -> Codec:
    """Return the encoding of real kubelets. Its library is 10 MB, and imported only here."""
    from fleet.wire.api import decode_protobuf, encode_protobuf  # noqa: PLC0415 - see above

    return Codec(
        accept=b"application/vnd.kubernetes.protobuf,application/json",
        operations={
            op: row._replace(
                build=encode_protobuf.builder_of(op, row), read=decode_protobuf.reader_of(row)
            )
            for op, row in OPERATIONS.items()
        },
        decode_status=decode_protobuf.decode_status,
        malformed=decode_protobuf.MALFORMED,
        split=split_frames,
        decode_watch_event=decode_protobuf.decode_watch_event,
        decode_list=decode_protobuf.decode_list,
        version_in=decode_protobuf.version_in,
        forget_managers=decode_protobuf.forget_managers,
    )


def without_managers(codec: Codec) -> Codec:
    """Return an encoding whose Leases are renewed without managedFields: fidelity `light`.

    A Lease has them from its creation, and the first renewal sends the one empty entry that clears
    them. An object that has none gets none, so that the API server has less to do for each renewal
    after that, and to keep. Differs: a kubelet sends back what it got.
    Source: apimachinery/pkg/util/managedfields/internal, isResetManagedFields, skipnonapplied.go.
    """

    def read_lease(body: bytes) -> LeaseView:
        return LeaseView(codec.forget_managers(body))

    operations = dict(codec.operations)
    for op in (Op.GET_LEASE, Op.CREATE_LEASE):
        operations[op] = operations[op]._replace(read=read_lease)
    return codec._replace(operations=operations)


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
