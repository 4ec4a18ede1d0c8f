"""Write the pages of docs/reference that the code already says: `make docs`.

cli.md and the manual page fleet.1 come from click, configuration.md from the pydantic models, the
tables of summary.md and metrics.md from what `fleet.report` declares, that of faults.md from
`fleet.faults`. A unit test makes them again and compares.
"""

import html
import itertools
import json
import re
import textwrap
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args, get_origin, get_type_hints

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
from fleet.report.report import SCHEMA_VERSION, Judgement, Outcome, RunFigures
from fleet.run.cli_options import EXAMPLES, EXITS, GroupedOption, grouped

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
WIDTH = 120
FOR_RIGHTS = "As you will give it to the run."
LIKE_SPAWN = "Options of [`fleet spawn`](#fleet-spawn-command)"
TESTS = Path(__file__).parent.parent / "tests"
RECORDED, EXPECTED = TESTS / "oracle" / "recorded", TESTS / "conformance" / "expected.toml"
OPTION = re.compile(r"(?<![`\w])(--[a-z][a-z-]+|-- COMMAND|\$[A-Z_]+)(?![\w`])")
VERSIONS_HEADER = "| Kubernetes | release that fleet builds | judged by its kubelet | conformance |"
SMOKE = TESTS / "versions" / "figures.json"
"""What `make versions RECORD=1` measured."""
STEPS = {"register": "nodes Ready", "pods up": "100 pods Ready", "pods down": "pods gone"}
VERBS = ("create", "get", "list", "watch", "update", "patch", "delete")
MEASURED = "<!-- make versions RECORD=1 writes this -->"
MEASURED_TEXT = """
`make versions VERSION_NODES={nodes} RECORD=1` measured this with {nodes:,} nodes of fidelity
`kubelet` on each minor: wall times, and the requests of a node by verb from its start until the
pods are gone. An API server refuses what it does not know with 400, 404, 405, 406, 415 or 422.
"""
Json = dict[str, object]
JSON_TYPES = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    type(None): "null",
}


def pages() -> dict[Path, str]:
    """Return the generated pages by their path."""
    made = {
        "cli.md": cli_page(),
        "fleet.1": man_page(),
        "configuration.md": configuration_page(),
        "summary.md": _with_table("summary.md", "| key | |", summary_rows()),
        "metrics.md": _with_table("metrics.md", "| metric | type | |", map(_metric, metrics())),
        "faults.md": _with_table(
            "faults.md", "| fault | takes | what it does |", map(_fault, FAULTS.items())
        ),
        "versions.md": versions_page(),
        "summary.schema.json": json.dumps(summary_schema(), indent=1) + "\n",
    }
    return {REFERENCE / name: text for name, text in made.items()}


def versions_page() -> str:
    """Return the page of versions, with what `make versions` measured if it did."""
    page = _with_table("versions.md", VERSIONS_HEADER, map(_version, BUILT.items()))
    before, mark, rest = page.partition(MEASURED)
    after = rest.partition(MEASURED)[2]
    shown = measured(json.loads(SMOKE.read_text())) if SMOKE.exists() else ""
    return f"{before}{mark}{shown}{mark}{after}"


def measured(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the section of a table: seconds of each step, and requests of a node by verb."""
    nodes = rows[0]["nodes"]
    lines = []
    for row in rows:
        times = [f"{row['took_s'][step]:.0f} s" for step in STEPS]
        counts = [f"{row['requests'].get(verb, 0) / nodes:.1f}" for verb in VERBS]
        cells = (row["release"].removeprefix("v"), *times, *counts, sum(row["refused"].values()))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    header = f"| {' | '.join(('Kubernetes', *STEPS.values(), *VERBS, 'refused'))} |"
    text = MEASURED_TEXT.format(nodes=nodes)
    return "\n".join((text, header, "---".join("|" * header.count("|")), *lines, "", ""))


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
    """Return every command as its own `--help` describes it, a shared option once."""
    lines = ["# Command line", ""]
    lines += ["What `fleet COMMAND --help` prints. [Exit codes](summary.md#exit-codes).", ""]
    spawn = _rows(cli.commands["spawn"])
    others = [_rows(each) for _, each in _commands("fleet", cli) if each.name != "spawn"]
    uses = Counter(row for rows in others for row in {*rows} - {*spawn})
    shared = {row: name for rows in others for row, name in rows.items() if uses[row] > 1}
    lines += ["Options of several commands:", "", *_table(shared), ""]
    for path, command in _commands("fleet", cli):
        words, _, examples = (command.help or "").partition(EXAMPLES)
        lines += [f"## {path}", "", *_paragraphs(OPTION.sub(r"`\1`", words)), ""]
        if examples:
            lines += ["```text", *textwrap.dedent(examples.strip("\n")).splitlines(), "```", ""]
        is_spawn = command.name == "spawn"
        lines += _options_of(command, {} if is_spawn else spawn, {} if is_spawn else shared)
    return "\n".join(lines)


def _rows(command: click.Command) -> dict[str, str]:
    """Return the rows of a command's options with their names."""
    options = (each for listed in _groups(command).values() for each in listed)
    return {_option(each): f"`{each.opts[-1]}`" for each in options}


def _table(rows: Iterable[str]) -> Iterator[str]:
    yield from ("| option | |", "|---|---|", *rows)


def _options_of(
    command: click.Command, spawn: Mapping[str, str], shared: Container[str]
) -> Iterator[str]:
    """Yield tables of a command's options, and the names alone of those that stand elsewhere."""
    groups = _groups(command)
    own, of_spawn, common = set(), set(), []
    for title, options in groups.items():
        rows = []
        for each in options:
            row, name = _option(each), f"`{each.opts[-1]}`"
            if row in spawn or (each.help == FOR_RIGHTS and name in spawn.values()):
                of_spawn.add(name)
            elif row in shared:
                common.append(name)
            else:
                own.add(name)
                rows.append(row)
        if rows:
            heading = (f"**{title}**", "") if len(groups) > 1 else ()
            yield from (*heading, *_table(rows), "")
    words = []
    if of_spawn:
        left = [name for name in spawn.values() if name not in of_spawn | own]
        named = [name for name in spawn.values() if name in of_spawn]
        some, all_but = (
            f"{LIKE_SPAWN}: {', '.join(named)}.",
            f"{LIKE_SPAWN}, but {', '.join(left)}.",
        )
        words.append(min(some, all_but.replace("Options", "All options"), key=len))
    if common:
        words.append(f"Also {', '.join(common)}.")
    if words:
        yield from (textwrap.fill(" ".join(words), WIDTH, break_on_hyphens=False), "")


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
    for name, each in command.commands.items():
        yield from _commands(f"{path} {name}", each)


def _paragraphs(text: str) -> list[str]:
    paragraphs = textwrap.dedent(text).strip().split("\n\n")
    return "\n\n".join(
        textwrap.fill(" ".join(each.split()), WIDTH, break_on_hyphens=False) for each in paragraphs
    ).split("\n")


def _option(option: click.Option) -> str:
    value = "" if option.is_flag else f" {option.make_metavar(click.Context(cli))}"
    words = [option.help or ""]
    if option.multiple:
        words.append("Repeatable.")
    if option.envvar:
        words.append(f"Also `${option.envvar}`.")
    *short, long = option.opts
    names = ", ".join((*(f"`{name}`" for name in short), f"`{long}{value}`"))
    return f"| {_cell(names)} | {_cell(' '.join(filter(None, words)))} |"


def _cell(text: str) -> str:
    """Return the text of a cell: in code no backslash before a bar, which the site would show."""
    code = re.sub(r"`([^`]*\|[^`]*)`", lambda at: f"<code>{html.escape(at[1])}</code>", text)
    return code.replace("|", "&#124;")


def configuration_page() -> str:
    """Return every key of every document that users write, with its type and default."""
    definitions = json_schema()["$defs"]
    assert isinstance(definitions, dict), definitions
    uses = Counter(re.findall(r'"#/\$defs/(\w+)"', json.dumps(json_schema())))
    objects = {name: each for name, each in definitions.items() if "properties" in each}
    shared = {name: each for name, each in objects.items() if uses[name] > 1}
    lines = ["# Keys of the YAML files", ""]
    lines += [
        "What the keys mean: [profiles](profiles.md), [agents](../how-to/agents.md).",
        "`=` precedes a default. A time is a duration such as `10s`, or a Distribution. Names with",
        "a capital letter are [shared types](#shared-types). `fleet profiles schema` prints the",
        "same as JSON schema.",
        "",
    ]
    for name in ("NodeProfile", "PodBehaviorManifest", "NodeAgent"):
        lines += [f"## {name.removesuffix('Manifest')}", ""]
        lines += ["```text", *_tree(objects[name], definitions, shared), "```", ""]
    lines += ["## Shared types", ""]
    for name, each in shared.items():
        lines += [f"### {_shared(name)}", "", *textwrap.wrap(_about(each), WIDTH), ""]
        lines += ["```text", *_tree(each, definitions, shared), "```", ""]
    return "\n".join(lines)


def _about(described: Json) -> str:
    """Return the first paragraph of what a type is, without the upstream type it follows."""
    words = " ".join(str(described.get("description", "")).partition("\n\n")[0].split())
    words = words.partition("Source:")[0].strip()
    return "" if words.startswith(("The spec of ", "The status of ")) else words


def _shared(name: str) -> str:
    return name.removesuffix("Spec")


def _tree(found: Json, definitions: dict[str, Json], shared: Container[str]) -> Iterator[str]:
    """Yield the keys of an object as YAML has them, each with those of the object in it."""
    keys, required = found["properties"], found.get("required", [])
    assert isinstance(keys, dict), found
    assert isinstance(required, list), found
    for key, each in keys.items():
        present = next(iter(_present(each)))
        items = present.get("items")
        is_list = isinstance(items, dict)
        inside = _inside(items if isinstance(items, dict) else present, definitions, shared)
        if inside is None:
            default = _default(each)
            words = f" = {default}" if default and "const" not in each else ""
            words += ", required" * (key in required and "const" not in each)
            yield f"{key}: {_type(each, definitions)}{words}"
            continue
        yield f"{key}:"
        for number, line in enumerate(_tree(inside, definitions, shared)):
            yield f"{'- ' if is_list and not number else '  '}{line}"


def _present(each: Json) -> list[Json]:
    """Return what a key takes other than null."""
    options = each.get("anyOf", [each])
    assert isinstance(options, list), each
    return [option for option in options if option.get("type") != "null"]


def _inside(each: Json, definitions: dict[str, Json], shared: Container[str]) -> Json | None:
    """Return the object that a key holds, unless it is a type of more than one key."""
    name = str(each.get("$ref", "")).rpartition("/")[2]
    found = definitions.get(name, {})
    return found if "properties" in found and name not in shared else None


def _default(each: Json) -> str:
    value = each.get("default")
    if value in (None, "", [], ()) or isinstance(value, dict):
        return ""
    if isinstance(value, int) and each.get("type") == "string":
        return format_duration(value) if value else ""
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value) if isinstance(value, list | bool) else str(value)


def _type(each: Json, definitions: dict[str, Json]) -> str:
    """Say what a key takes, in words."""
    if "$ref" in each:
        name = str(each["$ref"]).rpartition("/")[2]
        found = definitions[name]
        return _shared(name) if "properties" in found else _type(found, definitions)
    if "anyOf" in each:
        kinds = [_type(option, definitions) for option in _present(each)]
        return "time" if kinds == ["Distribution", "string"] else " or ".join(kinds)
    if "enum" in each or "const" in each:
        values = each.get("enum", [each.get("const")])
        assert isinstance(values, list), each
        if "true" in values:  # the words that Go reads as a boolean
            return "boolean"
        return "|".join(str(value) or '""' for value in values)
    inside = each.get("items", each.get("additionalProperties"))
    kind = {"array": "list", "object": "map"}.get(str(each.get("type")), each.get("type", "any"))
    if isinstance(kind, list):  # an amount such as 500m or 2Gi, or a bare number
        return "quantity"
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
    """Yield the keys of summary.json with what they mean, in one row those that mean the same."""
    rows = itertools.chain(_keys(Judgement), _keys(RunFigures))
    for words, keys in itertools.groupby(rows, lambda row: row[1]):
        yield ", ".join(key for key, _ in keys), words


def summary_schema() -> Json:
    """Return the JSON schema of summary.json. Later versions of fleet may add keys."""
    judged, measured = _object(Judgement), _object(RunFigures)
    found = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "summary.json"}
    properties = judged["properties"] | measured["properties"]  # type: ignore[operator]
    properties["schema_version"] = {"const": SCHEMA_VERSION}
    properties["verdict"] |= {"enum": list(Outcome)}
    return found | {"type": "object", "properties": properties, "required": list(properties)}


def _object(record: type["DataclassInstance"]) -> Json:
    """Return the schema of a record, whose key `a.b` is b within a."""
    hints, properties = get_type_hints(record), dict[str, Json]()
    for name, figure in figures_of(record).items():
        *groups, key = (figure.key or name).split(".")
        inside = properties
        for group in groups:
            made = inside.setdefault(group, {"type": "object", "properties": {}})
            made["required"] = [*cast("list[str]", made.get("required", [])), key]
            inside = cast("dict[str, Json]", made["properties"])
        about = {"description": figure.words} if figure.words else {}
        inside[key] = _schema_of(hints[name], has_max=figure.has_max) | about
    return {"type": "object", "properties": properties, "required": list(properties)}


def _schema_of(hint: object, *, has_max: bool = False) -> Json:
    """Return the schema of a value as `fleet.report.report.shown` writes it."""
    if hint is Requests:
        hint = Sequence[RequestFigures]
    if hint is Histogram:
        shares = ("p50", "p99", "max")[: 2 + has_max]
        each = {"type": ["number", "null"]}
        return {
            "type": "object",
            "properties": dict.fromkeys(shares, each),
            "required": [*shares],
        }
    if isinstance(hint, type) and is_dataclass(hint):
        return _object(hint)
    inside, origin = get_args(hint), get_origin(hint)
    if origin is Sequence:
        return {"type": "array", "items": _schema_of(inside[0])}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema_of(inside[1])}
    types = [JSON_TYPES[each] for each in (inside or (hint,)) if isinstance(each, type)]
    return {"type": types if len(types) > 1 else types[0]}


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
            is_of_agent = key.startswith("agents.NAME.requests[]")
            yield cell, "as in `requests[]`" if is_of_agent else figure.words


def _metric(figure: Figure) -> tuple[str, str, str]:
    name = f"fleet_{figure.metric}" + ("_total" if figure.kind is Kind.COUNTER else "")
    labels = f"{{{','.join(figure.labels)}}}" if figure.labels else ""
    kind = {Kind.COUNTER: "counter", Kind.HISTOGRAM: "histogram"}.get(figure.kind, "gauge")
    return f"`{name}{labels}`", kind, figure.words


def main() -> None:
    """Write the pages."""
    for path, text in pages().items():
        path.write_text(text)
        print(path)


if __name__ == "__main__":
    main()
