"""The table of a Locust dashboard, made of fleet's own histograms: what came since the last report.

A row is a verb and a resource, as in the API server's metrics. The 404 before a create and the 409
of a repeated one are requests, not failures (`is_failure`). Figures of nodes and pods travel as
rows outside Aggregated.

Source: locust/stats.py, StatsEntry.serialize, StatsError.to_dict, RequestStats.
"""

import hashlib
import http
from typing import Any

from fleet.metrics import FleetCounts, Histogram, is_failure
from fleet.report.figures import of_counts

Json = dict[str, Any]


class _Row:
    """One line of the table between two reports."""

    __slots__ = ("before", "per_second", "seen")

    def __init__(self) -> None:
        self.before: dict[int, tuple[dict[int, int], int, int, int]] = {}
        """By code: buckets, count, sum of times, sum of bytes."""
        self.per_second: dict[int, dict[int, int]] = {}  # epoch second: code: answers
        self.seen: dict[int, int] = {}  # code: answers as of the last sample


class LocustStats:
    """Turns running histograms into reports. `sample` once a second, `report` every three."""

    def __init__(self, counts: FleetCounts, *, epoch_s: float) -> None:
        self._counts = counts
        self._rows: dict[tuple[str, str], _Row] = {}
        self._since_s = epoch_s
        self._first_s: dict[tuple[str, str, int], float] = {}

    def sample(self, epoch_s: float) -> None:
        """Note how many answers each row got by now, for the rates."""
        second = int(epoch_s)
        for key, codes in self._sources():
            row = self._rows.get(key)
            if row is None:
                row = self._rows[key] = _Row()
            for code, histogram in codes.items():
                more = histogram.count - row.seen.get(code, 0)
                if more:
                    row.seen[code] = histogram.count
                    answers = row.per_second.setdefault(second, {})
                    answers[code] = answers.get(code, 0) + more

    def drop(self, epoch_s: float) -> None:
        """Forget what came so far: a run begins."""
        self.report(epoch_s)

    def report(self, epoch_s: float) -> Json:
        """Return what came since the last report, as the master merges it."""
        self.sample(epoch_s)
        rows, errors = [], {}
        total = _entry("", "Aggregated", self._since_s)
        for (method, name), codes in self._sources():
            row = self._rows[method, name]
            entry = _entry(method, name, self._since_s)
            for code, histogram in codes.items():
                failed = _add(entry, row, code, histogram, epoch_s)
                if failed:
                    key, error = self._error(method, name, code, failed, epoch_s)
                    errors[key] = error
            _add_rates(entry, row)
            if entry["num_requests"]:
                rows.append(entry)
                if method not in _NODE_ROWS:
                    _merge(total, entry)
        self._since_s = epoch_s
        return {"stats": rows, "stats_total": total, "errors": errors}

    def _sources(self) -> list[tuple[tuple[str, str], dict[int, Histogram]]]:
        counts = self._counts
        own = [(row, {200: getattr(counts, counter)}) for row, counter in _OWN_ROWS.items()]
        return [*counts.requests.rows.items(), *own]

    def _error(
        self, method: str, name: str, code: int, count: int, epoch_s: float
    ) -> tuple[str, Json]:
        text = describe(code)
        first_s = self._first_s.setdefault((method, name, code), epoch_s)
        key = hashlib.sha256(f"{method}.{name}.{text!r}".encode()).hexdigest()
        return key, {
            "method": method,
            "name": name,
            "error": text,
            "occurrences": count,
            "first_seen": first_s,
            "last_seen": epoch_s,
        }


SUMS = (
    "num_requests",
    "num_none_requests",
    "num_failures",
    "total_response_time",
    "total_content_length",
)
_OWN_ROWS = {figure.locust: figure.counter for figure in of_counts() if figure.locust}
_NODE_ROWS = frozenset(method for method, _ in _OWN_ROWS)


def describe(code: int) -> str:
    """Return an HTTP code with its phrase; 0 is no answer at all."""
    if not code:
        return "no answer: connection lost or timed out"
    try:
        return f"{code} {http.HTTPStatus(code).phrase}"
    except ValueError:
        return str(code)


def _entry(method: str, name: str, since_s: float) -> Json:
    return {
        "name": name,
        "method": method,
        "last_request_timestamp": None,
        "start_time": since_s,
        "num_requests": 0,
        "num_none_requests": 0,
        "num_failures": 0,
        "total_response_time": 0.0,
        "max_response_time": 0,
        "min_response_time": None,
        "total_content_length": 0,
        "response_times": {},
        "num_reqs_per_sec": {},
        "num_fail_per_sec": {},
    }


def _add(entry: Json, row: _Row, code: int, now: Histogram, epoch_s: float) -> int:
    """Add the answers with one code since the last report; return how many were failures."""
    buckets, count, sum_us, size = row.before.get(code, ({}, 0, 0, 0))
    more = now.count - count
    if not more:
        return 0
    since = now.since(buckets)
    row.before[code] = (now.snapshot(), now.count, now.sum_us, now.bytes)
    entry["num_requests"] += more
    entry["last_request_timestamp"] = epoch_s
    entry["total_response_time"] += (now.sum_us - sum_us) / 1000
    entry["total_content_length"] += now.bytes - size
    least, most = since.min_us / 1000, since.max_us / 1000
    entry["min_response_time"] = min(least, entry["min_response_time"] or least)
    entry["max_response_time"] = max(most, entry["max_response_time"])
    times = entry["response_times"]
    for key, number in since.buckets.items():
        time_ms = round(key / 1000, 1)
        times[time_ms] = times.get(time_ms, 0) + number
    failed = more if is_failure(entry["name"], code) else 0
    entry["num_failures"] += failed
    return failed


def _add_rates(entry: Json, row: _Row) -> None:
    for second, answers in row.per_second.items():
        entry["num_reqs_per_sec"][second] = sum(answers.values())
        failed = sum(count for code, count in answers.items() if is_failure(entry["name"], code))
        if failed:
            entry["num_fail_per_sec"][second] = failed
    row.per_second = {}


def _merge(total: Json, entry: Json) -> None:
    for key in SUMS:
        total[key] += entry[key]
    total["last_request_timestamp"] = entry["last_request_timestamp"]
    total["max_response_time"] = max(total["max_response_time"], entry["max_response_time"])
    least = entry["min_response_time"]
    if least is not None:
        total["min_response_time"] = min(least, total["min_response_time"] or least)
    for key in ("response_times", "num_reqs_per_sec", "num_fail_per_sec"):
        merged = total[key]
        for each, count in entry[key].items():
            merged[each] = merged.get(each, 0) + count
