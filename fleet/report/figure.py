"""How a figure is declared, and what follows from that: sums of processes, and JSON.

A record is a dataclass whose fields are made by `figure` or `made`. `figures.py` has them all.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, cast

from fleet.metrics import Histogram, Requests, merged

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Json = dict[str, object]
Record = TypeVar("Record", bound="DataclassInstance")
T = TypeVar("T")
FIGURE = "figure"


class Kind(enum.Enum):
    """How a figure is added up, and what the time series has of it."""

    COUNTER = enum.auto()  # only grows: processes add up, the time series has its growth a second
    STATE = enum.auto()  # processes add up, the time series has it as it stands
    HISTOGRAM = enum.auto()  # processes add up, the time series has what came in that second
    MOMENT = enum.auto()  # the latest or longest of all processes
    FACT = enum.auto()  # what the first process says, as it does of all that is text
    DERIVED = enum.auto()  # made of others when the summary is


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. Units end the key: `_s`, `_ms`, `_bytes`; a metric has seconds and bytes.

    A figure that says nothing else is a counter in the series.
    """

    words: str = ""
    counter: str = ""
    """The attribute of `FleetCounts`, or of what else counts the record, that it is read from."""
    metric: str = ""
    """The name in Prometheus, without `fleet_` and a counter's `_total`."""
    kind: Kind = Kind.COUNTER
    key: str = ""  # in summary.json, if not the field's name; `a.b` is b within a
    labels: tuple[str, ...] = ()  # in Prometheus
    locust: tuple[str, str] | None = None  # type and name of its row on the dashboard
    has_max: bool = False
    in_series: bool = True


def figure(default: T, words: str = "", counter: str = "", metric: str = "", **marks: Any) -> T:
    """Make a field of a record; what is said of it is that of `Figure`."""
    return field(default=default, metadata={FIGURE: Figure(words, counter, metric, **marks)})


def made(factory: Callable[[], T], *texts: str, **marks: Any) -> T:
    """Make a field whose default is a new one for each record, such as a record within it."""
    words, counter, metric = (*texts, "", "", "")[:3]
    mark = Figure(words, counter, metric, **marks)
    return field(default_factory=factory, metadata={FIGURE: mark})


def _of(kind: Kind, usual: object, words: str, *names: str, **marks: Any) -> Any:
    """Make a field of one kind; `names` are those of `Figure`: its counter and its metric."""
    return figure(marks.pop("default", usual), words, *names, kind=kind, **marks)


count = partial(_of, Kind.COUNTER, 0)
state = partial(_of, Kind.STATE, 0)
moment = partial(_of, Kind.MOMENT, None)
derived = partial(_of, Kind.DERIVED, None)
histogram = partial(made, Histogram, kind=Kind.HISTOGRAM)
"""A histogram of times, whose key is the name of its field and `_ms`."""


@cache
def figures_of(record: type["DataclassInstance"]) -> Mapping[str, Figure]:
    found = {}
    for each in fields(record):
        if isinstance(mark := each.metadata.get(FIGURE), Figure):
            is_named = mark.key or mark.kind is not Kind.HISTOGRAM
            found[each.name] = mark if is_named else replace(mark, key=f"{each.name}_ms")
    return found


def filled(record: type[Record], counts: object) -> Record:
    """Return a record with what was counted so far; the histograms are those that go on."""
    made = record()
    for name, mark in figures_of(record).items():
        if mark.counter:
            value = getattr(counts, mark.counter)
            setattr(made, name, value / 1e9 if "_ns_" in mark.counter else value)
    return made


def combined(parts: Sequence[Record], *, in_turn: bool = False) -> Record:
    """Return what several processes measured as one; no part is changed.

    Of those that ran `in_turn`, each in the place of the one before, the last says how it stands.
    """
    total, figures = replace(parts[0]), figures_of(type(parts[0]))
    for name in (each.name for each in fields(total)):
        kind = figures.get(name, Figure(kind=Kind.STATE)).kind
        if kind is not Kind.FACT:
            values = [getattr(part, name) for part in parts]
            setattr(total, name, _combined(values, kind, in_turn=in_turn))
    return total


def _combined(values: Sequence[object], kind: Kind, *, in_turn: bool) -> object:
    known = [value for value in values if value is not None]
    total: object = None
    match known[:1]:
        case [Histogram()]:
            total = merged(cast("list[Histogram]", known))
        case [Requests()]:
            total = Requests.merged(cast("list[Requests]", known))
        case [int() | float()]:
            numbers = cast("list[float]", known)
            total = max(numbers) if kind is Kind.MOMENT else sum(numbers)
            if in_turn and kind is Kind.STATE:
                total = numbers[-1]
        case [Mapping()]:
            maps = cast("list[Mapping[str, object]]", known)
            names = dict.fromkeys(chain.from_iterable(maps))
            total = {
                name: _combined(
                    [each[name] for each in maps if name in each], Kind.COUNTER, in_turn=in_turn
                )
                for name in names
            }
        case [list() | tuple()]:
            total = list(dict.fromkeys(chain.from_iterable(cast("list[list[object]]", known))))
        case [str()]:
            total = known[0]
        case [record]:
            assert is_record(record), record
            total = combined(cast("list[DataclassInstance]", known), in_turn=in_turn)
    return total


def is_record(value: object) -> TypeGuard["DataclassInstance"]:
    return is_dataclass(value) and not isinstance(value, type)
