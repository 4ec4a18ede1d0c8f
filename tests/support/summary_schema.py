"""The JSON schema of summary.json, which every summary that a test reads must meet."""

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

PAGE = Path(__file__).parents[2] / "docs/reference/summary.schema.json"
VALIDATOR = Draft202012Validator(json.loads(PAGE.read_text()))


def errors_of(summary: object) -> list[str]:
    """Return where a summary is not as its schema says."""
    return [f"{each.json_path}: {each.message}" for each in VALIDATOR.iter_errors(summary)]


def read_summary(path: Path) -> dict[str, Any]:
    """Return a summary that meets its schema."""
    found: dict[str, Any] = json.loads(path.read_text())
    assert not errors_of(found), path
    return found
