"""Go durations and Kubernetes quantities, parsed once into integers.

A duration becomes nanoseconds. A quantity becomes nano-units and the format that it was written
in, since apimachinery keeps the format (`3840Mi` stays binary) but not the spelling (`1.5Gi` is
printed `1536Mi`).
"""

import enum
import re
import struct
from typing import NamedTuple

from fleet.clock import NS_PER_S

NANO = 1_000_000_000  # the smallest part of a quantity that apimachinery keeps, and so our unit

DURATION_HINT = "a duration such as 10s or 5m"
SHARE_HINT = "a share such as 25% or 0.25"
QUANTITY_HINT = "a quantity such as 500m, 8, 32Gi or 1e3"

_DURATION_UNITS = {
    "h": 3600 * NS_PER_S,
    "m": 60 * NS_PER_S,
    "s": NS_PER_S,
    "ms": 1_000_000,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, which Go prints
    "μs": 1_000,  # U+03BC, which Go also reads
    "ns": 1,
}
_DURATION_MAX = 2**63 - 1
_DURATION_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(h|ms|us|µs|μs|ns|m|s)")


def parse_duration(text: object) -> int:
    """Return the nanoseconds of a Go duration; ValueError says what one looks like.

    Source: time/format.go, ParseDuration.
    """
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not {DURATION_HINT}")  # noqa: TRY004 - pydantic's kind
    body = text[1:] if text[:1] in {"-", "+"} else text
    if body == "0":
        return 0
    total_ns = at = 0
    while at < len(body):
        part = _DURATION_PART.match(body, at)
        if part is None or not (part[1] or part[2]):
            break
        unit = _DURATION_UNITS[part[3]]
        fraction = part[2] or ""
        total_ns += int(part[1] or "0") * unit
        total_ns += int(fraction or "0") * unit // 10 ** len(fraction)
        at = part.end()
    if not body or at < len(body) or total_ns > _DURATION_MAX:
        raise ValueError(f"{text!r} is not {DURATION_HINT}")
    return -total_ns if text[0] == "-" else total_ns


def parse_positive_duration(text: object) -> int:
    """Return the nanoseconds of a duration that is not negative."""
    value_ns = parse_duration(text)
    if value_ns < 0:
        raise ValueError(f"{text!r} is negative")
    return value_ns


def format_duration(value_ns: int) -> str:
    """Print nanoseconds as Go does. Source: time/time.go, Duration.String."""
    if value_ns == 0:
        return "0s"
    sign = "-" if value_ns < 0 else ""
    rest = abs(value_ns)
    for unit, size in (("ns", 1), ("µs", 1_000), ("ms", 1_000_000)):
        if rest < size * 1_000 and rest < NS_PER_S:
            return f"{sign}{_decimal(rest, size)}{unit}"
    minutes, rest = divmod(rest, 60 * NS_PER_S)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(rest, NS_PER_S)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{text}"
    return f"{sign}{minutes}m{text}" if minutes else f"{sign}{text}"


def _decimal(value: int, size: int) -> str:
    """Print `value / size`, `size` a power of ten, without trailing zeros."""
    whole, part = divmod(value, size)
    digits = len(str(size)) - 1
    return f"{whole}.{part:0{digits}d}".rstrip("0") if part else str(whole)


class QuantityFormat(enum.Enum):
    """How a quantity was written. Source: apimachinery/pkg/api/resource/quantity.go, Format."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIX = {power: suffix for suffix, power in _BINARY.items()} | {0: ""}
_DECIMAL_SUFFIX = {power: suffix for suffix, power in _DECIMAL.items()}
_EXPONENT_DIGITS_MAX = 4  # a longer exponent is beyond every cap; it would only cost memory
_VALUE_MAX = (2**63 - 1) * NANO
_QUANTITY = re.compile(
    r"([+-]?)([0-9]*)(?:(?<=[0-9])\.|(?:\.(?=[0-9])))?([0-9]*)"
    r"(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]+))?"
)


class Quantity(NamedTuple):
    """An amount of a resource in nano-units, and the format it is printed in."""

    nano: int
    format: QuantityFormat = QuantityFormat.DECIMAL_SI

    @property
    def value(self) -> int:
        """Return whole units, rounded up. Source: Quantity.Value."""
        return -(-self.nano // NANO)

    @property
    def milli(self) -> int:
        """Return thousandths, rounded up. Source: Quantity.MilliValue."""
        return -(-self.nano // (NANO // 1000))

    def minus(self, other: "Quantity") -> "Quantity":
        """Subtract and keep the format; never below zero.

        Source: Quantity.Sub, and pkg/kubelet/nodestatus/setters.go, MachineInfo for the floor.
        """
        kept = other.format if self.nano == 0 else self.format
        return Quantity(max(self.nano - other.nano, 0), kept)

    def __str__(self) -> str:
        """Print in canonical form. Source: Quantity.CanonicalizeBytes."""
        if self.nano == 0:
            return "0"
        if self.format is QuantityFormat.BINARY_SI:
            whole, part = divmod(self.nano, NANO)
            # Below 1024, or with a fraction, binary suffixes would lose precision.
            if not part and abs(whole) >= 1024:
                return _print_binary(whole)
        mantissa, power = self.nano, -9
        while mantissa % 1000 == 0:
            mantissa //= 1000
            power += 3
        if self.format is QuantityFormat.DECIMAL_EXPONENT:
            return f"{mantissa}e{power}" if power else str(mantissa)
        return f"{mantissa}{_DECIMAL_SUFFIX[power]}"


def _print_binary(whole: int) -> str:
    power = 0
    while whole % 1024 == 0:
        whole //= 1024
        power += 10
    return f"{whole}{_BINARY_SUFFIX[power]}"


def parse_quantity(text: object) -> Quantity:
    """Return a quantity; YAML numbers are read as written. ValueError says what one looks like.

    Rounds up to the next nano-unit and caps at 2^63-1, as upstream.
    Source: apimachinery/pkg/api/resource/quantity.go, ParseQuantity.
    """
    if isinstance(text, Quantity):
        return text
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"{text!r} is not {QUANTITY_HINT}")  # noqa: TRY004 - pydantic's kind
    part = _QUANTITY.fullmatch(str(text))
    if part is None or not (part[2] or part[3]):
        raise ValueError(f"{str(text)!r} is not {QUANTITY_HINT}")
    sign, whole, fraction, suffix, exponent = part.groups()
    digits = int(whole + fraction)
    form, times, power = _scale(suffix or "", exponent)
    amount = digits * times * NANO
    shift = power - len(fraction)
    nano = amount * 10**shift if shift >= 0 else -(-amount // 10**-shift)
    nano = min(nano, _VALUE_MAX)
    if form is QuantityFormat.BINARY_SI and 0 < nano < NANO:
        form = QuantityFormat.DECIMAL_SI
    return Quantity(-nano if sign == "-" else nano, form)


def _scale(suffix: str, exponent: str | None) -> tuple[QuantityFormat, int, int]:
    """Return the format, the binary factor and the power of ten of a suffix."""
    if exponent is not None:
        limit = 10**_EXPONENT_DIGITS_MAX - 1
        power = max(-limit, min(int(exponent), limit)) if len(exponent) < 20 else limit
        return QuantityFormat.DECIMAL_EXPONENT, 1, power
    if suffix in _BINARY:
        return QuantityFormat.BINARY_SI, 1 << _BINARY[suffix], 0
    return QuantityFormat.DECIMAL_SI, 1, _DECIMAL[suffix]


def parse_share(text: object) -> float:
    """Return the share that `25%` or `0.25` is; ValueError says what one looks like.

    A bare number above 1 is refused: a user who writes 10 means 10 %, and not 1000 %.
    """
    number = str(text).removesuffix("%")
    try:
        share = float(number)
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise ValueError(f"{text!r} is not {SHARE_HINT}")
    if number != str(text):
        return share / 100
    if share > 1:
        raise ValueError(f"{text!r} is not {SHARE_HINT}; for {share:g} percent write {share:g}%")
    return share


def share_of(amount: int, percent: float) -> int:
    """Return a percentage as upstream computes one: it keeps percentages as float32."""
    return int(amount * _as_float32(_as_float32(percent) / 100))


def _as_float32(value: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


def whole_quantity(value: int, form: QuantityFormat = QuantityFormat.BINARY_SI) -> Quantity:
    """Build a quantity of whole units. Source: resource.NewQuantity."""
    return Quantity(value * NANO, form)
