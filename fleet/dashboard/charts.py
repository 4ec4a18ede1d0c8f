"""The charts of the dashboard's own page: what the reports of fleet workers have, over time.

Names and colours are the report's; see `fleet.report.appearance`.
"""

import json
from pathlib import Path

from fleet.report.appearance import CHARTS, GREY, places, title_of, variables

PAGE = Path(__file__).with_name("dashboard.html")
CHARTED = (
    ("nodes", "", {"target": "target", "ready": "Ready", "notReady": "NotReady"}),
    ("leases", "ms", {"leaseLateP99": "p99"}),
    ("starts", "ms", {"podStartP99": "p99 in all"}),
    ("lag", "ms", {"timerLagP99": "p99"}),
)
"""Plot, unit, and the label of each figure that a worker reports."""


def charts() -> list[dict[str, object]]:
    """Return each chart with its lines: the label and the variable of the colour, by figure."""
    found: list[dict[str, object]] = []
    for name, unit, labels in CHARTED:
        assert set(labels.values()) <= set(CHARTS[name].lines), name
        title = f"{title_of(name)}, {unit}" if unit else title_of(name)
        hues = [
            "--faint" if place == GREY else f"--s{place + 1}"
            for place in places(name, list(labels.values()))
        ]
        lines = {key: [label, hue] for (key, label), hue in zip(labels.items(), hues, strict=True)}
        found.append({"title": title, "lines": lines})
    return found


def page() -> str:
    """Return the page."""
    text = PAGE.read_text(encoding="utf-8")
    for mark, value in (
        ("/*LIGHT*/", variables(dark=False)),
        ("/*DARK*/", variables(dark=True)),
        ("/*CHARTS*/[]", json.dumps(charts())),
    ):
        assert mark in text, mark
        text = text.replace(mark, value)
    return text
