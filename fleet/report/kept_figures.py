"""The figures of one process as JSON, for the process that sums several up.

Unlike the summary they are complete: histograms with all buckets. JSON is data only; what reads it
runs nothing of the file.
"""

import dataclasses
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import orjson

from fleet.metrics import Histogram, Requests
from fleet.report.figure import is_record
from fleet.report.report import RunFigures


def dump(figures: RunFigures) -> bytes:
    """Return the figures as one JSON object."""
    return orjson.dumps(_plain(figures), option=orjson.OPT_NON_STR_KEYS)


def load(content: bytes) -> RunFigures:
    """Return the figures of what `dump` wrote. Raises ValueError for anything else."""
    try:
        found = _made(RunFigures, orjson.loads(content))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError("these are no figures of a process") from error
    assert isinstance(found, RunFigures), found
    return found


def _plain(value: object) -> object:
    match value:
        case Histogram():
            return {name: getattr(value, name) for name in Histogram.__slots__}
        case Requests():
            return [
                (*row, code, _plain(histogram))
                for row, codes in value.rows.items()
                for code, histogram in codes.items()
            ]
        case Mapping():
            return {key: _plain(inside) for key, inside in value.items()}
        case list() | tuple():
            return [_plain(inside) for inside in value]
    if is_record(value):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    return value


def _made(kind: Any, value: Any) -> Any:
    """Return a value of a declared type from its plain form."""
    origin = get_origin(kind)
    if origin is not None:
        return _made_generic(origin, get_args(kind), value)
    if kind is Histogram:
        return _histogram(value)
    if kind is Requests:
        requests = Requests()
        for verb, resource, code, latencies in value:
            requests.rows.setdefault((verb, resource), {})[code] = _histogram(latencies)
        return requests
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        members = {name: _made(hints[name], inside) for name, inside in value.items()}
        return cast("Callable[..., object]", kind)(**members)
    if isinstance(value, kind) or (kind is float and isinstance(value, int)):
        return value
    raise TypeError(kind)


def _made_generic(origin: Any, arguments: tuple[Any, ...], value: Any) -> object:
    if origin in (Union, UnionType):
        [of] = [each for each in arguments if each is not NoneType]
        return None if value is None else _made(of, value)
    if issubclass(origin, Mapping):
        return {key: _made(arguments[1], inside) for key, inside in value.items()}
    return [_made(arguments[0], inside) for inside in value]


def _histogram(value: Mapping[str, Any]) -> Histogram:
    made = Histogram()
    for name in Histogram.__slots__:
        setattr(made, name, value[name])
    made.buckets = {int(us): count for us, count in value["buckets"].items()}
    return made
