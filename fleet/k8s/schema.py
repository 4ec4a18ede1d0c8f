"""How records name the members of the API's objects that they hold: read and shown by one plan.

A record is a msgspec Struct. A field is the member of its name in camel case, or that which
`member` names, at any depth: `member("spec/volumeName")`. What JSON and a record have in different
forms is of one of the kinds below. A field without a default is always written, as Go writes what
has no `omitempty`; a field with one is left out at its default, but for times, which are null.
"""

import operator
import sys
from collections.abc import Callable
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


def render(value: object) -> bytes:
    """Render with sorted keys. A copy: orjson hands out its buffer, several times too large."""
    return b"%b" % orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


# ---- kinds of fields ----


def show_time(seconds: int) -> str | None:
    """Return a time as the API shows it, None for 0."""
    return rfc3339(seconds).decode() if seconds else None


class Kind(type):
    """Kinds are never made: their values are plain ones."""

    # msgspec asks it for each value that a kind read: a call of C, not of Python.
    __instancecheck__ = partial(operator.is_not, object())


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
else:

    class Text(metaclass=Kind):
        """A text that repeats over a fleet: interned."""

        read = staticmethod(sys.intern)

    class Seconds(metaclass=Kind):
        """A time, as seconds since the epoch; 0 for null. API objects keep no fractions."""

        read = staticmethod(parse_rfc3339)
        show = staticmethod(lru_cache(maxsize=SHOWN_MAX)(show_time))
        is_written = True

    class Flag(metaclass=Kind):
        """A truth value that kubelets always write and others may leave out."""

        read = show = staticmethod(bool)
        is_written = True

    class Count(Flag):
        """A number that kubelets always write and others may leave out."""

        read = show = staticmethod(int)

    class Shown(Flag):
        """A text of the same kind."""

        read = show = staticmethod(sys.intern)

    class Addresses(metaclass=Kind):
        """The addresses of a list of `{"ip": ...}`, as fleet.k8s.addresses has them."""

        read = staticmethod(
            lambda value: sys.intern(",".join([each["ip"] for each in value or ()]))
        )
        show = staticmethod(lambda ips: [{"ip": each} for each in ips.split(",")])

    class Rendered(metaclass=Kind):
        """A part that a kubelet only passes on: its JSON with sorted keys."""

        read = staticmethod(lambda value: share(render(value)))
        show = staticmethod(lru_cache(maxsize=SHOWN_MAX)(orjson.loads))

    class Presence(metaclass=Kind):
        """Whether the object has a member at all, such as a deletionTimestamp."""

        read = staticmethod(lambda value: value is not None)

    class Storage(metaclass=Kind):
        """The amount of storage in a map of resources, "" for none."""

        read = staticmethod(lambda value: sys.intern((value or {}).get("storage", "")))


def read_kind(kind: Any, value: Any) -> Any:
    """Return a value of one of the kinds, from its JSON: the `dec_hook` of every decoder."""
    return kind.read(value)


# ---- reading ----


def without_nulls(value: Any) -> Any:
    """Return JSON in which what is null is absent: Go reads both alike, msgspec does not."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return list(map(without_nulls, value)) if isinstance(value, list) else value


def decoder(kind: type[_T]) -> Callable[[bytes], _T]:
    """Return what reads a record from JSON. It raises ValidationError, which is a ValueError."""
    read = msgspec.json.Decoder(kind, dec_hook=read_kind).decode

    def decode(body: bytes) -> _T:
        try:
            return read(body)
        except msgspec.ValidationError:
            return read(orjson.dumps(without_nulls(orjson.loads(body))))

    return decode


def read(kind: type[_R], obj: dict[str, Any]) -> _R:
    """Return a record of the members that its fields name, from a decoded object."""
    found = {}
    for path, steps in _paths(kind):
        value: Any = obj
        for each in steps:
            value = value.get(each)
            if value is None:
                break
        else:
            found[path] = without_nulls(value)
    return msgspec.convert(found, kind, dec_hook=read_kind)


@cache
def _paths(kind: type[Record]) -> list[tuple[str, list[str]]]:
    return [(each.encode_name, each.encode_name.split("/")) for each in structs.fields(kind)]


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
def _plan(kind: type[Record]) -> list[tuple[str, Any, Callable[[Any], Any] | None]]:
    """Return member, the value that is left out, and how to show it, of each field."""
    plan = []
    for each in structs.fields(kind):
        show = getattr(each.type, "show", None)
        if get_origin(each.type) is tuple and issubclass(get_args(each.type)[0], Record):
            show = shown_all
        left_out = msgspec.NODEFAULT if hasattr(each.type, "is_written") else each.default
        plan.append((each.encode_name, left_out, show))
    return plan


def shown_all(records: tuple[Record, ...]) -> list[dict[str, Any]]:
    """Return records as the API shows them."""
    return list(map(shown, records))
