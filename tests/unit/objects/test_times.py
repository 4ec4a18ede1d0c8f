import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from fleet.objects.times import parse_rfc3339, rfc3339, rfc3339_micro

SECONDS = st.integers(0, 253_402_300_799)  # the end of year 9999


@given(SECONDS)
def test_a_time_is_written_as_datetime_writes_it(seconds: int) -> None:
    when = dt.datetime.fromtimestamp(seconds, dt.UTC)
    assert rfc3339(seconds).decode() == when.strftime("%Y-%m-%dT%H:%M:%SZ").rjust(20, "0")


@given(SECONDS)
def test_a_time_is_read_back(seconds: int) -> None:
    assert parse_rfc3339(rfc3339(seconds).decode()) == seconds


@given(st.integers(0, 4_000_000_000_000_000_000))
def test_a_micro_time_cuts_nanoseconds(wall_ns: int) -> None:
    text = rfc3339_micro(wall_ns).decode()
    assert len(text) == len("2026-11-21T02:06:48.123456Z")
    assert parse_rfc3339(text) == wall_ns // 1_000_000_000
    assert int(text[20:26]) == wall_ns // 1000 % 1_000_000


def test_no_time_is_zero() -> None:
    assert parse_rfc3339("") == 0
