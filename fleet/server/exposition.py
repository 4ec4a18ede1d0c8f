"""The metrics of a node in Prometheus' text format.

families.toml says which families a page has and what fills them; a page is written from rows: by
what there is a series of, the labels and the numbers of each.
Source: github.com/prometheus/common/expfmt/text_create.go; component-base/metrics/desc.go for the
level of stability before each help text.
Differs: numbers are written as Python writes them, which Prometheus reads alike.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

from fleet.clock import NS_PER_S
from fleet.kubelet.node_facts import Durations

FAMILIES = Path(__file__).with_name("families.toml")
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})

Row: TypeAlias = Mapping[str, "str | float | Durations"]
"""What there is a series of: its labels, and what was measured of it, by name."""
Rows: TypeAlias = Mapping[str, Sequence[Row]]


class _Series(NamedTuple):
    """The series of one family with the same fixed labels: one for each row."""

    name: str
    head: str
    of: str  # which rows
    labels: str  # a template, to be filled from a row; "" without labels
    sample: str | float  # a name of the row, or always the same
    is_timed: bool


@cache
def _pages() -> dict[str, list[_Series]]:
    """Read which series each page shows, sorted by name."""
    pages: dict[str, list[_Series]] = {}
    for group in tomllib.loads(FAMILIES.read_text())["group"]:
        page = pages.setdefault(group["page"], [])
        for full_name, kind, sample, text in group["families"]:
            name, _, fixed = full_name.partition("{")
            labels = [f'{label}="%({label})s"' for label in group.get("labels", ())]
            labels += fixed.removesuffix("}").split(",") if fixed else []
            head = f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
            template = ",".join(sorted(labels))
            timed = group.get("timed", False)
            page.append(_Series(name, head, group["of"], template, sample, timed))
    for page in pages.values():
        page.sort(key=lambda series: series.name)
    return pages


def page_text(page: str, rows: Rows, wall_ms: int = 0) -> bytes:
    """Return a page; a family without rows is left out."""
    timed_end = f" {wall_ms}\n"
    lines: list[str] = []
    escaped: dict[str, list[dict[str, str]]] = {}
    shown: dict[tuple[str, str], list[str]] = {}  # labels of rows: many families share them
    head = ""
    for name, series_head, of, labels, sample, is_timed in _pages()[page]:
        found = rows.get(of)
        if not found:
            continue
        if head != series_head:  # a family may have series of several kinds
            lines.append(series_head)
            head = series_head
        if of not in escaped:
            escaped[of] = [
                {
                    key: text.translate(_ESCAPES)
                    for key, text in row.items()
                    if isinstance(text, str)
                }
                for row in found
            ]
        if (of, labels) not in shown:
            shown[of, labels] = [labels % texts for texts in escaped[of]]
        end = timed_end if is_timed else "\n"
        for row, text in zip(found, shown[of, labels], strict=True):
            value = row[sample] if isinstance(sample, str) else sample
            if isinstance(value, Durations):
                lines += _histogram(name, text, value)
                continue
            assert not isinstance(value, str), sample
            shown_labels = f"{{{text}}}" if text else ""
            lines.append(f"{name}{shown_labels} {value}{end}")
    return "".join(lines).encode()


def _histogram(name: str, labels: str, durations: Durations) -> Iterator[str]:
    start, shown = (f"{labels},", f"{{{labels}}}") if labels else ("", "")
    count = 0
    for bound, inside in zip(_BOUNDS, durations.counts, strict=True):
        count += inside
        yield f'{name}_bucket{{{start}le="{bound}"}} {count}\n'
    yield f"{name}_sum{shown} {durations.total_ns / NS_PER_S}\n"
    yield f"{name}_count{shown} {count}\n"


_BOUNDS = (*map(str, Durations.bounds), "+Inf")
