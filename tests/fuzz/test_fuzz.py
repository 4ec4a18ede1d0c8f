"""200,000 inputs of `make fuzz`, 20,000 hostile pods, and what it has found before.

They are always the same ones.
"""

from pathlib import Path

import pytest
from targets import ALL, TARGETS, run_one

EACH = 200_000 // len(TARGETS)
SHARDS = 5
HOSTILE_EACH = {"commands": 9_000, "pods": 7_000}
FOUND = [line.split() for line in Path(__file__).with_name("found.txt").read_text().splitlines()]


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_protocol_errors(name: str, shard: int) -> None:
    for number in range(EACH * shard // SHARDS, EACH * (shard + 1) // SHARDS):
        run_one(name, number)


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("name", HOSTILE_EACH)
def test_no_pod_takes_more_than_its_share(name: str, shard: int) -> None:
    each = HOSTILE_EACH[name]
    for number in range(each * shard // SHARDS, each * (shard + 1) // SHARDS):
        run_one(name, number)


@pytest.mark.parametrize("line", FOUND, ids=lambda line: f"{line[0]}-{len(line[-1]) // 2}")
def test_what_was_found_stays_mended(line: list[str]) -> None:
    name, *pieces = line
    ALL[name].judge(tuple(b"" if each == "-" else bytes.fromhex(each) for each in pieces))
