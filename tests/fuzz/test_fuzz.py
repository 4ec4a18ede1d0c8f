"""200,000 inputs of `make fuzz`, always the same ones, and what it has found before."""

from pathlib import Path

import pytest
from targets import TARGETS, run_one

EACH = 200_000 // len(TARGETS)
SHARDS = 5
FOUND = [line.split() for line in Path(__file__).with_name("found.txt").read_text().splitlines()]


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_protocol_errors(name: str, shard: int) -> None:
    for number in range(EACH * shard // SHARDS, EACH * (shard + 1) // SHARDS):
        run_one(name, number)


@pytest.mark.parametrize("line", FOUND, ids=lambda line: f"{line[0]}-{len(line[-1]) // 2}")
def test_what_was_found_stays_mended(line: list[str]) -> None:
    name, *pieces = line
    TARGETS[name].judge(tuple(b"" if each == "-" else bytes.fromhex(each) for each in pieces))
