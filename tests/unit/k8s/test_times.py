import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.k8s.times import parse_rfc3339, parse_rfc3339_nano, rfc3339, rfc3339_micro

SECONDS = st.integers(0, 253_402_300_799)  # the end of year 9999


@given(SECONDS)
def test_a_time_is_written_as_datetime_writes_it(seconds: int) -> None:
    when = dt.datetime.fromtimestamp(seconds, dt.UTC)
    assert rfc3339(seconds).decode() == when.strftime("%Y-%m-%dT%H:%M:%SZ").rjust(20, "0")


@given(SECONDS)
def test_a_time_is_read_back(seconds: int) -> None:
    assert parse_rfc3339(rfc3339(seconds).decode()) == seconds


@given(SECONDS, st.integers(-14 * 60, 14 * 60).filter(bool), st.integers(0, 999_999))
def test_a_time_of_any_zone_is_the_same_instant(seconds: int, minutes: int, micros: int) -> None:
    zone = dt.timezone(dt.timedelta(minutes=minutes))
    when = dt.datetime(1970, 1, 1, tzinfo=zone) + dt.timedelta(seconds=seconds, microseconds=micros)
    text = when.isoformat()
    assert parse_rfc3339(text) == seconds - minutes * 60
    assert parse_rfc3339_nano(text) == (seconds - minutes * 60) * 10**9 + micros * 1000


@pytest.mark.parametrize(
    "text",
    ["2026-01-01", "2026-01-01T10:00:00", "2026-01-01T10:00:00 02:00", "2026-01-01t10:00:00Z",
     "2026-02-29T10:00:00Z", "2026-13-01T10:00:00Z", "2026-01-01T24:00:00Z",
     "2026-01-01T10:00:60Z"],
)  # fmt: skip
def test_what_is_no_time_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse_rfc3339_nano(text)


@given(st.integers(0, 4_000_000_000_000_000_000))
def test_a_micro_time_cuts_nanoseconds(wall_ns: int) -> None:
    text = rfc3339_micro(wall_ns).decode()
    assert len(text) == len("2026-11-21T02:06:48.123456Z")
    assert parse_rfc3339(text) == wall_ns // 1_000_000_000
    assert int(text[20:26]) == wall_ns // 1000 % 1_000_000


def test_no_time_is_zero() -> None:
    assert parse_rfc3339("") == 0
