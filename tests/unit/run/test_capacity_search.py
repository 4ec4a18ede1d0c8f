"""The search of `fleet capacity`, and what its runs are asked."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import UsageError
from fleet.run.capacity import CapacitySearch
from fleet.run.capacity_command import arguments_of, options_of, text


def searched(search: CapacitySearch, capacity: int) -> list[int]:
    """Let every size up to a capacity hold; return what was tried."""
    tried = []
    while nodes := search.next():
        tried.append(nodes)
        search.note(nodes, held=nodes <= capacity)
        assert len(tried) < 100
    return tried


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(0, 30_000), st.integers(1, 3))
def test_what_is_found_is_within_the_precision(
    first: int, most: int, capacity: int, tries: int
) -> None:
    search = CapacitySearch(first, most, 0.1, tries)
    tried = searched(search, capacity)
    assert max(tried) <= most
    if capacity >= most:
        assert (search.held, search.broke) == (most, 0)
        return
    assert search.held <= capacity < search.broke
    assert search.broke - search.held <= max(1, search.held * 0.1)
    assert tried.count(search.broke) == tries


def test_a_size_that_broke_once_may_hold_at_the_next_try() -> None:
    search = CapacitySearch(100, 100, 0.1, 2)
    assert search.next() == 100
    search.note(100, held=False)
    assert search.next() == 100
    search.note(100, held=True)
    assert (search.next(), search.held, search.broke) == (0, 100, 0)


def test_sizes_are_round_where_the_gap_has_room() -> None:
    assert searched(CapacitySearch(100, 20_000, 0.1, 1), 1_333) == [
        *(100, 200, 400, 800, 1_600),
        *(1_200, 1_400, 1_300),
    ]


def test_runs_have_the_options_of_spawn_as_they_were_given() -> None:
    given = {"fidelity": "light", "profile": ("a=1", "b=2"), "fsync": True, "no_taint": False}
    assert arguments_of(None, "75s", 100, {**given, "profile": (), "seed": None}) == [
        *("spawn", "--duration=75s", "--fidelity=light", "--fsync"),
    ]
    assert arguments_of("zone-outage", "75s", 100, {"etcd_flag": ("a=1", "b=2")}) == [
        *("run", "zone-outage", "--etcd-flag=a=1", "--etcd-flag=b=2"),
    ]


@pytest.mark.parametrize(
    ("scenario", "options", "told"),
    [
        (None, {"kubeconfig": Path("k")}, "confirm the cluster with --confirm-cluster"),
        (None, {"seed": -1}, "--seed: "),
        ("zone-outrage", {}, "did you mean 'zone-outage'"),
    ],
)
def test_what_no_run_would_take_is_one_line(
    scenario: str | None, options: dict[str, object], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        arguments_of(scenario, "75s", 100, options)


@pytest.mark.parametrize(
    ("changed", "flag"),
    [
        ({"first": 0}, "--first"),
        ({"most": 0}, "--max-nodes"),
        ({"tries": 0}, "--tries"),
        ({"precision": "ten"}, "--precision"),
        ({"ready_within": "1 day"}, "--ready-within"),
    ],
)
def test_an_option_of_the_search_that_is_wrong_is_named(
    changed: dict[str, object], flag: str
) -> None:
    good = {"first": 1, "most": 9, "precision": "10%", "tries": 1, "ready_within": "1m"}
    with pytest.raises(UsageError, match=f"^{flag}: "):
        options_of(**{**good, **changed}, directory=None)  # type: ignore[arg-type]


def test_the_answer_lists_the_sizes_in_order() -> None:
    probes = [
        {"nodes": 8, "verdict": "fail", "ready_s": None, "shown": "", "told": "No."},
        {"nodes": 4, "verdict": "pass", "ready_s": 2.0, "shown": "Latency 1 s of 2 s", "told": ""},
    ]
    content = {"held": 4, "broke": 8, "what_broke": "No.", "took_s": 60.0, "probes": probes}
    lines = text(content, Path("there")).splitlines()
    assert lines[0] == "fleet capacity: 4 nodes held, 8 did not (60.0 s)"
    assert [line.split()[0] for line in lines[4:6]] == ["4", "8"]
    assert lines[-1] == "there/capacity.json"
