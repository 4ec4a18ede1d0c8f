"""API timestamps and Go durations as bytes, and back.

No `datetime`: The civil calendar follows days-from-epoch arithmetic in 400-year eras.
"""

from functools import lru_cache

from fleet.clock import NS_PER_S

RENEW_TIME = b'"renewTime":"'
"""What stands before a MicroTime in the JSON of a Lease."""

_last_s = -1
_last_text = b""
PARSED_MAX = 4096


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
    """
    if not text:
        return 0
    year, month, day = int(text[0:4]), int(text[5:7]), int(text[8:10])
    return (
        _days(year, month, day) * 86_400
        + int(text[11:13]) * 3600
        + int(text[14:16]) * 60
        + int(text[17:19])
    )


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
