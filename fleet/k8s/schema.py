"""How records name the members of the API's objects that they hold: read and shown by one plan.

A record is a msgspec Struct. A field is the member of its name in camel case, or that which
`member` names, at any depth: `member("spec/volumeName")`. What JSON and a record have in different
forms is of one of the kinds below. A field without a default is always written, as Go writes what
has no `omitempty`; a field with one is left out at its default, but for times, which are null.
"""

import operator
import sys
from collections.abc import Callable, Mapping
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, get_args, get_origin

import msgspec
import orjson
from msgspec import structs
from msgspec.structs import astuple

from fleet.k8s.times import parse_rfc3339, rfc3339

SHARED_MAX = 8192
"""Values that are kept once: pods of a template have the same ones. A full table starts again."""
SHOWN_MAX = 2048
"""Times and rendered parts that are kept as the API shows them: those of a fleet repeat."""

_T = TypeVar("_T")
_R = TypeVar("_R", bound="Record")
_shared: dict[object, object] = {}


class Record(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """An immutable part of an API object, compared by value."""

    def _replace(self, **changes: Any) -> Self:
        """Return a copy with other values, as NamedTuple does."""
        return structs.replace(self, **changes)


def member(path: str, default: Any = msgspec.NODEFAULT) -> Any:
    """Name the member of a field, by its path in the object."""
    return msgspec.field(name=path, default=default)


def share(value: _T) -> _T:
    """Return the equal value that was seen before, so that a fleet keeps one of each."""
    found = _shared.setdefault(value, value)
    if len(_shared) > SHARED_MAX:
        _shared.clear()
    return found  # type: ignore[return-value] # keys and values are the same objects


def part_of(value: Mapping[str, object], key: str) -> dict[str, object]:
    """Return a member that is a mapping; an absent one is empty."""
    part = value.get(key)
    return part if isinstance(part, dict) else {}


def render(value: object) -> bytes:
    """Render with sorted keys. A copy: orjson hands out its buffer, several times too large."""
    return b"%b" % orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


# ---- kinds of fields ----


def show_time(seconds: int) -> str | None:
    """Return a time as the API shows it, None for 0."""
    return rfc3339(seconds).decode() if seconds else None


class Kind(type):
    """Kinds are never made: their values are plain ones."""

    # msgspec asks it for each value that a kind read: a call of C, not of Python. From Python 3.14
    # on a bare `partial` would be a method, and get the kind as well.
    __instancecheck__ = staticmethod(partial(operator.is_not, object()))


def kind(
    read: Callable[[Any], Any],
    show: Callable[[Any], Any] | None = None,
    *,
    is_written: bool = False,
) -> Any:
    """Return a kind of fields by how its value is read from JSON, and shown in it.

    One that `is_written` is there even at its default. None of them is ever made.
    """
    show = None if show is None else staticmethod(show)
    return Kind("kind", (), {"read": staticmethod(read), "show": show, "is_written": is_written})


def read_kind(kind: Any, value: Any) -> Any:
    """Return a value of one of the kinds, from its JSON: the `dec_hook` of every decoder."""
    return kind.read(value)


def _addresses(listed: list[dict[str, str]]) -> str:
    return sys.intern(",".join([each["ip"] for each in listed]))


if TYPE_CHECKING:
    Text = str
    Seconds = int
    Flag = bool
    Count = int
    Shown = str
    Addresses = str
    Rendered = bytes
    Presence = bool
    Storage = str
    Keys = frozenset[str]
else:
    Text = kind(sys.intern)  # that repeats over a fleet
    Seconds = kind(parse_rfc3339, lru_cache(SHOWN_MAX)(show_time), is_written=True)
    """A time since the epoch, 0 for null: API objects keep no fractions."""
    # What kubelets always write and others may leave out.
    Flag = kind(bool, bool, is_written=True)
    Count = kind(int, int, is_written=True)
    Shown = kind(sys.intern, sys.intern, is_written=True)
    Addresses = kind(_addresses, lambda ips: [{"ip": each} for each in ips.split(",")])
    Rendered = kind(lambda value: share(render(value)), lru_cache(SHOWN_MAX)(orjson.loads))
    """A part that a kubelet only passes on: its JSON with sorted keys."""
    Presence = kind(lambda value: value is not None)  # such as that of a deletionTimestamp
    Storage = kind(lambda amounts: sys.intern(amounts.get("storage", "")))
    Keys = kind(frozenset)


# ---- reading ----


def without_nulls(value: Any) -> Any:
    """Return JSON in which what is null is absent: Go reads both alike, msgspec does not."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return list(map(without_nulls, value)) if isinstance(value, list) else value


def decoder(record: type[_T]) -> Callable[[bytes], _T]:
    """Return what reads a record from JSON. It raises ValidationError, which is a ValueError."""
    read = msgspec.json.Decoder(record, dec_hook=read_kind).decode

    def decode(body: bytes) -> _T:
        try:
            return read(body)
        except msgspec.ValidationError:
            return read(orjson.dumps(without_nulls(orjson.loads(body))))

    return decode


def read(record: type[_R], obj: dict[str, Any]) -> _R:
    """Return a record of the members that its fields name, from a decoded object."""
    found = {}
    for path, steps in _paths(record):
        value: Any = obj
        for each in steps:
            value = value.get(each)
            if value is None:
                break
        else:
            found[path] = without_nulls(value)
    return msgspec.convert(found, record, dec_hook=read_kind)


@cache
def _paths(record: type[Record]) -> list[tuple[str, list[str]]]:
    return [(each.encode_name, each.encode_name.split("/")) for each in structs.fields(record)]


# ---- showing ----


def shown(record: Record) -> dict[str, Any]:
    """Return a record as the API shows it in JSON."""
    found: dict[str, Any] = {}
    for (name, default, show), value in zip(_plan(type(record)), astuple(record), strict=True):
        if value != default:
            found[name] = show(value) if show else value
    return found


def differing(old: Record, new: Record) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the members in which two records of a kind differ, as the API shows them."""
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    plan = _plan(type(new))
    for (name, default, show), was, value in zip(plan, astuple(old), astuple(new), strict=True):
        if was is not value and was != value:
            if was != default:
                before[name] = show(was) if show else was
            if value != default:
                after[name] = show(value) if show else value
    return before, after


@cache
def _plan(record: type[Record]) -> list[tuple[str, Any, Callable[[Any], Any] | None]]:
    """Return member, the value that is left out, and how to show it, of each field."""
    plan = []
    for each in structs.fields(record):
        show = getattr(each.type, "show", None)
        if get_origin(each.type) is tuple and issubclass(get_args(each.type)[0], Record):
            show = shown_all
        left_out = msgspec.NODEFAULT if getattr(each.type, "is_written", False) else each.default
        plan.append((each.encode_name, left_out, show))
    return plan


def shown_all(records: tuple[Record, ...]) -> list[dict[str, Any]]:
    """Return records as the API shows them."""
    return list(map(shown, records))
