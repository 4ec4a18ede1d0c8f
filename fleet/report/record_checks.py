"""What the files of a run directory must look like before a report is made of them.

A record may come from another machine, another version or another person: its texts are escaped
where they are shown, and what is shown as a number is one, or the record is refused in one line.
Keys that this version does not know stay as they are.
"""

from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from fleet.errors import UsageError
from fleet.profile.schema import explain
from fleet.report.figure import Json
from fleet.report.report import Expectation, Phase, ServiceLevel
from fleet.report.verdict import Outcome

Figures = dict[str, Any]
Number = int | float  # in this order: a count stays one
Shares = dict[str, Number | None]
_ANY_MORE = ConfigDict(extra="allow", allow_inf_nan=False)


def _model_of(record: type[ServiceLevel | Phase | Expectation]) -> type[BaseModel]:
    """Return a model with the fields of a record, so that what a record gains is checked, too."""
    hints = get_type_hints(record)
    members: dict[str, Any] = {
        each.name: (hints[each.name], each.default) for each in fields(record)
    }
    return create_model(record.__name__, __config__=_ANY_MORE, **members)


class _Request(BaseModel):
    model_config = _ANY_MORE
    verb: str
    resource: str
    code: int
    count: Number
    ms: Shares


class _Summary(BaseModel):
    model_config = _ANY_MORE
    verdict: Literal[*map(str, Outcome)] = "incomplete"  # type: ignore[valid-type]
    valid: bool = False
    invalid_reasons: list[str] = []
    verdict_reasons: list[str] = []
    expectations: list[_model_of(Expectation)] = []  # type: ignore[valid-type]
    slis: list[_model_of(ServiceLevel)] = []  # type: ignore[valid-type]
    phases: list[_model_of(Phase)] = []  # type: ignore[valid-type]
    requests: list[_Request] = []


class _About(BaseModel):
    model_config = _ANY_MORE
    machine: Figures = {}
    options: Figures = {}


class _Line(BaseModel):
    model_config = _ANY_MORE
    wall_s: Number
    nodes: dict[str, Number | None] | None = None
    lease: dict[str, Shares | Number | None] | None = None
    pods: dict[str, Shares | Number | None] | None = None
    process: dict[str, Shares | Number | None] | None = None
    requests: list[_Request] | None = None
    requests_total: Number = 0


class _Histograms(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, dict[int, int]] = Field(init=False)


def check_summary(content: Json, path: Path) -> Json:
    """Return a summary with the keys that reports read. Raises UsageError."""
    return _checked(_Summary, content, path)


def check_about(content: Json, path: Path) -> Json:
    """Return `run.json` with the keys that reports read. Raises UsageError."""
    return _checked(_About, content, path)


def check_line(content: object, path: Path) -> Json:
    """Return a line of the time series. Raises UsageError."""
    return _checked(_Line, content, path)


def check_histograms(content: Json, path: Path) -> dict[str, dict[int, int]]:
    """Return the buckets by figure. Raises UsageError."""
    found: dict[str, Any] = _checked(_Histograms, content, path)
    return found


def _checked(model: type[BaseModel], content: object, path: Path) -> Json:
    try:
        return model.model_validate(content, strict=model is not _Histograms).model_dump()
    except ValidationError as error:
        raise UsageError(f"{path}: {explain(error, model)}") from error
