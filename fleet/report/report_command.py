"""`fleet report`: the page of a run, a run in other forms, runs side by side."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import orjson

from fleet.errors import Exit, SetupError, UsageError
from fleet.profile.option_types import margin
from fleet.report import report_formats as forms
from fleet.report.comparison import compare
from fleet.report.html_report import write_comparison, write_report
from fleet.report.run_record import RunRecord, read_run


class Request(NamedTuple):
    """What was asked on the command line."""

    runs: tuple[Path, ...]
    baseline: Path | None
    tolerance: str
    form: str | None
    out: Path | None


def make_report(request: Request, *, note: Callable[[str], None]) -> tuple[str, Exit]:
    """Return what to print and the exit code. Raises UsageError and SetupError.

    With a baseline: 1 if a run is worse than it, 4 if not all of them can be compared.
    """
    share = margin("--tolerance", request.tolerance)
    paths = request.runs if request.baseline is None else (request.baseline, *request.runs)
    runs = [read_run(path) for path in paths]
    if len(runs) == 1:
        return _one(runs[0], request), Exit.OK
    compared = compare(runs, share)
    code = Exit.OK
    if request.baseline is not None:
        if compared.is_worse:
            code = Exit.EXPECTATION_FAILED
        elif compared.differences:
            code = Exit.INVALID
        note(forms.conclusion(compared))
    match request.form or "markdown":
        case "html":
            if request.out is None:
                raise UsageError("--format html of several runs is a file: name it with --out")
            return f"{write_comparison(compared, request.out)}\n", code
        case "json":
            text = _json(forms.compared_json(compared))
        case "junit":
            text = forms.compared_junit(compared)
        case _:
            text = forms.compared_markdown(compared)
    return _written(text, request.out), code


def _one(run: RunRecord, request: Request) -> str:
    match request.form or "html":
        case "html":
            return f"{write_report(run, request.out)}\n"
        case "json":
            text = _json(forms.as_json(run))
        case "junit":
            text = forms.junit(run)
        case _:
            text = forms.markdown(run)
    return _written(text, request.out)


def _json(content: object) -> str:
    return orjson.dumps(content, option=orjson.OPT_INDENT_2).decode() + "\n"


def _written(text: str, out: Path | None) -> str:
    if out is None:
        return text
    try:
        out.write_text(text, "utf-8")
    except OSError as error:
        raise SetupError(f"--out {out}: {error.strerror or error}") from error
    return ""
