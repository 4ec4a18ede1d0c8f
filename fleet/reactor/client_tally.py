"""What the API client of each kubelet asked, as its own /metrics tells it: `rest_client_*`.

    answer -> count(entry, method, code, took) -> a number in the node's array, by column
                                               -> a histogram by method, once somebody has asked

Columns are the process's: a node holds 4 bytes for each pair of method and code that it, or a node
before it, has seen. Histograms would be a kilobyte a node: they are begun when its /metrics is
asked for the first time.
Source: client-go/tools/metrics/metrics.go; component-base/metrics/prometheus/restclient/metrics.go.
"""

from array import array
from collections.abc import Iterator

from fleet.kubelet.counts import Durations

DURATION_BOUNDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60)
NO_ANSWER = "<error>"
"""The code of a request that has none."""
NO_DURATION = -1
"""Of a watch: client-go measures requests that end."""
_METHODS = {"DELETECOLLECTION": "DELETE", "LIST": "GET", "WATCH": "GET"}
"""By the verbs that the API server's metrics name."""


class ClientTally:
    """The requests of one kubelet since it was started."""

    __slots__ = ("asked", "took")

    def __init__(self) -> None:
        self.asked = array("I")  # by column
        self.took: dict[str, Durations] | None = None  # by method, since somebody asked


class ClientColumns:
    """What the numbers of all nodes of a process stand for."""

    __slots__ = ("_columns",)

    def __init__(self) -> None:
        self._columns: dict[tuple[str, int], int] = {}

    def count(self, tally: ClientTally, verb: str, code: int, took_us: int = NO_DURATION) -> None:
        """Count one answer; code 0 is none."""
        column = self._columns.get((verb, code))
        if column is None:
            column = self._columns[verb, code] = len(self._columns)
        try:
            tally.asked[column] += 1
        except IndexError:  # the node's first one: as a rule none of its heartbeats
            tally.asked.extend((0,) * (column - len(tally.asked)))
            tally.asked.append(1)
        if tally.took is not None and took_us != NO_DURATION:
            method = _METHODS.get(verb, verb)
            if method not in tally.took:
                tally.took[method] = Durations(DURATION_BOUNDS)
            tally.took[method].add(took_us * 1_000)

    def rows(self, tally: ClientTally) -> Iterator[tuple[str, str, int]]:
        """Yield code, method and how often, of what a node asked."""
        counts: dict[tuple[str, str], int] = {}
        for (verb, code), column in self._columns.items():
            count = tally.asked[column] if column < len(tally.asked) else 0
            if count:
                key = str(code) if code else NO_ANSWER, _METHODS.get(verb, verb)
                counts[key] = counts.get(key, 0) + count
        for (code_shown, method), count in counts.items():
            yield code_shown, method, count
