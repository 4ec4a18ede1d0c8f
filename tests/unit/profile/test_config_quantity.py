"""Durations and quantities: upstream's own examples, and round trips."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.quantity import (
    NANO,
    Quantity,
    QuantityFormat,
    format_duration,
    parse_duration,
    parse_positive_duration,
    parse_quantity,
    whole_quantity,
)


@pytest.mark.parametrize(
    ("text", "value_ns", "printed"),
    [
        ("0", 0, "0s"),
        ("10s", 10_000_000_000, "10s"),
        ("1h2m3.5s", 3_723_500_000_000, "1h2m3.5s"),
        ("300ms", 300_000_000, "300ms"),
        ("1.5us", 1_500, "1.5µs"),
        ("1.5µs", 1_500, "1.5µs"),
        (".5s", 500_000_000, "500ms"),
        ("5.s", 5_000_000_000, "5s"),
        ("-1m", -60_000_000_000, "-1m0s"),
        ("+90s", 90_000_000_000, "1m30s"),
        ("100h", 360_000_000_000_000, "100h0m0s"),
        ("7ns", 7, "7ns"),
    ],
)
def test_durations_are_read_and_printed_as_go_does(text: str, value_ns: int, printed: str) -> None:
    assert parse_duration(text) == value_ns
    assert format_duration(value_ns) == printed


@pytest.mark.parametrize(
    "text", ["", "10", "10x", "s", ".s", "1 s", "-", "1s ", "3000000h", 10, None]
)
def test_what_is_no_duration_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(ValueError, match="is not a duration such as 10s or 5m"):
        parse_duration(text)


def test_a_negative_duration_is_refused_where_it_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="'-1s' is negative"):
        parse_positive_duration("-1s")


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_every_duration_survives_printing(value_ns: int) -> None:
    assert parse_duration(format_duration(value_ns)) == value_ns


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("3840Mi", "3840Mi"),
        ("1.5Gi", "1536Mi"),
        ("1024Mi", "1Gi"),
        ("0.1Ki", "102400m"),
        ("1Ki", "1Ki"),
        ("0.5Ki", "512"),
        ("100m", "100m"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("0.5", "500m"),
        (".5", "500m"),
        ("5.", "5"),
        ("1500", "1500"),
        ("100000", "100k"),
        ("1E", "1E"),
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("12e6", "12e6"),
        ("1e-3", "1e-3"),
        ("150e2", "15e3"),
        ("0.1n", "1n"),
        ("-1.5", "-1500m"),
        ("-2Ki", "-2Ki"),
        ("0Mi", "0"),
        ("999999999999999999999", "9223372036854775807"),
        ("1e99999999999999999999999", "9223372036854775807e0"),
        (8, "8"),
        (0.5, "500m"),
    ],
)
def test_quantities_print_in_canonical_form(text: object, printed: str) -> None:
    assert str(parse_quantity(text)) == printed.removesuffix("e0")


@pytest.mark.parametrize(
    "text", ["", ".", "Ki", "1KiB", "1 Gi", "1e", "++1", "1.2.3", True, None, []]
)
def test_what_is_no_quantity_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(ValueError, match="is not a quantity such as"):
        parse_quantity(text)


QUANTITIES = st.builds(
    Quantity,
    st.integers(-(2**63) * NANO + NANO, (2**63 - 1) * NANO),
    st.sampled_from(QuantityFormat),
)


@given(QUANTITIES)
def test_every_quantity_survives_printing(quantity: Quantity) -> None:
    again = parse_quantity(str(quantity))
    assert again.nano == quantity.nano
    if again.format is quantity.format:  # 125000 has no suffix that would say binary
        assert str(again) == str(quantity)


def test_values_round_up_as_upstream() -> None:
    assert parse_quantity("1500m").value == 2
    assert parse_quantity("-1500m").value == -1
    assert parse_quantity("1u").milli == 1
    assert parse_quantity(parse_quantity("2")).value == 2


def test_subtraction_keeps_the_format_and_stops_at_zero() -> None:
    assert str(parse_quantity("4Gi").minus(parse_quantity("100M"))) == "4194967296"
    assert str(parse_quantity("1").minus(parse_quantity("90m"))) == "910m"
    assert str(parse_quantity("1Gi").minus(parse_quantity("2Gi"))) == "0"
    assert whole_quantity(0).minus(parse_quantity("1")).format is QuantityFormat.DECIMAL_SI
