"""The two encodings of a fleet's API traffic: what is sent, and how what comes is read.

Source: cmd/kubelet/app/server.go, setContentTypeForClient, for what is accepted.
"""

from typing import NamedTuple

from fleet.objects.effects import Op
from fleet.wire.api import decode_json, replies
from fleet.wire.api.calls import BUILDERS, Builder
from fleet.wire.api.framing import Split, split_frames, split_lines
from fleet.wire.api.replies import ReplyDecoders
from fleet.wire.api.watch import Decode, DecodeList


class Codec(NamedTuple):
    """One encoding. Answers that are no success may come as plain text in either."""

    accept: bytes  # the header of every request
    builders: dict[Op, Builder]
    replies: ReplyDecoders
    split: Split  # of a watch's stream
    decode_watch_event: Decode
    decode_list: DecodeList


JSON = Codec(
    accept=b"application/json",
    builders=BUILDERS,
    replies=replies.JSON,
    split=split_lines,
    decode_watch_event=decode_json.decode_watch_event,
    decode_list=decode_json.decode_list,
)


def protobuf() -> Codec:
    """Return the encoding of real kubelets. Its library is 10 MB, and imported only here."""
    from fleet.wire.api import decode_protobuf, encode_protobuf  # noqa: PLC0415 - see above

    return Codec(
        accept=b"application/vnd.kubernetes.protobuf,application/json",
        builders=encode_protobuf.PROTOBUF_BUILDERS,
        replies=ReplyDecoders(
            decode_protobuf.DECODERS, decode_protobuf.decode_status, decode_protobuf.MALFORMED
        ),
        split=split_frames,
        decode_watch_event=decode_protobuf.decode_watch_event,
        decode_list=decode_protobuf.decode_list,
    )
