"""The two encodings of a fleet's API traffic: what is sent, and how what comes is read.

Source: cmd/kubelet/app/server.go, setContentTypeForClient, for what is accepted.
"""

from collections.abc import Callable
from typing import NamedTuple

from fleet.k8s.effects import Op
from fleet.k8s.pods import LeaseView
from fleet.wire.api import decode_json
from fleet.wire.api.framing import Split, split_frames, split_lines
from fleet.wire.api.operations import OPERATIONS, Operation
from fleet.wire.api.watch import Decode, DecodeList
from fleet.wire.http2.messages import MALFORMED


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
