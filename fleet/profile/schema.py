"""What all documents that users write have in common: field types, and errors in one line.

pydantic checks; `explain` turns what it found into the text of a `UsageError`: the path as kubectl
prints it, the value, and what is allowed.
"""

import difflib
import re
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import core_schema

from fleet.quantity import Quantity, format_duration, parse_positive_duration, parse_quantity

API_VERSION = "fleet.emulator/v1alpha1"
KNOWN_KEYS_SHOWN_MAX = 12
PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
PLACEHOLDERS = ("name", "index", "zone", "region")  # of a providerID

DurationNs = Annotated[
    int,
    BeforeValidator(parse_positive_duration),
    PlainSerializer(format_duration, when_used="json"),
    WithJsonSchema({"type": "string", "examples": ["10s", "1h30m"]}),
]
"""A duration as Go writes it, kept in nanoseconds."""

QuantityField = Annotated[
    Quantity,
    BeforeValidator(parse_quantity),
    PlainSerializer(str, when_used="json"),
    WithJsonSchema({"type": ["string", "number"], "examples": ["500m", "32Gi"]}),
]
"""An amount as Kubernetes writes it."""

LABEL_PART_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
RUN_ID_PATTERN = r"^([a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?)?$"
PATTERN_WORDS = {
    LABEL_PART_PATTERN: "a DNS label: lower-case letters, digits and '-', at most 63",
    RUN_ID_PATTERN: "lower-case letters, digits, '-' and '.', at most 63",
}
DnsLabel = Annotated[str, StringConstraints(pattern=LABEL_PART_PATTERN)]
"""RFC 1123: what profile names and name prefixes are made of."""


def check_placeholders(text: object, known: tuple[str, ...] = PLACEHOLDERS) -> object:
    """Return a text as it is. Raises ValueError for a placeholder that nobody fills."""
    for name in PLACEHOLDER.findall(str(text)):
        if name not in known:
            raise ValueError(f"'{{{{{name}}}}}' is not one of {', '.join(known)}")
    return text


INITIALISMS = {each: each.upper() for each in ("api", "ca", "dns", "gc", "id", "qps", "tls", "ttl")}
INITIALISMS["cpus"] = "CPUs"


def key_of(field: str) -> str:
    """Return the key of a field, as Go spells it, without the unit that ends a field's name."""
    first, *rest = re.sub(r"_n?s$", "", field).split("_")
    return first + "".join(INITIALISMS.get(each) or each.capitalize() for each in rest)


class Spec(BaseModel):
    """A part of a document: camelCase keys, none unknown, none changed once read."""

    model_config = ConfigDict(
        defer_build=True, alias_generator=key_of, populate_by_name=True, extra="forbid", frozen=True
    )

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, value: object) -> object:
        """Take a known key without a value as one that is left out, as an API server does."""
        if not isinstance(value, dict) or None not in value.values():
            return value
        known = {field.alias for field in cls.model_fields.values()}
        return {key: each for key, each in value.items() if each is not None or key not in known}


class CompiledFrom:
    """How a field is read that holds the compiled form of a part of the document."""

    def __init__(self, written: object, form: type, compiled: Callable[[Any], object]) -> None:
        self.written = written  # the part, as an annotation
        self._form = form
        self._compiled = compiled

    def __get_pydantic_core_schema__(
        self, _: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Return how the part is checked, and its form kept. A form itself passes as it is."""
        return core_schema.no_info_wrap_validator_function(
            self._read,
            handler.generate_schema(self.written),
            serialization=core_schema.to_string_ser_schema(),
        )

    def _read(self, value: object, check: Callable[[object], object]) -> object:
        return value if isinstance(value, self._form) else self._compiled(check(value))


class Metadata(Spec):
    """The name that other documents and `--profile` use."""

    name: DnsLabel
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


WORDS = {
    "int_parsing": "is not a whole number",
    "tuple_type": "is not a list",
    "too_short": "is too short: give one or more",
    "greater_than": "is not above {:.10g}",
    "greater_than_equal": "is not at least {:.10g}",
    "less_than": "is not below {:.10g}",
    "less_than_equal": "is not at most {:.10g}",
}


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first thing that is wrong in one line: path, value, allowed values."""
    found = error.errors(include_url=False)
    first = found[0]
    where = first["loc"]
    text = _message(first["type"], first.get("ctx") or {}, first["msg"], first["input"])
    if first["type"] == "extra_forbidden":
        text = unknown_key(str(where[-1]), _keys_of(model, where[:-1]))
        where = where[:-1]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    path = path_of(where)
    return f"{path}: {text}{more}" if path else f"{text}{more}"


def path_of(where: tuple[int | str, ...]) -> str:
    """Print a location as kubectl does: `spec.containers[0].name`."""
    text = ""
    for part in where:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part != "[key]":
            text += f".{part}" if text else part
    return text


def unknown_key(key: str, known: list[str]) -> str:
    """Say that a key does not exist, and which one may have been meant."""
    close = difflib.get_close_matches(key, known, n=1)
    if close:
        return f"unknown key {key!r}; did you mean {close[0]!r}?"
    shown = ", ".join(sorted(known)[:KNOWN_KEYS_SHOWN_MAX])
    dots = ", ..." if len(known) > KNOWN_KEYS_SHOWN_MAX else ""
    return f"unknown key {key!r}; known keys: {shown}{dots}"


def _message(kind: str, context: dict[str, object], text: str, value: object) -> str:
    """Put one pydantic error into the words that the user needs."""
    if kind == "value_error":
        return str(context["error"])
    if kind == "missing":
        return "is required"
    if kind in {"enum", "literal_error"}:
        return f"{value!r} is not one of {context['expected']}"
    if kind == "string_pattern_mismatch" and context["pattern"] in PATTERN_WORDS:
        return f"{value!r} is not {PATTERN_WORDS[str(context['pattern'])]}"
    shown = repr(value)
    if len(shown) > 60:
        shown = f"{shown[:57]}..."
    if words := WORDS.get(kind):
        return f"{shown} {words.format(*context.values())}"
    return f"{shown}: {text[:1].lower()}{text[1:]}"


def _keys_of(model: type[BaseModel], where: tuple[int | str, ...]) -> list[str]:
    """List the keys that are known at a location of a document."""
    at: type[BaseModel] | None = model
    for part in where:
        if isinstance(part, int) or at is None:
            continue
        for name, field in at.model_fields.items():
            if part in {name, field.alias}:
                found = map(_model_in, (field.annotation, *field.metadata))
                at = next(filter(None, found), None)
                break
    return [field.alias or name for name, field in at.model_fields.items()] if at else []


def _model_in(annotation: object) -> type[BaseModel] | None:
    """Find the model within `list[X]`, `X | None`, `Annotated[X, ...]`."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    if isinstance(annotation, CompiledFrom):
        return _model_in(annotation.written)
    for inner in typing.get_args(annotation):
        found = _model_in(inner)
        if found is not None:
            return found
    return None
