"""What a container says in its log: how often, how much, in which form.

Nothing declared: the log is what the container's own script prints.
"""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Annotated, Literal

from pydantic import Field, field_validator

from fleet.clock import NS_PER_S
from fleet.profile.schema import PLACEHOLDER, Spec, check_placeholders
from fleet.profile.yaml_text import read_annotation
from fleet.quantity import Quantity, parse_quantity

INTERVAL_NS_MAX = 1 << 61
LOGS_ANNOTATION = "fleet.emulator/logs"
LINE_MAX = 16 << 10
"""A longer line is split by containerd (max_container_log_line_size)."""
RATE_MAX = 100_000.0
ANNOTATION_MAX = 4096
PLACEHOLDERS = ("index", "time", "level", "random", "pod", "namespace", "container", "node")
DEFAULT_TEMPLATE = "{{time}} {{level}} request {{index}} of {{pod}} took {{random}} us"


class LogBehavior(Spec):
    """The lines that a container writes while it runs."""

    lines_per_second: Annotated[float, Field(gt=0, le=RATE_MAX)] = 1.0
    size: Annotated[int, Field(ge=0, le=LINE_MAX)] = 0  # bytes, filled up to; 0: as it comes
    format: Literal["Text", "Json"] = "Text"
    template: Annotated[str, Field(min_length=1, max_length=LINE_MAX)] = DEFAULT_TEMPLATE
    stderr_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    max_lines: Annotated[int, Field(ge=1)] | None = None

    @field_validator("size", mode="before")
    @classmethod
    def _is_an_amount(cls, value: object) -> object:
        if isinstance(value, str):
            value = parse_quantity(value)
        return value.value if isinstance(value, Quantity) else value

    @field_validator("template")
    @classmethod
    def _is_known(cls, text: str) -> str:
        check_placeholders(text, PLACEHOLDERS)
        if "\n" in text:
            raise ValueError("a line has no line break")
        return text

    @cached_property
    def interval_ns(self) -> int:
        """How long after one line the next one is written."""
        return round(min(NS_PER_S / self.lines_per_second, INTERVAL_NS_MAX))

    def text(self, values: Mapping[str, str]) -> str:
        """Return a line by the values of the placeholders."""
        return PLACEHOLDER.sub(lambda found: values[found[1]], self.template)


@lru_cache(maxsize=1024)
def _parse_logs(text: str) -> LogBehavior | None:
    """Return what an annotation says, as a PodBehavior says it; None if it cannot be read."""
    if len(text) > ANNOTATION_MAX:
        return None
    try:
        return LogBehavior.model_validate(read_annotation(text))
    except ValueError:  # pydantic's are such, too
        return None


def logs_with_annotations(logs: LogBehavior | None, notes: Mapping[str, str]) -> LogBehavior | None:
    """Return what a container says once the annotations of its pod are applied."""
    text = notes.get(LOGS_ANNOTATION)
    return logs if text is None else _parse_logs(text) or logs
