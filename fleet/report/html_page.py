"""The frame of an HTML report: one file that needs no network, its tables, tiles and plots.

The page's Content-Security-Policy allows one style and one script, both by their hash, and forbids
everything else. Every text from a file, a cluster or an option is escaped. The script is uPlot with
`plots.js`, which draws the series that the page holds as JSON. Where scripts do not run, a table
under each plot shows the range of each series.
"""

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template

import orjson

from fleet.errors import SetupError
from fleet.report.appearance import GREY, places, variables
from fleet.report.curves import Plot
from fleet.report.figure import Json
from fleet.report.verdict import Outcome

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("uplot/LICENSE", "uplot/uPlot.iife.min.js", "plots.js")
POLICY = (
    "default-src 'none'; style-src '{style}'; script-src '{script}'; "
    "base-uri 'none'; form-action 'none'"
)
MEASURED, SIMULATED, INPUT = "measured", "simulated", "input"
IN_SCRIPT = {ord(each): f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"}
"""What could end the script element that holds JSON, or a line of it."""
LABEL_MAX = 36
"""Characters of a series' or phase's name; longer ones would leave the plot no room."""


def write(path: Path, text: str) -> Path:
    """Write a page whole or not at all. Raises SetupError."""
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.write_text(text, "utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise SetupError(f"{path}: {error.strerror or error}") from error
    return path


def whole(title: str, verdict: Outcome, body: str) -> str:
    """Return a page of a title, a verdict and what is below it."""
    shades = {"light": variables(dark=False), "dark": variables(dark=True)}
    own_style = Template((ASSETS / "page.css").read_text("utf-8")).substitute(shades)
    style = (ASSETS / "uplot/uPlot.min.css").read_text("utf-8") + own_style
    script = ""
    if 'id="plots"' in body:  # no text of a record has a quotation mark left
        script = "/*\n{}\n*/\n{}\n{}".format(
            *((ASSETS / name).read_text("utf-8") for name in SCRIPTS)
        )
    return Template((ASSETS / "page.html").read_text("utf-8")).substitute(
        title=escaped(title),
        verdict=verdict,
        policy=POLICY.format(style=_hash(style), script=_hash(script)),
        style=style,
        script=script,
        body=body,
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def escaped(value: object) -> str:
    """Return a value as HTML."""
    return html.escape(str(value))


def tag(words: str) -> str:
    """Return a word about a figure: measured, simulated or input."""
    return f'<span class="tag">{escaped(words)}</span>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """Return a table; its cells are HTML already, its head is not. `numbers` are columns."""
    right = set(numbers)

    def cells(row: Sequence[str], name: str) -> str:
        marks = [' class="n"' if at in right else "" for at in range(len(row))]
        return "".join(
            f"<{name}{mark}>{cell}</{name}>" for cell, mark in zip(row, marks, strict=True)
        )

    lines = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    first = f"<thead><tr>{cells(list(map(escaped, head)), 'th')}</tr></thead>"
    return f'<div class="scroll"><table>{first}<tbody>{lines}</tbody></table></div>'


def tiles(listed: Iterable[tuple[str, str, str]]) -> str:
    """Return boxes with a figure each: its value, what it is, and whose."""
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><b>{escaped(value)}</b><span>{escaped(words)}</span> '
            f"{tag(kind)}</div>"
            for value, words, kind in listed
        )
        + "</div>"
    )


def plotted(plots: Sequence[Plot], phases: Sequence[Json] = (), until_s: float = 0.0) -> str:
    """Return a figure for each plot, and the JSON that the script of the page draws.

    Phases and faults are marked on each axis of time.
    """
    found = []
    for plot in plots:
        hues = places(plot.name, [each.label for each in plot.series])
        series = [
            {
                "label": _short(each.label),
                "colour": "--faint"
                if hue == GREY or (each.is_faint and plot.kind != "stack")
                else f"--s{hue + 1}",
                "x": [_rounded(at) for at, _ in each.points],
                "y": [_rounded(value) for _, value in each.points],
            }
            for hue, each in zip(hues, plot.series, strict=True)
        ]
        shown = {key: getattr(plot, key) for key in ("name", "unit", "kind", "is_log")}
        found.append(shown | {"series": series})
    marks = [
        {
            "name": _short(str(each["name"])),
            "kind": each.get("kind"),
            "from_s": each["from_s"],
            "until_s": each.get("until_s"),
        }
        for each in phases
    ]
    content = orjson.dumps({"plots": found, "phases": marks, "until_s": until_s}).decode()
    figures = "".join(
        f'<figure id="plot-{plot.name}"><figcaption>{escaped(plot.title)}'
        f"<small>{escaped(plot.unit)}, {escaped(plot.source)}</small></figcaption>"
        f'<div class="plot"></div>{_ranges(plot)}</figure>'
        for plot in plots
    )
    wide = "" if phases else " wide"
    return (
        '<p id="zoom" class="about" hidden>Drag over a plot to zoom in, double-click to zoom out; '
        "click on a name to hide its line.</p>"
        f'<div class="plots{wide}">{figures}</div>'
        f'<script type="application/json" id="plots">{content.translate(IN_SCRIPT)}</script>'
    )


def _ranges(plot: Plot) -> str:
    """Return the lowest, the highest and the last value of each series."""
    rows = []
    for each in plot.series:
        values = [value for _, value in each.points]
        shown = (f"{value:,.4g}" for value in (min(values), max(values), values[-1]))
        rows.append((escaped(each.label), *shown))
    return table(("", "lowest", "highest", "last"), rows, (1, 2, 3))


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _short(name: str) -> str:
    return name if len(name) <= LABEL_MAX else f"{name[: LABEL_MAX - 3]}..."
