"""`fleet report`: the page of a run, runs side by side, and both as Markdown, JSON or JUnit."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import cast
from xml.etree import ElementTree as ET

from fleet.errors import Exit, SetupError, UsageError
from fleet.profile.option_types import margin
from fleet.report.comparison import Comparison, Row, compare
from fleet.report.figure import Json
from fleet.report.findings import first_broken, not_proven, of_unit, recoveries, sentence
from fleet.report.html_report import write_report
from fleet.report.limits import limited_by, resources
from fleet.report.printed import printed
from fleet.report.report import ServiceLevel
from fleet.report.run_directory import RunRecord, read_run
from fleet.report.service_levels import INDICATORS, is_asked, words_of_s
from fleet.report.summary_text import refused_words


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    cells = ([str(each).replace("|", "\\|") for each in row] for row in rows)
    return lines + [f"| {' | '.join(row)} |" for row in cells]


def _mark(level: ServiceLevel) -> str:
    if level.met is None:
        return level.note or "no limit"
    if not level.judged:
        side = "within its limit" if level.met else "over its limit"
        return f"{side}; {level.note or 'not judged'}"
    mark, note = "met" if level.met else "BROKEN", level.note
    return f"{mark}; {note}" if note else mark


def markdown(run: RunRecord) -> str:
    """Return one run for a pull request or a log."""
    lines = [f"## {run.verdict.words}: {run.title}", "", sentence(run), ""]
    lines += [" ".join(limited_by(run, resources(run))), ""]
    lines += [f"- {each}" for each in filter(None, (refused_words(run.requests), *run.reasons))]
    rows = [
        (
            f"{level.sli} p{level.percentile:g}",
            of_unit(level.sli, level.measured),
            of_unit(level.sli, level.limit) if level.limit is not None else "",
            level.source,
            level.samples,
            _mark(level),
        )
        for level in run.levels
    ]
    if rows:
        lines += ["", *_table(("SLI", "measured", "limit", "by", "samples", ""), rows)]
    lines += ["", "What this run does not prove:", ""]
    return "\n".join([*lines, *(f"- {each}" for each in not_proven(run))]) + "\n"


def as_json(run: RunRecord) -> Json:
    """Return what the report concludes, next to the summary."""
    broken, found = first_broken(run), resources(run)
    what, advice = limited_by(run, found)
    return {
        "run": run.name,
        "verdict": run.verdict.value,
        "reasons": run.reasons,
        "refused": refused_words(run.requests),
        "sentence": sentence(run),
        "limited_by": {
            "sentence": what,
            "advice": advice,
            "resources": [
                {"highest": each.highest[1], "at_s": each.highest[0], **each._asdict()}
                for each in found
            ],
        },
        "first_broken": broken._asdict() if broken is not None else None,
        "recoveries": [each._asdict() for each in recoveries(run)],
        "not_proven": not_proven(run),
        "about": run.about,
        "summary": run.summary,
    }


def junit(run: RunRecord) -> str:
    """Return a test suite with a case for each level and expectation, and one for validity."""
    suite = ET.Element("testsuite", name=f"fleet {run.name}", time=f"{run.wall_s:.3f}")
    case = ET.SubElement(suite, "testcase", classname="fleet.run", name="valid")
    if not run.get("valid"):
        ET.SubElement(case, "error", message=run.verdict.value).text = "\n".join(run.reasons)
    for level in run.levels:
        sli = level.sli
        case = ET.SubElement(suite, "testcase", classname="fleet.slo", name=sli)
        if level.judged:
            if not level.met:
                measured, limit = of_unit(sli, level.measured), of_unit(sli, level.limit)
                message = f"{measured}, and {limit} is the limit"
                ET.SubElement(case, "failure", message=message).text = level.worst
        elif level.limit is not None and is_asked(level.source):
            ET.SubElement(case, "error", message=_mark(level))
        else:
            ET.SubElement(case, "skipped", message=_mark(level))
    for each in run.rows("expectations"):
        name = str(each["name"])
        if name.partition(" ")[0] in INDICATORS:  # a level, see above
            continue
        case = ET.SubElement(suite, "testcase", classname="fleet.expectation", name=name)
        if not each["met"]:
            ET.SubElement(case, "failure", message=str(each["detail"]))
    return _counted(suite)


COUNTED = {"testcase": "tests", "failure": "failures", "error": "errors", "skipped": "skipped"}


def _counted(suite: ET.Element) -> str:
    for tag, name in COUNTED.items():
        suite.set(name, str(len(suite.findall(f".//{tag}"))))
    ET.indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suite, encoding="unicode")}\n'


# ---- several runs ----

WHY_CHARACTERS_MAX = 40  # of a reason in a cell of the table


def amount(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "s":
        return words_of_s(value)
    if unit == "bytes":
        return f"{value / 1e3:,.1f} kB"
    return f"{value:,.4g} {unit}".strip() if unit else f"{value:,.0f}"


def ratio(row: Row, at: int) -> str:
    """Say how a run stands to the first one; no judgement where they cannot be compared."""
    found = row.ratios[at]
    if at == 0 or found is None:
        return ""
    mark = " not judged" if row.unjudged[at] else " WORSE" if row.worse[at] else ""
    return f"x {found:,.2f}{mark}"


def conclusion(compared: Comparison) -> str:
    """Say in a line what became of the comparison."""
    is_partly = any(row.better and not any(row.unjudged) for row in compared.rows)
    worse = [row.words for row in compared.rows if any(row.worse)]
    share = f"{compared.tolerance:.0%}"
    found = f"worse by more than {share}: {', '.join(worse)}" if worse else ""
    if compared.differences:
        part = " in part" if is_partly else ""
        unlike = f"not comparable{part}: {'; '.join(compared.differences)}"
        return f"{found}; {unlike}" if found else unlike
    return found or f"comparable; nothing is worse by more than {share}"


def compared_markdown(compared: Comparison) -> str:
    """Return the comparison for a pull request or a log."""
    head = ["figure", *(run.name for run in compared.runs), "why it is not judged"]
    rows = [
        [
            row.words,
            *(
                f"{amount(value, row.unit)} {ratio(row, at)}".strip()
                for at, value in enumerate(row.values)
            ),
            _why_unjudged(row),
        ]
        for row in compared.rows
    ]
    return "\n".join([conclusion(compared), "", *_table(head, rows)]) + "\n"


def _why_unjudged(row: Row) -> str:
    """Say each reason once. Of a long one the name is enough: the conclusion has it in full."""
    reasons = dict.fromkeys(each for text in row.unjudged for each in text.split("; ") if each)
    return "; ".join(
        each if len(each) <= WHY_CHARACTERS_MAX else each.partition(": ")[0] for each in reasons
    )


def compared_json(compared: Comparison) -> Json:
    """Return the comparison for programs."""
    return {
        "runs": [run.name for run in compared.runs],
        "comparable": not compared.differences,
        "conclusion": conclusion(compared),
        "differences": compared.differences,
        "tolerance": compared.tolerance,
        "worse": compared.is_worse,
        "figures": [row._asdict() for row in compared.rows],
    }


def compared_junit(compared: Comparison) -> str:
    """Return a test suite with a case for each figure."""
    suite = ET.Element("testsuite", name="fleet report")
    case = ET.SubElement(suite, "testcase", classname="fleet.compare", name="comparable")
    if compared.differences:
        ET.SubElement(case, "error", message="not comparable").text = "\n".join(
            compared.differences
        )
    for row in compared.rows:
        case = ET.SubElement(suite, "testcase", classname="fleet.compare", name=row.words)
        if any(row.worse):
            told = [amount(value, row.unit) for value in row.values]
            ET.SubElement(case, "failure", message=" -> ".join(told))
        elif any(row.unjudged):
            ET.SubElement(case, "skipped", message="; ".join(filter(None, row.unjudged)))
    return _counted(suite)


def make_report(
    paths: tuple[Path, ...],
    baseline: Path | None,
    tolerance: str,
    form: str | None,
    out: Path | None,
    title: str = "",
    *,
    note: Callable[[str], None],
) -> tuple[str, Exit]:
    """Return what to print and the exit code. Raises UsageError and SetupError.

    With a baseline: 1 if a run is worse than it, 4 if not all of them can be compared.
    """
    share = margin("--tolerance", tolerance)
    runs = [read_run(path) for path in (paths if baseline is None else (baseline, *paths))]
    for run in runs if title else ():
        run.about["options"] = {**cast("Json", run.about.get("options") or {}), "title": title}
    if len(runs) == 1:
        return one_run(runs[0], form or "html", out), Exit.OK
    compared = compare(runs, share)
    code = Exit.OK
    if baseline is not None:
        if compared.is_worse:
            code = Exit.EXPECTATION_FAILED
        elif compared.differences:
            code = Exit.INVALID
        note(conclusion(compared))
    match form or "markdown":
        case "html" | "openmetrics":
            raise UsageError(f"--output {form} is of one run; compare runs as text or json")
        case "json" | "yaml":
            text = printed(form or "", compared_json(compared)) + "\n"
        case "junit":
            text = compared_junit(compared)
        case _:
            text = compared_markdown(compared)
    return _written(text, out), code


def one_run(run: RunRecord, form: str, out: Path | None) -> str:
    """Return the report of a run as `--output` says."""
    match form:
        case "html":
            return f"{write_report(run, out)}\n"
        case "json" | "yaml":
            text = printed(form, as_json(run)) + "\n"
        case "junit":
            text = junit(run)
        case "openmetrics":
            from fleet.report.openmetrics import openmetrics  # noqa: PLC0415 - 3 MB

            text = openmetrics(run)
        case _:
            text = markdown(run)
    return _written(text, out)


def _written(text: str, out: Path | None) -> str:
    if out is None:
        return text
    try:
        out.write_text(text, "utf-8")
    except OSError as error:
        raise SetupError(f"--out {out}: {error.strerror or error}") from error
    return ""
