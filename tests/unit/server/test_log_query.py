"""The query of /containerLogs."""

import pytest

from fleet.clock import NS_PER_S
from fleet.k8s.streams import LogOptions, Refusal
from fleet.server.endpoints import INVALID, UNREADABLE, log_options

NOW_NS = 1_000 * NS_PER_S


def read_all(query: dict[str, str], *, splits_streams: bool = False) -> LogOptions | Refusal:
    given = {key: [value] for key, value in query.items()}
    return log_options(given, NOW_NS, splits_streams=splits_streams)


def read(*, splits_streams: bool = False, **query: str) -> LogOptions | Refusal:
    return read_all(query, splits_streams=splits_streams)


def test_nothing_asked_is_the_whole_log() -> None:
    assert read() == LogOptions()


def test_what_is_asked_is_read() -> None:
    asked = read(follow="true", previous="1", timestamps="", tailLines="0", limitBytes="7")
    assert asked == LogOptions(
        follow=True, previous=True, timestamps=True, tail_lines=0, limit_bytes=7
    )


@pytest.mark.parametrize("text", ["false", "False", "0"])
def test_only_false_and_0_are_no(text: str) -> None:
    assert read(follow=text) == LogOptions(follow=False)


def test_since_is_an_instant() -> None:
    assert read(sinceSeconds="60") == LogOptions(since_ns=940 * NS_PER_S)
    assert read(sinceSeconds="5000") == LogOptions(since_ns=0)
    assert read(sinceTime="1970-01-01T00:01:00Z") == LogOptions(since_ns=60 * NS_PER_S)


@pytest.mark.parametrize(
    ("text", "since_s"),
    [("1970-01-01T02:01:00+02:00", 60.0), ("1969-12-31T18:31:00-05:30", 60.0),
     ("1970-01-01T00:01:00.25Z", 60.25), ("1970-01-01T01:00:00+01:00", 0.0),
     ("", 0.0), ("null", 0.0)],
)  # fmt: skip
def test_since_a_time_of_any_zone(text: str, since_s: float) -> None:
    assert read_all({"sinceTime": text}) == LogOptions(since_ns=int(since_s * NS_PER_S))


def test_the_old_word_for_the_tail() -> None:
    assert read(tail="3") == LogOptions(tail_lines=3)
    assert read(tail="all", tailLines="3") == LogOptions()


@pytest.mark.parametrize(
    "query", [{"tailLines": "x"}, {"limitBytes": "1e3"}, {"sinceSeconds": str(2**63)},
              {"sinceTime": "yesterday"}, {"sinceTime": "1970-01-01T02:01:00 02:00"}]
)  # fmt: skip
def test_what_cannot_be_read(query: dict[str, str]) -> None:
    assert read_all(query) == UNREADABLE


@pytest.mark.parametrize(
    "query",
    [{"tailLines": "-1"}, {"limitBytes": "0"}, {"sinceSeconds": "0"},
     {"sinceSeconds": "1", "sinceTime": "2026-01-01T00:00:00Z"}],
)  # fmt: skip
def test_what_makes_no_sense(query: dict[str, str]) -> None:
    assert read_all(query) == INVALID


def test_one_stream_needs_its_gate() -> None:
    refused = read(stream="Stderr")
    assert isinstance(refused, Refusal)
    assert refused.code == 400
    assert read(stream="stderr") == read(stream="Stderr", tailLines="1") == INVALID
    assert read(stream="Stderr", splits_streams=True) == LogOptions(stream="Stderr")
    assert read(stream="stderr", splits_streams=True) == INVALID
    assert read(stream="Stdout", tailLines="1", splits_streams=True) == INVALID
