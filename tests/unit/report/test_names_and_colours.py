"""Report, dashboard and Grafana: one name and one colour for one thing."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from run_files import write_run

from fleet.dashboard import fleet_tab
from fleet.report.appearance import CHARTS, FAINT, GREY, PALETTE, places
from fleet.report.curves import plots_of
from fleet.report.html_report import page
from fleet.report.run_directory import read_run
from tools import grafana


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "plotted"
    write_run(path)
    return path


def test_a_report_has_the_names_and_colours_of_the_table(run: Path) -> None:
    plots = plots_of(read_run(run))
    assert len(plots) >= 12
    text = page(read_run(run))
    [content] = re.findall(r'<script type="application/json" id="plots">(.*?)</script>', text)
    for plot, drawn in zip(plots, json.loads(content)["plots"], strict=True):
        labels = [each["label"] for each in drawn["series"]]
        if CHARTS[plot.name].lines:
            assert set(labels) <= set(CHARTS[plot.name].lines), plot.name
        for place, each in zip(places(plot.name, labels), drawn["series"], strict=True):
            shown = "--faint" if place == GREY else f"--s{place + 1}"
            assert each["colour"] == shown, each["label"]
    for number, colour in enumerate(PALETTE, 1):
        assert f"--s{number}:{colour.light}" in text
        assert f"--s{number}:{colour.dark}" in text


def test_grafana_has_them_too() -> None:
    titles = {chart.title: name for name, chart in CHARTS.items()}
    found: list[dict[str, Any]] = json.loads(grafana.DASHBOARD.read_text())["panels"]
    shared = [panel for panel in found if panel["title"] in titles]
    assert len(shared) >= 10
    coloured = 0
    for panel in shared:
        lines = CHARTS[titles[panel["title"]]].lines
        legends = {each["legendFormat"] for each in panel["targets"]}
        if lines and not any("{{" in each for each in legends):
            assert legends <= set(lines), panel["title"]
        for override in panel["fieldConfig"]["overrides"]:
            place = lines[override["matcher"]["options"]]
            [color] = override["properties"]
            hue = FAINT.dark if place == GREY else PALETTE[place].light
            assert color == {"id": "color", "value": {"mode": "fixed", "fixedColor": hue}}
            coloured += 1
    assert coloured >= 15


def test_the_dashboard_has_them_too() -> None:
    found = fleet_tab.charts()
    assert len(found) == len(fleet_tab.CHARTED)
    for (name, unit, own, measured), chart in zip(fleet_tab.CHARTED, found, strict=True):
        assert (chart["title"], chart["unit"]) == (CHARTS[name].title, unit)
        lines: Any = chart["lines"]
        for key, label in [*own.items(), *((f"{name}/{each}", each) for each in measured)]:
            place = CHARTS[name].lines[label]
            assert lines[key] == [label, "--faint" if place == GREY else f"--s{place + 1}"]
    text = fleet_tab.page()
    assert json.dumps(found) in text
    assert f"--s1:{PALETTE[0].light}" in text
    assert f"--s1:{PALETTE[0].dark}" in text
    assert not re.search(r"/\*[A-Z]+\*/", text)


def test_lines_of_one_plot_differ_and_those_without_a_name_get_what_is_left() -> None:
    assert places("leases", ["p99", "p50"]) == [1, 0]
    assert places("leases", ["p99"]) == [1]
    assert places("requests", ["PUT leases", "PATCH nodes"]) == [0, 1]
    assert places("leases", ["p99", "something"]) == [1, 0]
    many = places("requests", [f"kind {number}" for number in range(8)])
    assert many == [0, 1, 2, 3, 4, 5, 0, 1]
    hues = [hue for each in (*PALETTE, FAINT) for hue in each]
    assert len(set(hues)) == len(hues)
