"""API timestamps and Go durations as bytes, and back.

No `datetime`: The civil calendar follows days-from-epoch arithmetic in 400-year eras.
"""

import re
from functools import lru_cache

from fleet.clock import NS_PER_S

RENEW_TIME = b'"renewTime":"'  # what stands before a MicroTime in the JSON of a Lease

_last_s = -1
_last_text = b""
PARSED_MAX = 4096
_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))",
    re.ASCII,
)


def rfc3339(seconds: int) -> bytes:
    """Return `2026-11-21T02:06:48Z`; the last answer is kept, since stamps repeat."""
    global _last_s, _last_text  # noqa: PLW0603 - a one-entry cache
    if seconds != _last_s:
        days, rest = divmod(seconds, 86_400)
        year, month, day = _civil(days)
        _last_text = b"%04d-%02d-%02dT%02d:%02d:%02dZ" % (
            year,
            month,
            day,
            rest // 3600,
            rest // 60 % 60,
            rest % 60,
        )
        _last_s = seconds
    return _last_text


@lru_cache(maxsize=16)
def rfc3339_micro(wall_ns: int) -> bytes:
    """Return `2026-11-21T02:06:48.123456Z`, a MicroTime; the renewals of one turn share it."""
    seconds, rest = divmod(wall_ns, NS_PER_S)
    return b"%b.%06dZ" % (rfc3339(seconds)[:-1], rest // 1000)


def rfc3339_nano(wall_ns: int) -> bytes:
    """Return `2026-11-21T02:06:48.123456789Z`: RFC3339NanoFixed, as in a container's log."""
    seconds, rest = divmod(wall_ns, NS_PER_S)
    return b"%b.%09dZ" % (rfc3339(seconds)[:-1], rest)


@lru_cache(maxsize=PARSED_MAX)
def parse_rfc3339(text: str) -> int:
    """Return seconds since the epoch of an API timestamp; 0 for an empty one.

    The times of a fleet repeat: those that are equal are one integer, and parsed once.
    Raises ValueError.
    """
    if not text:
        return 0
    if text[-1] != "Z":  # API servers write UTC, users and queries any zone
        return parse_rfc3339_nano(text) // NS_PER_S
    year, month, day = int(text[0:4]), int(text[5:7]), int(text[8:10])
    return (
        _days(year, month, day) * 86_400
        + int(text[11:13]) * 3600
        + int(text[14:16]) * 60
        + int(text[17:19])
    )


def parse_rfc3339_nano(text: str) -> int:
    """Return nanoseconds since the epoch of a time of any zone. Raises ValueError.

    Source: Go's time.Parse with RFC3339, which takes a fraction that the layout does not name.
    """
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError(text)
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    fraction, sign, zone_hours, zone_minutes = found.groups()[6:]
    if not (1 <= month <= 12 and hour < 24 and minute < 60 and second < 60):
        raise ValueError(text)
    days = _days(year, month, day)
    if _civil(days) != (year, month, day):
        raise ValueError(text)
    seconds = days * 86_400 + hour * 3600 + minute * 60 + second
    if sign:
        ahead_s = int(zone_hours) * 3600 + int(zone_minutes) * 60
        seconds -= ahead_s if sign == "+" else -ahead_s
    return seconds * NS_PER_S + int((fraction or "")[:9].ljust(9, "0"))


def _civil(days: int) -> tuple[int, int, int]:
    """Return year, month, day of a day count since 1970-01-01."""
    days += 719_468
    era, day_of_era = divmod(days, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return (
        year_of_era + era * 400 + (month <= 2),
        month,
        day_of_year - (153 * shifted + 2) // 5 + 1,
    )


def _days(year: int, month: int, day: int) -> int:
    """Return the day count since 1970-01-01."""
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    shifted = month - 3 if month > 2 else month + 9
    day_of_year = (153 * shifted + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146_097 + day_of_era - 719_468
