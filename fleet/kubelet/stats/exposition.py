"""Prometheus' text format, as Go's client library writes it.

Source: github.com/prometheus/common/expfmt/text_create.go; component-base/metrics/desc.go for the
level of stability before each help text.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fleet.clock import NS_PER_S
from fleet.kubelet.tally import DEFAULT_BOUNDS, Durations

_EXPONENT_MIN = -4
_EXPONENT_MAX = 6
PLAIN_FROM, PLAIN_BELOW = 1e-4, 1_000_000
"""Between them numbers are written without an exponent."""
EXACT_BELOW = 1 << 53
"""Integers below are floats of the same digits."""
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


class Family(NamedTuple):
    """One metric: name, help, type; the labels of its series in the order of their names."""

    name: str
    help: str
    type: str = "gauge"
    labels: tuple[str, ...] = ()

    def head(self) -> str:
        """Return the two lines before its series."""
        return f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.type}\n"


Row = tuple[tuple[str, ...], float]
"""The values of the labels, and the sample."""


def text_of(family: Family, rows: Iterable[Row], stamp: str = "") -> str:
    """Return a metric with its series, sorted by labels; `stamp` is what follows each value."""
    sorted_rows = sorted(rows)
    if not sorted_rows:
        return ""
    lines = [family.head()]
    for values, sample in sorted_rows:
        shown = labels_of(family.labels, values)
        lines.append(f"{family.name}{shown} {go_float(sample)}{stamp}\n")
    return "".join(lines)


def labels_of(names: Sequence[str], values: Sequence[str]) -> str:
    """Return the labels of a series in braces, "" without any."""
    if not names:
        return ""
    shown = (f'{name}="{escaped(value)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(shown) + "}"


def escaped(value: str) -> str:
    """Return the value of a label as it stands between quotes."""
    if value.isprintable() and '"' not in value and "\\" not in value:
        return value  # as names are, at a quarter of the cost
    return value.translate(_ESCAPES)


def one_text(family: Family, value: float) -> str:
    """Return a metric without labels."""
    return f"{family.head()}{family.name} {go_float(value)}\n"


def steady_text(
    family: Family, count: int, took: float, bounds: Iterable[float] = DEFAULT_BOUNDS
) -> str:
    """Return a histogram of durations that are all the same, in the unit of its bounds."""
    return family.head() + "".join(steady_lines(family.name, count, took, bounds))


def steady_lines(
    name: str, count: float, seconds: float, bounds: Iterable[float], label: str = ""
) -> Iterator[str]:
    """Yield the lines of one series of such a histogram."""
    start, shown = (f"{label},", f"{{{label}}}") if label else ("", "")
    for bound in bounds:
        below = count if seconds <= bound else 0
        yield f'{name}_bucket{{{start}le="{go_float(bound)}"}} {go_float(below)}\n'
    yield f'{name}_bucket{{{start}le="+Inf"}} {go_float(count)}\n'
    yield f"{name}_sum{shown} {go_float(count * seconds)}\n"
    yield f"{name}_count{shown} {go_float(count)}\n"


def durations_text(family: Family, series: Iterable[tuple[str, Durations]]) -> str:
    """Return a histogram by the labels of its series, as they stand between the braces."""
    lines = []
    for label, found in series:
        start = f"{label}," if label else ""
        count = 0
        for bound, inside in zip((*found.bounds, float("inf")), found.counts, strict=True):
            count += inside
            bucket = f'{{{start}le="{go_float(bound)}"}}'
            lines.append(f"{family.name}_bucket{bucket} {go_float(count)}\n")
        shown = f"{{{label}}}" if label else ""
        lines.append(f"{family.name}_sum{shown} {go_float(found.total_ns / NS_PER_S)}\n")
        lines.append(f"{family.name}_count{shown} {go_float(count)}\n")
    return family.head() + "".join(lines) if lines else ""


def go_float(value: float) -> str:
    """Return a number as Go's strconv.FormatFloat(value, 'g', -1, 64) writes it."""
    if isinstance(value, int) and -PLAIN_BELOW < value < EXACT_BELOW:
        return str(value) if value < PLAIN_BELOW else _large(str(value))
    text = repr(float(value))
    if PLAIN_FROM <= value < PLAIN_BELOW:
        return text.removesuffix(".0")
    if text in {"inf", "-inf", "nan"}:
        return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}[text]
    sign = "-" if text.startswith("-") else ""
    mantissa, _, power = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    if fraction == "0":
        fraction = ""
    digits = whole + fraction
    stripped = digits.lstrip("0")
    exponent = len(whole) + int(power or 0) - 1 - (len(digits) - len(stripped))
    stripped = stripped.rstrip("0")
    if not stripped:
        return f"{sign}0"
    if _EXPONENT_MIN <= exponent < _EXPONENT_MAX:
        return sign + _plain(stripped, exponent)
    tail = f".{stripped[1:]}" if len(stripped) > 1 else ""
    return f"{sign}{stripped[0]}{tail}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _large(digits: str) -> str:
    mantissa = digits.rstrip("0")
    tail = f".{mantissa[1:]}" if len(mantissa) > 1 else ""
    return f"{mantissa[0]}{tail}e+{len(digits) - 1:02d}"


def _plain(digits: str, exponent: int) -> str:
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    if len(digits) <= exponent + 1:
        return digits + "0" * (exponent + 1 - len(digits))
    return f"{digits[: exponent + 1]}.{digits[exponent + 1 :]}"
