"""The Grafana dashboard: it is what its generator says, and asks for metrics that there are."""

import json
import re

from fleet.controlplane.options import APISERVER
from fleet.report.control_plane import FAMILIES
from fleet.report.figure import Kind
from fleet.report.figures import metrics
from tools import grafana

SUFFIX = {Kind.COUNTER: "_total", Kind.HISTOGRAM: "_bucket"}


def exposed() -> set[str]:
    return {f"fleet_{each.metric}{SUFFIX.get(each.kind, '')}" for each in metrics()}


def queries() -> list[str]:
    found = json.loads(grafana.DASHBOARD.read_text())
    return [target["expr"] for panel in found["panels"] for target in panel.get("targets", ())]


def test_the_file_is_what_the_generator_says() -> None:
    assert grafana.DASHBOARD.read_text() == grafana.text(), "run `make docs`"


def test_every_query_asks_for_a_metric_that_there_is() -> None:
    asked = {
        name for query in queries() for name in re.findall(r"\b((?:fleet|apiserver)_\w+)", query)
    }
    ours = {name for name in asked if name.startswith("fleet_")}
    assert len(ours) > 15
    assert ours <= exposed()
    served = {
        family.name + ("_bucket" if family.is_histogram else "") for family in FAMILIES[APISERVER]
    }
    assert asked - ours <= served


def test_counters_are_asked_for_their_growth_and_labels_exist() -> None:
    labels = {f"fleet_{each.metric}{SUFFIX.get(each.kind, '')}": each.labels for each in metrics()}
    for query in queries():
        for name, known in labels.items():
            if not re.search(rf"\b{name}\b", query):
                continue
            assert ("rate(" in query) is name.endswith(("_total", "_bucket")), query
            by = re.search(r"by \(([^)]*)\)", query)
            wanted = set(re.split(r",\s*", by[1])) - {"le"} if by else set()
            assert wanted <= set(known), query


def test_panels_have_places_of_their_own() -> None:
    found = json.loads(grafana.DASHBOARD.read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in found:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in found}) == len(found)
