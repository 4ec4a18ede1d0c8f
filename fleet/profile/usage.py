"""What containers and nodes use over time: curves, and the instants at which they cross a limit.

A curve is piecewise linear: points `(ns, amount)`, of which two at one instant are a jump. Before
the first point and after the last the amount stays, unless the curve repeats. Nothing is sampled:
where a sum of curves crosses a limit is computed piece by piece.
"""

import enum
import itertools
import json
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Annotated, NamedTuple, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from fleet.profile.schema import CompiledFrom, DurationNs, QuantityField, Spec
from fleet.quantity import NANO, Quantity, parse_quantity

NEVER = 1 << 62
PIECES_MAX = 512
PIECES_MIN = 4
"""How many linear pieces, of all curves together, and how many stretches at least one search looks
at; then it says where to look on."""
POINTS_MAX = 1000


class CurveShape(enum.Enum):
    """The curves that a document can name."""

    CONSTANT = "Constant"
    RAMP = "Ramp"
    STEP = "Step"
    SAWTOOTH = "Sawtooth"
    POINTS = "Points"


class Curve(NamedTuple):
    """A compiled curve; a `period_ns` above 0 makes it repeat."""

    points: tuple[tuple[int, int], ...]
    period_ns: int = 0

    def at(self, t_ns: int) -> int:
        """Return the amount, `t_ns` after the start; at a jump, the one after it."""
        points = self.points
        if len(points) == 1:  # as most are
            return points[0][1]
        if self.period_ns:
            t_ns %= self.period_ns
        after = bisect_right(points, t_ns, key=_instant)
        if not after:
            return points[0][1]
        if after == len(points):
            return points[-1][1]
        return _between(points[after - 1], points[after], t_ns)

    def piece(self, t_ns: int) -> tuple[int, int]:
        """Return how long the linear piece at `t_ns` lasts, NEVER for ever, and its last amount."""
        points = self.points
        past_ns = t_ns % self.period_ns if self.period_ns else t_ns
        after = bisect_right(points, past_ns, key=_instant)
        if after < len(points):
            return points[after][0] - past_ns, points[after][1]
        if not self.period_ns:
            return NEVER, points[-1][1]
        return self.period_ns - past_ns, points[-1][1]

    def area(self, t_ns: int) -> int:
        """Return the integral from the start on, in amounts times nanoseconds; 0 before it."""
        if t_ns <= 0:
            return 0
        if len(self.points) == 1:
            return self.points[0][1] * t_ns
        if not self.period_ns:
            return self._area_within(t_ns)
        rounds, rest_ns = divmod(t_ns, self.period_ns)
        whole = rounds * self._area_within(self.period_ns) if rounds else 0
        return whole + self._area_within(rest_ns)

    def _area_within(self, t_ns: int) -> int:
        """Return the integral within one period."""
        sums = _areas(self)
        points = self.points
        after = bisect_right(points, t_ns, key=_instant)
        if not after:
            return points[0][1] * t_ns
        at_ns, amount = points[after - 1]
        last = amount if after == len(points) else _between(points[after - 1], points[after], t_ns)
        return sums[after - 1] + (amount + last) * (t_ns - at_ns) // 2

    def ceiling(self) -> int:
        """Return the largest amount that it ever takes."""
        return max(amount for _, amount in self.points)


@lru_cache(maxsize=1024)
def _areas(curve: Curve) -> tuple[int, ...]:
    """Return the integral up to each point of a curve."""
    points = curve.points
    sums = [points[0][0] * points[0][1]]
    for before, after in itertools.pairwise(points):
        sums.append(sums[-1] + (before[1] + after[1]) * (after[0] - before[0]) // 2)
    return tuple(sums)


def _instant(point: tuple[int, int]) -> int:
    return point[0]


def _between(before: tuple[int, int], after: tuple[int, int], t_ns: int) -> int:
    span_ns = after[0] - before[0]
    return before[1] + (after[1] - before[1]) * (t_ns - before[0]) // span_ns


@lru_cache(maxsize=4096)
def constant_curve(amount: int) -> Curve:
    """Return the curve of an amount that stays; equal ones are shared."""
    return Curve(((0, amount),))


Term = tuple[Curve, int]  # a curve and the instant of its start


def sum_at(terms: Sequence[Term], base: int, now_ns: int) -> int:
    """Add up what curves amount to at an instant."""
    return base + sum(curve.at(now_ns - start_ns) for curve, start_ns in terms)


def next_crossing(terms: Sequence[Term], base: int, limit: int, now_ns: int) -> int:
    """Return the first instant from `now_ns` on at which the sum is above a limit, NEVER if none.

    A long search ends early with the instant from which to search on.
    """
    ceiling = base
    moving = []
    for curve, start_ns in terms:
        ceiling += curve.ceiling()
        if len(curve.points) == 1:
            base += curve.points[0][1]
        else:
            moving.append((curve, start_ns))
    if ceiling <= limit:
        return NEVER
    for _ in range(max(PIECES_MAX // max(len(moving), 1), PIECES_MIN)):
        total = sum_at(moving, base, now_ns)
        if total > limit:
            return now_ns
        pieces = [curve.piece(now_ns - start_ns) for curve, start_ns in moving]
        length_ns = min((lasts_ns for lasts_ns, _ in pieces), default=NEVER)
        if length_ns == NEVER:
            return NEVER
        last = base  # at the end of the stretch, before a jump there
        for (curve, start_ns), (lasts_ns, amount) in zip(moving, pieces, strict=True):
            ends = lasts_ns == length_ns
            last += amount if ends else curve.at(now_ns + length_ns - start_ns)
        if last > limit:
            within_ns = -(-(limit + 1 - total) * length_ns // (last - total))
            if within_ns < length_ns:  # at the end itself a jump may undo it
                return now_ns + within_ns
        now_ns += length_ns
    return now_ns


class CurveSpec(Spec):
    """How an amount changes from the start of a container, or of a node's kubelet."""

    curve: CurveShape = CurveShape.CONSTANT
    value: QuantityField | None = None
    from_: Annotated[QuantityField | None, Field(alias="from")] = None
    to: QuantityField | None = None
    duration: DurationNs | None = None
    after: DurationNs | None = None
    period: DurationNs | None = None
    points: Annotated[tuple["CurvePoint", ...], Field(max_length=POINTS_MAX)] = ()

    @model_validator(mode="after")
    def _has_what_its_curve_needs(self) -> Self:
        needed, optional = _NEEDS[self.curve]
        given = {name.removesuffix("_") for name in self.model_fields_set} - {"curve"}
        missing = needed - given
        if missing:
            raise ValueError(f"{self.curve.value} needs {_listed(missing)}")
        surplus = given - needed - optional
        if surplus:
            raise ValueError(f"{self.curve.value} does not take {_listed(surplus)}")
        if self.curve is CurveShape.POINTS and not self.points:
            raise ValueError("points must not be empty")
        if self.period == 0:
            raise ValueError("period must be above 0s")
        instants = [point.at for point in self.points]
        if instants != sorted(instants):
            raise ValueError("points must be in the order of their times")
        if self.period and instants and instants[-1] > self.period:
            raise ValueError("a point lies behind the period")
        return self

    def compiled(self, scale: int = 1) -> Curve:
        """Return the curve in whole units, or in parts of `scale` of them (1000: milli-units)."""
        shape = self.curve
        if shape is CurveShape.CONSTANT:
            return constant_curve(_units(self.value, scale))
        if shape is CurveShape.POINTS:
            points = tuple((point.at, _units(point.value, scale)) for point in self.points)
            return Curve(points, self.period or 0)
        first, last = _units(self.from_, scale), _units(self.to, scale)
        at_ns, period_ns = self.after or 0, self.period or 0
        if shape is CurveShape.SAWTOOTH:
            return Curve(((0, first), (period_ns, last)), period_ns)
        head = ((0, first),) if at_ns or shape is CurveShape.STEP else ()
        return Curve((*head, (at_ns, first), (at_ns + (self.duration or 0), last)))


def _listed(names: set[str] | frozenset[str]) -> str:
    return " and ".join(repr(name) for name in sorted(names))


def _units(quantity: Quantity | None, scale: int) -> int:
    """Return an amount in parts of `scale` of a unit, rounded up."""
    assert quantity is not None, "checked above"
    return -(-quantity.nano * scale // NANO)


class CurvePoint(Spec):
    """One corner of a curve of points; two at one time are a jump."""

    at: DurationNs
    value: QuantityField


_NEEDS: dict[CurveShape, tuple[frozenset[str], frozenset[str]]] = {
    CurveShape.CONSTANT: (frozenset({"value"}), frozenset()),
    CurveShape.RAMP: (frozenset({"from", "to", "duration"}), frozenset({"after"})),
    CurveShape.STEP: (frozenset({"from", "to", "after"}), frozenset()),
    CurveShape.SAWTOOTH: (frozenset({"from", "to", "period"}), frozenset()),
    CurveShape.POINTS: (frozenset({"points"}), frozenset({"period"})),
}
CurveSpec.model_rebuild()


def _from_quantity(value: object) -> object:
    """Read a bare amount as a constant curve."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return {"value": parse_quantity(value)}
    return value


_Written = Annotated[CurveSpec, BeforeValidator(_from_quantity)]
CurveField = Annotated[Curve, CompiledFrom(_Written, Curve, CurveSpec.compiled)]
"""A curve, or an amount that stays; compiled when it is read."""
MilliCurveField = Annotated[
    Curve, CompiledFrom(_Written, Curve, partial(CurveSpec.compiled, scale=1000))
]
"""The same in thousandths of its unit."""


class Usage(Spec):
    """What one container uses, or what a node uses outside of its pods; None: the default."""

    memory: CurveField | None = None  # working set
    cpu_milli: Annotated[MilliCurveField | None, Field(alias="cpu")] = None
    ephemeral_storage: CurveField | None = None
    inodes: CurveField | None = None
    pids: CurveField | None = None
    swap: CurveField | None = None
    network_receive: CurveField | None = None  # bytes a second
    network_transmit: CurveField | None = None


UNDECLARED = Usage()


@lru_cache(maxsize=1024)
def curve_of(text: str, scale: int = 1) -> Curve | None:
    """Read an annotation; None when it cannot be read: then it is ignored."""
    try:
        value = json.loads(text) if text.lstrip().startswith("{") else {"value": text}
        return CurveSpec.model_validate(value).compiled(scale)
    except (ValidationError, ValueError):
        return None
