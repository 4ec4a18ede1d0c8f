"""Write the pages of docs/reference that the code already says: `make docs`.

cli.md and the manual page fleet.1 come from click, configuration.md from the pydantic models, the
tables of summary.md and metrics.md from what `fleet.report` declares, that of faults.md from
`fleet.faults`. A unit test makes them again and compares.
"""

import re
import textwrap
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args, get_origin, get_type_hints

import click

from fleet import KUBERNETES_VERSION
from fleet.cli import cli
from fleet.controlplane.binaries import BUILT
from fleet.faults.fault import FAULTS, FaultKind, FaultType
from fleet.metrics import Histogram, Requests
from fleet.profile.loader import json_schema
from fleet.profile.schema import key_of
from fleet.quantity import format_duration
from fleet.report.figure import Figure, Kind, figures_of
from fleet.report.figures import RequestFigures, metrics
from fleet.report.report import Judgement, RunFigures
from fleet.run.cli_options import EXAMPLES, EXITS, GroupedOption, grouped

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
WIDTH = 120
TESTS = Path(__file__).parent.parent / "tests"
RECORDED, EXPECTED = TESTS / "oracle" / "recorded", TESTS / "conformance" / "expected.toml"
VERSIONS_HEADER = "| Kubernetes | release that fleet builds | judged by its kubelet | conformance |"
Json = dict[str, object]


def pages() -> dict[Path, str]:
    """Return the generated pages by their path."""
    made = {
        "cli.md": cli_page(),
        "fleet.1": man_page(),
        "configuration.md": configuration_page(),
        "summary.md": _with_table("summary.md", "| key | |", summary_rows()),
        "metrics.md": _with_table(
            "metrics.md", "| metric | type | unit | |", map(_metric, metrics())
        ),
        "faults.md": _with_table(
            "faults.md", "| fault | takes | what it does |", map(_fault, FAULTS.items())
        ),
        "versions.md": _with_table("versions.md", VERSIONS_HEADER, map(_version, BUILT.items())),
    }
    return {REFERENCE / name: text for name, text in made.items()}


def _version(row: tuple[str, str]) -> tuple[str, ...]:
    """Return the row of a minor: its release, and by what it is judged."""
    minor, release = row
    conformance = re.search(r"specs there are in Kubernetes ([0-9.]+)", EXPECTED.read_text())
    assert conformance is not None
    scenes = len({*(RECORDED / minor).glob("*.json.gz")} - {*(RECORDED / minor).glob("node*")})
    return (
        f"{minor} (default)" if release == KUBERNETES_VERSION else minor,
        release.removeprefix("v"),
        f"in {scenes} scenes" if scenes else "not yet",
        "yes" if conformance[1].startswith(minor) else "not run",
    )


def _fault(row: tuple[FaultType, FaultKind]) -> tuple[str, ...]:
    """Return the row of a fault: its name, its options, what it does."""
    name, kind = row
    options = [f"`--{key_of(each)}`" for each in kind.takes]
    needed = [" (required)" if each in kind.needs else "" for each in kind.takes]
    takes = ", ".join(map("".join, zip(options, needed, strict=True)))
    return f"`{name.value}`", takes, kind.words


def cli_page() -> str:
    """Return every command as its own `--help` describes it."""
    lines = ["# Command line", "", "Made by `make docs` of what `fleet COMMAND --help` prints.", ""]
    lines += ["Exit codes: [summary.md](summary.md#exit-codes).", ""]
    spawn = {_option(each) for listed in _groups(cli.commands["spawn"]).values() for each in listed}
    for path, command in _commands("fleet", cli):
        words, _, examples = (command.help or "").partition(EXAMPLES)
        lines += [f"## {path}", "", *_paragraphs(words), ""]
        if examples:
            lines += ["```text", *textwrap.dedent(examples.strip("\n")).splitlines(), "```", ""]
        lines += _options_of(command, () if command.name == "spawn" else spawn)
    return "\n".join(lines)


def _options_of(command: click.Command, spawn: Container[str]) -> Iterator[str]:
    """Yield tables of a command's options, and the names alone of those that `spawn` has."""
    same = []
    for title, options in _groups(command).items():
        rows = [row for row in map(_option, options) if row not in spawn]
        same += [f"`{each.opts[-1]}`" for each in options if _option(each) in spawn]
        if rows:
            yield from (f"**{title}**", "", "| option | |", "|---|---|", *rows, "")
    if same:
        words = f"As of [`fleet spawn`](#fleet-spawn-command): {', '.join(same)}."
        yield from (textwrap.fill(words, WIDTH, break_on_hyphens=False), "")


def _groups(command: click.Command) -> dict[str, list[click.Option]]:
    """Return the options of a command by their heading, without those that every command has."""
    own = [
        each
        for each in command.get_params(click.Context(command))
        if "--help" not in each.opts
        and (isinstance(each, GroupedOption) or each.name not in {"help_all", "verbose"})
    ]
    return grouped(own)


def man_page() -> str:
    """Return the manual page of all commands, for `man fleet`."""
    about = [_roff(each) for each in _paragraphs((cli.help or "").partition(EXAMPLES)[0]) if each]
    lines = ['.TH FLEET 1 "" "fleet" "User Commands"', ".SH NAME", f"fleet \\- {about[0]}"]
    lines += [".SH SYNOPSIS", ".B fleet", "COMMAND [OPTIONS]", ".SH DESCRIPTION", *about[1:]]
    lines += [".SH COMMANDS"]
    for path, command in _commands("fleet", cli):
        words, _, examples = (command.help or "").partition(EXAMPLES)
        lines += [f'.SS "{_roff(path)}"']
        lines += [_roff(each) or ".PP" for each in _paragraphs(words)]
        if examples:
            lines += [".PP", ".nf", *map(_roff, examples.strip("\n").splitlines()), ".fi"]
        for each in (each for options in _groups(command).values() for each in options):
            value = "" if each.is_flag else f" {each.make_metavar(click.Context(cli))}"
            names = _roff(f"{', '.join(each.opts)}{value}")
            lines += [".TP", f".B {names}", _roff(" ".join((each.help or "").split()))]
    lines += [".SH EXIT STATUS"]
    for code, words in EXITS.items():
        lines += [".TP", f".B {code.value}", _roff(words)]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def _commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        usage = command.collect_usage_pieces(click.Context(command))
        yield " ".join((path, *(piece for piece in usage if piece != "[OPTIONS]"))), command
        return
    if path != "fleet":
        yield path, command
    for name, each in command.commands.items():
        yield from _commands(f"{path} {name}", each)


def _paragraphs(text: str) -> list[str]:
    paragraphs = textwrap.dedent(text).strip().split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(each.split()), WIDTH) for each in paragraphs).split(
        "\n"
    )


def _option(option: click.Option) -> str:
    value = "" if option.is_flag else f" {option.make_metavar(click.Context(cli))}"
    words = [option.help or ""]
    if option.multiple:
        words.append("May be repeated.")
    if option.envvar:
        words.append(f"Also `${option.envvar}`.")
    names = ", ".join(f"`{name}{value}`" for name in option.opts)
    return f"| {_cell(names)} | {_cell(' '.join(filter(None, words)))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def configuration_page() -> str:
    """Return every key of every document that users write, with its type and default."""
    schema = json_schema()
    definitions = schema["$defs"]
    assert isinstance(definitions, dict), schema
    lines = ["# Keys of the YAML files", ""]
    lines += [
        "Made by `make docs` of the JSON schema that `fleet profiles schema` prints.",
        "[profiles.md](profiles.md) says with examples what the keys mean.",
        "",
    ]
    objects = {name: each for name, each in definitions.items() if "properties" in each}
    first = [name for name in ("NodeProfile", "PodBehaviorManifest") if name in objects]
    for name in (*first, *sorted(set(objects) - set(first))):
        described = " ".join(str(objects[name].get("description", "")).partition("\n\n")[0].split())
        lines += [f"## {name}", "", *textwrap.wrap(described, WIDTH), ""]
        lines += ["| key | type | default |", "|---|---|---|"]
        required = objects[name].get("required", [])
        for key, each in objects[name]["properties"].items():
            default = "required" if key in required else _default(each)
            lines.append(f"| `{key}` | {_type(each, definitions)} | {default} |")
        lines.append("")
    return "\n".join(lines)


def _default(each: Json) -> str:
    value = each.get("default")
    if value in (None, "", [], ()) or isinstance(value, dict):
        return ""
    if isinstance(value, int) and each.get("type") == "string":
        return f"`{format_duration(value)}`" if value else ""
    return f"`{value}`"


def _type(each: Json, definitions: dict[str, Json]) -> str:
    """Say what a key takes, in words; what is a document's part of its own is linked."""
    if "$ref" in each:
        name = str(each["$ref"]).rpartition("/")[2]
        found = definitions[name]
        if "properties" in found:
            return f"[{name}](#{name.lower()})"
        return _type(found, definitions)
    for several in ("anyOf", "oneOf", "allOf"):
        if isinstance(options := each.get(several), list):
            kinds = [_type(option, definitions) for option in options]
            return " or ".join(dict.fromkeys(kind for kind in kinds if kind != "null"))
    if "enum" in each or "const" in each:
        values = each.get("enum", [each.get("const")])
        assert isinstance(values, list), each
        return ", ".join(f"`{value}`" for value in values)
    inside = each.get("items", each.get("additionalProperties"))
    kind = {"array": "list", "object": "map"}.get(str(each.get("type")), each.get("type", "any"))
    return f"{kind} of {_type(inside, definitions)}" if isinstance(inside, dict) else str(kind)


def _with_table(page: str, header: str, rows: Iterable[tuple[str, ...]]) -> str:
    """Return a page with its first table of this header made again."""
    before, _, rest = (REFERENCE / page).read_text().partition(f"{header}\n")
    lines = [
        header,
        "---".join("|" * header.count("|")),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    table, rest = "\n".join(lines), rest.partition("\n\n")[2]
    return f"{before}{table}\n\n{rest}".rstrip() + "\n"


def summary_rows() -> Iterator[tuple[str, str]]:
    """Yield the keys of summary.json with what they mean."""
    yield from _keys(Judgement)
    yield from _keys(RunFigures)


def _keys(record: type["DataclassInstance"], prefix: str = "") -> Iterator[tuple[str, str]]:
    hints = get_type_hints(record)
    for name, figure in figures_of(record).items():
        hint, key = hints[name], prefix + (figure.key or name)
        if hint is Requests:
            hint = Sequence[RequestFigures]
        inside = [
            each
            for each in (hint, *get_args(hint))
            if isinstance(each, type) and is_dataclass(each) and each is not Histogram
        ]
        if get_origin(hint) is Sequence:
            key += "[]"
        elif get_origin(hint) is Mapping and inside:
            key += ".NAME"
        for each in inside:
            yield from _keys(each, f"{key}.")
        if not inside:
            shares = ("p50", "p99", "max")[: 2 + figure.has_max]
            keys = [f"{key}.p50", *(f".{each}" for each in shares[1:])]
            cell = ", ".join(f"`{each}`" for each in (keys if hint is Histogram else [key]))
            unit = {"ms": "milliseconds", "s": "seconds"}.get(re.split(r"[._]", key)[-1], "")
            colon = ":" * (bool(unit) and not figure.words.startswith(("from ", "of ")))
            yield cell, f"{unit}{colon} {figure.words}".strip()


def _metric(figure: Figure) -> tuple[str, str, str, str]:
    name = f"fleet_{figure.metric}" + ("_total" if figure.kind is Kind.COUNTER else "")
    labels = f"{{{','.join(figure.labels)}}}" if figure.labels else ""
    kind = {Kind.COUNTER: "counter", Kind.HISTOGRAM: "histogram"}.get(figure.kind, "gauge")
    unit = next((each for each in ("seconds", "bytes") if each in figure.metric), "")
    return f"`{name}{labels}`", kind, unit, figure.words


def main() -> None:
    """Write the pages."""
    for path, text in pages().items():
        path.write_text(text)
        print(path)


if __name__ == "__main__":
    main()
