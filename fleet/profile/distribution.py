"""How long something takes: distributions that are sampled with a number drawn elsewhere."""

import enum
import math
from statistics import NormalDist
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, model_validator

from fleet.profile.schema import CompiledFrom, DurationNs, Spec
from fleet.quantity import format_duration, parse_positive_duration

_NORMAL = NormalDist()
_Z99 = _NORMAL.inv_cdf(0.99)
_U_MIN = 2.0**-53
_NO_MAX = 2**63 - 1


class Shape(enum.Enum):
    """The distributions that a document can name."""

    CONSTANT = "Constant"
    UNIFORM = "Uniform"
    NORMAL = "Normal"
    LOG_NORMAL = "LogNormal"
    EXPONENTIAL = "Exponential"


_NEEDS: dict[Shape, tuple[frozenset[str], ...]] = {
    Shape.CONSTANT: (frozenset({"value"}),),
    Shape.UNIFORM: (frozenset({"min", "max"}),),
    Shape.NORMAL: (frozenset({"mean", "stddev"}), frozenset({"mean", "p99"})),
    Shape.LOG_NORMAL: (frozenset({"median", "p99"}),),
    Shape.EXPONENTIAL: (frozenset({"mean"}), frozenset({"median"}), frozenset({"p99"})),
}


class Distribution(NamedTuple):
    """A compiled distribution. `a` and `b` are in nanoseconds, or in their logarithm."""

    shape: Shape
    a: float
    b: float = 0.0
    min_ns: int = 0
    max_ns: int = _NO_MAX

    def __str__(self) -> str:
        """Write it as people read it: `2s`, or `LogNormal, median 2s, p99 20s`."""
        if self.shape is Shape.CONSTANT:
            return format_duration(int(self.a))
        words = {"mean": self.a}
        if self.shape is Shape.UNIFORM:
            words = {"min": self.a, "max": self.b}
        elif self.shape is Shape.NORMAL:
            words |= {"stddev": self.b}
        elif self.shape is Shape.LOG_NORMAL:
            words = {"median": math.exp(self.a), "p99": math.exp(self.a + self.b * _Z99)}
        if self.shape is not Shape.UNIFORM:
            words |= {"min": self.min_ns} if self.min_ns else {}
            words |= {"max": self.max_ns} if self.max_ns < _NO_MAX else {}
        parts = (f"{name} {format_duration(_rounded(value))}" for name, value in words.items())
        return ", ".join((self.shape.value, *parts))

    def sample(self, u: float) -> int:
        """Return the nanoseconds at quantile `u` of [0, 1): the inverse of the distribution."""
        shape = self.shape
        if shape is Shape.CONSTANT:
            return int(self.a)
        if shape is Shape.UNIFORM:
            value = self.a + (self.b - self.a) * u
        elif shape is Shape.EXPONENTIAL:
            value = -self.a * math.log1p(-u)
        else:
            value = self.a + self.b * _NORMAL.inv_cdf(max(u, _U_MIN))
            if shape is Shape.LOG_NORMAL:
                value = math.exp(value)
        return min(max(round(value), self.min_ns), self.max_ns)


def _rounded(value_ns: float) -> int:
    """Return a time without the error of its logarithm: nine digits are exact."""
    return int(float(f"{value_ns:.9g}"))


def constant(value_ns: int) -> Distribution:
    """Return the distribution that always takes the same time."""
    return Distribution(Shape.CONSTANT, value_ns)


ZERO = constant(0)


def constant_of(text: str | None) -> Distribution | None:
    """Read the duration of an annotation; None when there is none, or it cannot be read."""
    try:
        return constant(parse_positive_duration(text))
    except ValueError:
        return None


class DistributionSpec(Spec):
    """A distribution as it is written: `{distribution: LogNormal, median: 2s, p99: 9s}`."""

    distribution: Shape
    value: DurationNs | None = None
    mean: DurationNs | None = None
    median: DurationNs | None = None
    stddev: DurationNs | None = None
    p99: DurationNs | None = None
    min: DurationNs | None = None
    max: DurationNs | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> "DistributionSpec":
        given = self.model_fields_set - {"distribution"}
        choices = _NEEDS[self.distribution]
        bounds = frozenset() if self.distribution is Shape.CONSTANT else {"min", "max"}
        if not any(need <= given <= need | bounds for need in choices):
            needs = " or ".join(" and ".join(sorted(need)) for need in choices)
            raise ValueError(f"{self.distribution.value} takes {needs}")
        low, high = self.min or 0, self.max if self.max is not None else _NO_MAX
        if low > high:
            raise ValueError("min is above max")
        middle = self.median or self.mean or 0
        if self.p99 is not None and self.p99 < middle:
            raise ValueError("p99 is below the median or mean")
        if self.distribution is Shape.LOG_NORMAL and not middle:
            raise ValueError("the median of a LogNormal is above 0s")
        return self

    def compiled(self) -> Distribution:
        low, high = self.min or 0, self.max if self.max is not None else _NO_MAX
        mean, median, p99 = (float(each or 0) for each in (self.mean, self.median, self.p99))
        a, b = float(self.value or 0), 0.0  # of Constant
        if self.distribution is Shape.UNIFORM:
            a, b = float(low), float(high)
        elif self.distribution is Shape.NORMAL:
            a, b = mean, (p99 - mean) / _Z99 if self.stddev is None else float(self.stddev)
        elif self.distribution is Shape.LOG_NORMAL:
            a = math.log(median)
            b = (math.log(p99 or 1) - a) / _Z99
        elif self.distribution is Shape.EXPONENTIAL:
            # By the one of the three that is given.
            a = mean or median / math.log(2) or p99 / math.log(100)
        return Distribution(self.distribution, a, b, low, high)


def _from_plain(value: object) -> object:
    """Read a plain duration as a constant."""
    if isinstance(value, str):
        parse_positive_duration(value)
        return {"distribution": Shape.CONSTANT, "value": value}
    if isinstance(value, int | float):
        parse_positive_duration(value)
    return value


_Written = Annotated[
    DistributionSpec, BeforeValidator(_from_plain, json_schema_input_type=DistributionSpec | str)
]
DistributionField = Annotated[
    Distribution, CompiledFrom(_Written, Distribution, DistributionSpec.compiled)
]
"""`2s`, or a distribution; compiled when it is read."""
