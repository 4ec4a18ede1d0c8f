"""An API server whose answers are changed on their way: all is well after it."""

import pytest
from world.fuzzed_story import play
from world.simulation import seeded

pytest_plugins = ("sim_encodings",)


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
@seeded(2)
def test_a_fleet_survives_changed_answers(seed: int, *, light: bool) -> None:
    counts = play(seed, light=light)
    assert counts.total() > 50  # `light` has few frames
    assert len(counts) > 10
