"""What commands print on stdout: text or a table for people, JSON or YAML for programs."""

import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence

import orjson

Rows = Sequence[Mapping[str, object]]


def printed(output: str, value: object, text: str = "") -> str:
    """Return a result as `--output` says; `text` is what people read, else that is YAML too."""
    document = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    if output == "json":
        return document
    if output == "text" and text:
        return text.rstrip("\n")
    import yaml  # noqa: PLC0415 - `fleet --help` must be quick

    plain = orjson.loads(document)  # without dataclasses and enums
    return yaml.safe_dump(plain, sort_keys=False, width=100).rstrip("\n")


def listed(output: str, rows: Rows, nothing: str = "none") -> str:
    """Return a list: for people a table under the names of its keys, or what is said of none."""
    cells = [[str(each) for each in row.values()] for row in rows]
    lines = table([[key.upper() for key in rows[0]], *cells]) if rows else [nothing]
    if rows and sys.stdout.isatty():  # a terminal folds the last column; pipes get whole lines
        width = shutil.get_terminal_size().columns
        indent = " " * min(lines[0].rindex(" ") + 1, width // 2)
        lines = [
            part for line in lines for part in textwrap.wrap(line, width, subsequent_indent=indent)
        ]
    return printed(output, rows, "\n".join(lines))


def table(rows: Sequence[Sequence[str]], left: int | None = None, indent: str = "") -> list[str]:
    """Align columns: the first `left` to the left (default: all), the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def cells(row: Sequence[str]) -> Iterable[str]:
        for at, (cell, width) in enumerate(zip(row, widths, strict=True)):
            yield cell.ljust(width) if left is None or at < left else cell.rjust(width)

    return [f"{indent}{'  '.join(cells(row))}".rstrip() for row in rows]
