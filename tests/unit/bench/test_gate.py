"""The gate is red for one figure that is more than 10 % worse, whatever the others gained."""

import pytest

from bench.gate import ROWS, judged

BASE = {"renewal_us": 100.0, "node_kb": 60.0, "pod_kb": 5.0, "ready_s": 10.0}


@pytest.mark.parametrize("key", [key for key, *_ in ROWS])
def test_one_figure_is_enough(key: str) -> None:
    better = {other: value / 2 for other, value in BASE.items()}
    for factor, worse in ((1.09, []), (1.11, [key])):
        now = {**better, key: BASE[key] * factor}
        lines, found = judged([(BASE, now), (BASE, now)])
        assert found == worse
        assert sum("WORSE" in line for line in lines) == len(worse)


def test_the_best_round_of_each_tree_counts() -> None:
    slow = {key: value * 3 for key, value in BASE.items()}
    assert judged([(BASE, slow), (slow, BASE)])[1] == []
    assert judged([(BASE, slow), (slow, slow)])[1] == [key for key, *_ in ROWS]
