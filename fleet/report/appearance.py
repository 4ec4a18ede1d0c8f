"""Names and colours of what is plotted, once for all that plot it.

The report, the dashboard's page of charts and the Grafana dashboard of the chart take the titles of
their plots, the labels of their lines and the colours from here: what has one name in one of them
has it in all, and is found by its colour. The colour-blind can distinguish the colours (Okabe
and Ito, jfly.uni-koeln.de/color); each has a lighter one for dark paper.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Colour(NamedTuple):
    """One colour, on light paper and on dark."""

    light: str
    dark: str


PALETTE = (
    Colour("#0072b2", "#5cb0e8"),
    Colour("#d55e00", "#ff8a4d"),
    Colour("#009e73", "#35c99a"),
    Colour("#b5619a", "#e09ac6"),
    Colour("#c98a00", "#f0c04a"),
    Colour("#4aa3d8", "#9ad4f5"),
)
GREY = -1  # for what is there to compare with, such as a target
FAINT = Colour("#5c6470", "#a2aab6")


class Chart(NamedTuple):
    """One plot: its title, and the places in the palette of the lines that it may have."""

    title: str
    lines: Mapping[str, int] = {}


_FILE = Path(__file__).with_name("charts.toml")


def _charts() -> dict[str, Chart]:
    """Read the plots by name."""
    hues = ("blue", "vermilion", "green", "purple", "yellow", "sky")
    places = {name: place for place, name in enumerate(hues)} | {"grey": GREY}
    charts = {}
    for name, found in tomllib.loads(_FILE.read_text(encoding="utf-8")).items():
        lines = found.get("lines", {})
        charts[name] = Chart(found["title"], {label: places[lines[label]] for label in lines})
    return charts


CHARTS = _charts()


def variable(place: int) -> str:
    """Return the name that a style sheet has for a place in the palette."""
    return "--faint" if place == GREY else f"--s{place + 1}"


def places(name: str, labels: Sequence[str]) -> list[int]:
    """Return the place in the palette of each line of a plot, `GREY` for none.

    Lines that are not in the table, such as kinds of requests, get what is left, in order.
    """
    known = CHARTS[name].lines
    taken = {known[each] for each in labels if each in known}
    free = [each for each in range(len(PALETTE)) if each not in taken] or [*range(len(PALETTE))]
    unknown = [each for each in labels if each not in known]
    return [
        known[each] if each in known else free[unknown.index(each) % len(free)] for each in labels
    ]


def variables(*, dark: bool) -> str:
    """Return the palette as declarations of a style sheet: `--s1` and so on."""
    hues = (each.dark if dark else each.light for each in PALETTE)
    return ";".join(f"--s{number}:{hue}" for number, hue in enumerate(hues, 1))
