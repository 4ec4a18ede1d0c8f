"""The lines through what was measured, and what they say."""

from pathlib import Path

import pytest

from bench.slopes import Line, line, plot, points_of, table


def report(fidelity: str) -> dict[str, object]:
    return {
        "fidelity": fidelity,
        "renew_s": 10,
        "results": {
            str(size): {
                "rss_mb": 80 + 0.003 * size,
                "idle_percent": 1 + 0.001 * size,
                "start_cpu_ms": 0.5,
            }
            for size in (10_000, 1_000, 20_000)
        },
    }


def test_a_line_goes_through_points_on_it() -> None:
    assert line([(0, 1), (10, 6)]) == Line(1, 0.5)
    fitted = line(points_of(report("light"), "rss_mb"))
    assert fitted == pytest.approx((80, 0.003))
    assert fitted.at(100_000) == pytest.approx(380)


def test_what_a_fleet_beyond_them_takes() -> None:
    text = table([report("light"), report("kubelet")], 100_000)
    rows = {each.split(" | ")[0].strip("| "): each for each in text.splitlines()}
    assert rows["processes, each with 50 % of a core when idle"].endswith("| 3 | 3 |")
    assert rows["memory of all"].endswith("| 0.5 GB | 0.5 GB |")
    assert rows["connections"].endswith("| 6 | 100,000 |")
    assert rows["source addresses for them"].endswith("| 1 | 4 |")


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    drawn = tmp_path / "slopes.svg"
    plot([report("light"), report("kubelet")], drawn)
    assert "nodes" in drawn.read_text()
