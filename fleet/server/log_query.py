"""The query of /containerLogs: v1.PodLogOptions as parameters of a URL.

Source: pkg/kubelet/server/server.go, getContainerLogs; apimachinery/pkg/runtime/conversion.go;
pkg/apis/core/validation, ValidatePodLogOptions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from fleet.clock import NS_PER_S
from fleet.k8s.streams import LogOptions, Refusal
from fleet.k8s.times import parse_rfc3339_nano

UNREADABLE = Refusal(400, '{"message": "Unable to decode query."}')
INVALID = Refusal(422, '{"message": "Invalid request."}')
STREAMS = ("All", "Stdout", "Stderr")
INT64_MAX = 2**63
T = TypeVar("T")


def log_options(
    query: Mapping[str, Sequence[str]], wall_ns: int, *, splits_streams: bool
) -> LogOptions | Refusal:
    """Read the parameters; of each the first counts."""
    given = {key: values[0] for key, values in query.items() if values}
    tail = given.pop("tail", "")  # of old clients
    if tail == "all":
        given.pop("tailLines", None)
    elif tail:
        given["tailLines"] = tail
    try:
        tail_lines = _read(given, "tailLines", _int64)
        limit_bytes = _read(given, "limitBytes", _int64)
        since_s = _read(given, "sinceSeconds", _int64)
        since_time_ns = _read(given, "sinceTime", _time)
    except ValueError:
        return UNREADABLE
    stream = given.get("stream", "All")
    if (
        (tail_lines is not None and tail_lines < 0)
        or (limit_bytes is not None and limit_bytes < 1)
        or (since_s is not None and (since_s < 1 or since_time_ns is not None))
    ):
        return INVALID
    if splits_streams and (stream not in STREAMS or (stream != "All" and tail_lines is not None)):
        return INVALID
    if not splits_streams and stream != "All":
        return Refusal(
            400,
            f'unable to return the given log stream: "{stream}". Please enable '
            "PodLogsQuerySplitStreams feature gate in kubelet",
        )
    since_ns = 0
    if since_s is not None:
        since_ns = max(wall_ns - since_s * NS_PER_S, 0)
    elif since_time_ns is not None:
        since_ns = since_time_ns
    return LogOptions(
        follow=_flag(given, "follow"),
        previous=_flag(given, "previous"),
        timestamps=_flag(given, "timestamps"),
        since_ns=since_ns,
        tail_lines=tail_lines,
        limit_bytes=limit_bytes,
        stream=stream,
    )


def _read(given: Mapping[str, str], name: str, parse: Callable[[str], T]) -> T | None:
    return parse(given[name]) if name in given else None


def _flag(given: Mapping[str, str], name: str) -> bool:
    """Source: Convert_Slice_string_To_bool: whatever is not false is true."""
    return name in given and given[name].lower() not in {"false", "0"}


def _int64(text: str) -> int:
    value = int(text)
    if not -INT64_MAX <= value < INT64_MAX:
        raise ValueError(text)
    return value


def _time(text: str) -> int:
    """Read an instant in nanoseconds; the API server writes it in its own zone.

    Source: apimachinery/pkg/apis/meta/v1/time.go, UnmarshalQueryParameter: none is no limit.
    """
    return 0 if text in {"", "null"} else parse_rfc3339_nano(text)
