"""Plots as SVG within the page, by matplotlib (the extra `report`), which is imported here only.

Each colour that matplotlib writes stands for a variable of the page's style, so that one drawing
serves light and dark. The colours of series are those of `appearance`, and the dashes of lines
differ too.
"""

import html
import importlib.util
import io
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from fleet.report.appearance import GREY, PALETTE, places
from fleet.report.curves import Plot, Series
from fleet.report.figure import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MISSING = "no plots: pip install 'fleet-emulator[report]'"
WIDTH, HEIGHT = 4.4, 2.1
"""Inches of 72 points: shown at 390 pixels a point is about one."""

LETTER_POINTS, AXES_POINTS = 4.6, 270.0
"""About how wide a letter of a phase's name is, and the part of a plot that has the curves."""

LABEL_MAX = 36
"""Characters of a curve's or phase's name; longer ones would leave the curves no room."""

INK, FAINT, GRID, FAULT, PHASE = "#010101", "#020202", "#030303", "#040404", "#050505"
SERIES = tuple(f"#0a{number:04x}" for number in range(1, len(PALETTE) + 1))
VARIABLES = {
    INK: "--ink",
    FAINT: "--faint",
    GRID: "--grid",
    FAULT: "--fault",
    PHASE: "--phase",
    **{colour: f"--s{number}" for number, colour in enumerate(SERIES, 1)},
}
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)), (0, (1, 1)), (0, (9, 3)))
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: small, sharp, found by a search
    "text.parse_math": False,  # a name with two $ is a name
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": FAINT,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "figure.facecolor": "none",
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


def can_plot() -> bool:
    """Return whether the extra is installed; nothing is imported."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(plots: Sequence[Plot], phases: Sequence[Json], wall_s: float) -> Iterator[str]:
    """Yield each plot as an SVG element. Phases and faults are marked on the axis of time."""
    import matplotlib as mpl  # noqa: PLC0415 - 0.5 s and 30 MB, which a run must not have
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import FuncFormatter, MaxNLocator  # noqa: PLC0415

    with mpl.rc_context(STYLE):
        for whole in plots:
            plot = whole._replace(
                series=[each._replace(label=_short(each.label)) for each in whole.series]
            )
            mpl.rcParams["svg.hashsalt"] = plot.name
            figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
            axes = figure.subplots()
            _fill(axes, plot)
            axes.set_ylabel(plot.unit)
            if plot.is_log:
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            else:
                axes.set_ylim(bottom=0, top=max(axes.get_ylim()[1], 1e-9))
                axes.yaxis.set_major_locator(MaxNLocator(5))
                axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            axes.minorticks_off()
            if plot.kind in {"bars", "sizes"}:
                axes.set_xlabel("s" if plot.kind == "bars" else "nodes")
                axes.set_xlim(left=0)
                axes.xaxis.set_major_locator(MaxNLocator(6))
                axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            else:
                axes.set_xlim(0, max(wall_s, 1.0))
                axes.xaxis.set_major_locator(
                    MaxNLocator(6, integer=True, steps=[1, 1.5, 2, 3, 6, 10])
                )
                axes.xaxis.set_major_formatter(FuncFormatter(_clock))
                _mark(axes, phases)
            widths = [len(each.label) for each in plot.series]
            columns = 1 if max(widths) == LABEL_MAX else 2 if sum(widths) > 60 else 3
            figure.legend(
                loc="outside upper left",
                ncols=columns,
                handlelength=1.8,
                columnspacing=1.2,
                borderpad=0,
            )
            text = io.StringIO()
            nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            figure.savefig(text, format="svg", metadata=nothing, transparent=True)
            yield _themed(text.getvalue(), plot.title)


def _short(name: str) -> str:
    return name if len(name) <= LABEL_MAX else f"{name[: LABEL_MAX - 3]}..."


def _fill(axes: "Axes", plot: Plot) -> None:
    found = places(plot.name, [each.label for each in plot.series])
    if plot.kind == "stack":
        at = sorted({x for each in plot.series for x, _ in each.points})
        rows = [_on(each, at) for each in plot.series]
        colours = [FAINT if place == GREY else SERIES[place] for place in found]
        labels = [each.label for each in plot.series]
        axes.stackplot(at, rows, labels=labels, colors=colours, linewidth=0)
        return
    is_size = plot.kind == "sizes"
    for number, (place, each) in enumerate(zip(found, plot.series, strict=True)):
        x, y = zip(*each.points, strict=True)
        colour = FAINT if each.is_faint or place == GREY else SERIES[place]
        dashes = DASHES[number % len(DASHES)]
        marker = "." if len(each.points) == 1 else "o" if is_size and not each.is_faint else None
        axes.plot(x, y, label=each.label, color=colour, linestyle=dashes, marker=marker)


def _on(series: Series, at: Sequence[float]) -> list[float]:
    known = dict(series.points)
    return [known.get(x, 0.0) for x in at]


def _labelled(axes: "Axes", phases: Sequence[Json]) -> list[Json]:
    """Return the phases whose name has room before the next one begins; faults have none."""
    begun = sorted(
        (each for each in phases if each.get("kind") != "fault" and each["from_s"]),
        key=lambda each: cast("float", each["from_s"]),
    )
    left, right = axes.get_xlim()
    a_letter = LETTER_POINTS * (right - left) / AXES_POINTS
    ends = [*(cast("float", each["from_s"]) for each in begun[1:]), float("inf")]
    return [
        each
        for each, end in zip(begun, ends, strict=False)
        if cast("float", each["from_s"]) + a_letter * len(_short(str(each["name"]))) <= end
    ]


def _mark(axes: "Axes", phases: Sequence[Json]) -> None:
    labelled = _labelled(axes, phases)
    for each in phases:
        begin, end = each["from_s"], each.get("until_s")
        assert isinstance(begin, int | float), each
        if each.get("kind") == "fault":
            until = float(end) if isinstance(end, int | float) else axes.get_xlim()[1]
            axes.axvspan(begin, until, color=FAULT, alpha=0.15, linewidth=0)
        elif begin:
            axes.axvline(begin, color=PHASE, linewidth=0.9, linestyle=(0, (2, 2)))
            if each not in labelled:
                continue
            # A label at the foot would hide the curves.
            axes.annotate(
                _short(str(each["name"])),
                (begin, 1),
                xycoords=("data", "axes fraction"),
                xytext=(1, 2),
                textcoords="offset points",
                fontsize=8,
                color=PHASE,
            )


def _clock(value: float, _: object) -> str:
    whole = round(value)
    if whole >= 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"
    return f"{whole // 60}:{whole % 60:02}"


def _themed(svg: str, title: str) -> str:
    """Return the element alone, its colours as variables, its size left to the page."""
    body = svg[svg.index("<svg") :]
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, f"var({variable})")
    body = body.replace("'sans-serif'", "inherit").replace("sans-serif", "inherit")
    head = re.search(r'viewBox="[^"]*"', body)
    assert head is not None, body[:200]
    inner = body[body.index(">") + 1 :]
    name = html.escape(title)
    return f'<svg {head[0]} role="img" aria-label="{name}" xmlns:xlink="http://www.w3.org/1999/xlink">{inner}'
