import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.objects.times import go_duration, parse_rfc3339, rfc3339, rfc3339_micro

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


@given(st.integers(0, 10_000_000))
def test_a_duration_adds_up(seconds: int) -> None:
    text = go_duration(seconds).decode()
    total = number = 0
    for char in text:
        if char.isdigit():
            number = number * 10 + int(char)
        else:
            total += number * {"h": 3600, "m": 60, "s": 1}[char]
            number = 0
    assert total == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, b"0s"), (10, b"10s"), (60, b"1m0s"), (378, b"6m18s"), (3600, b"1h0m0s")],
)
def test_a_duration_is_written_as_go_writes_it(seconds: int, text: bytes) -> None:
    assert go_duration(seconds) == text
