"""The garbage collector of a run: what it looks at is bounded, and cycles are still found."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from fleet.run import garbage


class Knot:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def run() -> Iterator[None]:
    before = gc.get_threshold()
    garbage.begin()
    yield
    garbage.end()
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before


def test_a_million_lasting_objects_are_never_looked_at_together() -> None:
    looked_at = []

    def count(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen = (len(gc.get_objects(generation=each)) for each in range(info["generation"] + 1))
            looked_at.append(sum(seen))

    gc.collect()
    gc.freeze()
    gc.callbacks.append(count)
    try:
        kept = [[number] for number in range(1_000_000)]
    finally:
        gc.callbacks.remove(count)
    assert len(looked_at) >= len(kept) // garbage.YOUNG_MAX - 2
    assert max(looked_at) < (garbage.TIMES + 3) * garbage.YOUNG_MAX


def test_a_few_lasting_objects_are_not_frozen_so_that_their_cycles_are_found() -> None:
    gc.collect()
    gc.freeze()
    frozen = gc.get_freeze_count()
    knot = Knot()
    gone = weakref.ref(knot)
    gc.collect()
    assert gc.get_freeze_count() == frozen
    del knot
    gc.collect()
    assert gone() is None
