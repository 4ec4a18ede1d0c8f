"""Inputs that are nearly right: samples, changed by what breaks parsers.

Everything is drawn from one `Random`, so the number of an input is enough to make it again.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

import orjson

BYTES_MAX = 65536
NUMBERS = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x00", b"\x01\x00\x00\x01")
"""Lengths, windows and settings at their ends; 16 MiB and one byte."""
TEXTS = (
    b"null",
    b"[]",
    b"{}",
    b"-1",
    b"1e999",
    b"true",
    b'""',
    b'"\\ud800"',
    b'"' + b"9" * 5000 + b'"',
    b"[" * 2000,
    b'{"a":' * 300,
    b"\xff\xfe",
    b"\n",
    b'"',
    b"}",
)
VALUES = (
    *(b"null", b"[]", b"{}", b"0", b"-1", b"1.5", b"true", b'""', b'"x"', b"[null]", b"[[]]"),
    *(b'"' + b"9" * 5000 + b'"', b'{"name":null}', b"[{}]", b"[7]", b'"2026-99-99T99:99:99Z"'),
)
DIGITS = (b"\xff" * 9 + b"\x01", b"\xff" * 40, b"\x80", b"\x00", b"\xff\xff\xff\xff\x0f")
"""Numbers of protobuf and HPACK."""


def mutated(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """Return a sample with one to six changes."""
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        data = _MUTATORS[random.randrange(len(_MUTATORS))](data, random, others)
    return data[:BYTES_MAX]


def misshapen(data: bytes, random: Random) -> bytes:
    """Return JSON that is well formed, with up to three values of another kind, or gone."""
    whole: Any = orjson.loads(data)
    for _ in range(random.randrange(4)):
        at = whole
        while True:
            keys = list(at) if isinstance(at, dict) else range(len(at))
            if not keys:
                break
            key = random.choice(keys)
            below = at[key]
            if isinstance(below, dict | list) and below and random.randrange(5):
                at = below
                continue
            if random.randrange(4):
                at[key] = orjson.loads(random.choice(VALUES))
            else:
                del at[key]
            break
    return orjson.dumps(whole) + b"\n" * data.endswith(b"\n")


def chunks(data: bytes, random: Random) -> list[bytes]:
    """Cut a stream at up to eight places."""
    edges = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(9)))
    return [data[a:b] for a, b in zip([0, *edges], [*edges, len(data)], strict=True) if a < b]


def _span(data: bytes, random: Random) -> tuple[int, int]:
    begin = random.randrange(len(data) + 1)
    return begin, min(len(data), begin + random.choice((1, 1, 2, 4, 9, 40, 400)))


def _flip(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes((data[at] ^ 1 << random.randrange(8),)) + data[at + 1 :]


def _cut(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    begin, end = _span(data, random)
    return data[:begin] + data[end:]


def _repeat(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    begin, end = _span(data, random)
    return data[:end] + data[begin:end] * random.choice((1, 1, 3, 50)) + data[end:]


def _end(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _noise(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    begin, end = _span(data, random)
    return data[:begin] + random.randbytes(end - begin) + data[end:]


def _number(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    at = random.randrange(len(data) + 1)
    number = random.choice(NUMBERS)
    return data[:at] + number + data[at + random.choice((0, len(number))) :]


def _digits(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.choice(DIGITS) + data[at + random.randrange(2) :]


def _text(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    """Put another value where one of JSON's stands."""
    begin = data.find(b":", random.randrange(len(data) + 1)) + 1
    end = data.find(b",", begin) if random.randrange(2) else begin
    return data[:begin] + random.choice(TEXTS) + data[max(begin, end) :]


def _splice(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    other = random.choice(others) if others else data
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]


_MUTATORS = (_flip, _cut, _repeat, _end, _noise, _number, _digits, _text, _splice)
