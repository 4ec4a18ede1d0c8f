"""The table of the events that were seen, against a dict that does the same."""

import random

from fleet.kubelet.events import KEYS_MAX, SeenEvents


def played(keys: list[int], instants: list[int]) -> SeenEvents:
    """Count events in the table and in a dict, and compare at each step."""
    seen = SeenEvents()
    model: dict[int, tuple[int, int]] = {}
    for key, now_ns in zip(keys, instants, strict=True):
        first_ns, count = seen.take(key)
        assert (first_ns, count) == model.pop(key, (0, 0))
        first_ns = first_ns or now_ns
        if len(model) >= KEYS_MAX:
            del model[next(iter(model))]
        model[key] = (first_ns, count + 1)
        seen.put(key, first_ns, count + 1)
        assert len(seen) == len(model)
    return seen


def test_the_table_counts_as_a_dict_does() -> None:
    draw = random.Random(5)
    keys = [draw.choice((draw.getrandbits(64), draw.randrange(50))) for _ in range(6000)]
    seen = played(keys, [draw.getrandbits(61) for _ in keys])
    assert len(seen) > 1000


def test_the_event_that_was_used_least_recently_makes_room() -> None:
    keys = [*range(KEYS_MAX), 0, KEYS_MAX]
    seen = played(keys, [7] * len(keys))
    assert len(seen) == KEYS_MAX
    assert seen.take(1) == (0, 0)
    assert seen.take(0) == (7, 2)


def test_an_instant_is_not_mistaken_for_an_event() -> None:
    seen = SeenEvents()
    seen.put(1, 99, 5)
    assert seen.take(99) == (0, 0)
    seen.put(99, 1, 1)
    assert seen.take(99) == (1, 1)
    assert seen.take(1) == (99, 5)


def test_what_is_about_an_object_that_is_gone_is_dropped() -> None:
    seen = SeenEvents()
    for about in range(3):
        for event in range(4):
            seen.put(about << 32 | event, 7, 2)
    seen.drop({1, 9})
    assert len(seen) == 8
    assert seen.take(1 << 32 | 3) == (0, 0)
    assert seen.take(2 << 32 | 3) == (7, 2)
