import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from fleet.errors import UsageError
from fleet.profile.loader import load_file
from fleet.profile.pod_behavior import DEFAULT_CONTAINER, select_behavior
from fleet.profile.yaml_text import (
    NESTING_MAX,
    REPEATED_MAX,
    YAMLTextError,
    read_annotation,
    read_document,
    read_documents,
)
from fleet.report.service_levels import load_objectives
from fleet.scenario.scenario import parse

LAUGHS = "a: &a [ha, ha]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)
MERGED = "a: &a {k: v}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 20)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
LONG = f"a: &a {'x' * (REPEATED_MAX // 4)}\nb: [*a, *a, *a, *a, *a]\n"
HOSTILE = {
    "billion laughs": (LAUGHS, "aliases repeat over 4 MiB"),
    "merged mappings": (MERGED, "aliases repeat over 4 MiB"),
    "a long text": (LONG, "aliases repeat over 4 MiB"),
    "itself": ("a: &a [*a]", "an alias stands inside what it repeats"),
    "brackets": ("[" * 100_000, f"is nested over {NESTING_MAX} levels deep"),
    "braces": ("{a: " * 5000, f"is nested over {NESTING_MAX} levels deep"),
    "dashes": ("- " * 5000 + "x", f"is nested over {NESTING_MAX} levels deep"),
    "base 60": ("1" + ":59" * 100_000, "a number has over 100 characters"),
    "digits": ("9" * 5000, "a number has over 100 characters"),
    "no such day": ("2001-99-99", "a value does not fit its type"),
    "no integer": ('!!int ""', "a value does not fit its type"),
    "no boolean": ("!!bool perhaps", "a value does not fit its type"),
    "no time": ("!!timestamp soon", "a value does not fit its type"),
}
READERS: dict[str, Callable[[Path], object]] = {
    "profile": load_file,
    "scenario": lambda path: parse(path.read_text(), str(path)),
    "slo": load_objectives,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_text_that_would_explode_is_refused_before_it_does(name: str) -> None:
    text, problem = HOSTILE[name]
    with pytest.raises(YAMLTextError) as refused:
        read_document(text)
    assert refused.value.problem == problem
    with pytest.raises(YAMLTextError):
        list(read_documents(f"first: document\n---\n{text}"))


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("reader", READERS)
def test_files_of_users_are_refused_in_one_line(name: str, reader: str, tmp_path: Path) -> None:
    text, problem = HOSTILE[name]
    path = tmp_path / "given.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        READERS[reader](path)
    assert problem in str(refused.value) or "is over 1 MiB" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_files_may_still_use_anchors_and_merge_keys() -> None:
    text = "base: &base {cpu: 1, memory: 2}\nnode: {<<: *base, cpu: 3}\nlist: [*base, *base]\n"
    assert read_document(text) == yaml.safe_load(text)
    assert list(read_documents("a: &a 1\nb: *a\n---\n---\nc: &a 2\nd: *a\n")) == [
        {"a": 1, "b": 1},
        None,
        {"c": 2, "d": 2},
    ]


@pytest.mark.parametrize(
    "text",
    [
        "{linesPerSecond: &a 2, size: *a}",
        "{linesPerSecond: &a 2}",
        "{<<: {linesPerSecond: 2}}",
        LAUGHS[:4000],
        "[" * 4000,
        "2001-99-99",
    ],
)
def test_an_annotation_has_no_anchors_aliases_or_merge_keys(text: str) -> None:
    with pytest.raises(YAMLTextError):
        read_annotation(text)
    notes = dict.fromkeys(("fleet.emulator/logs", "fleet.emulator/liveness-probe"), text)
    assert select_behavior((), {}, "d", notes).container("c") == DEFAULT_CONTAINER


def test_an_annotation_may_be_json_or_plain_yaml() -> None:
    for text in ('{"linesPerSecond": 2, "maxLines": 3}', "{linesPerSecond: 2, maxLines: 3}"):
        logs = select_behavior((), {}, "d", {"fleet.emulator/logs": text}).container("c").logs
        assert logs is not None
        assert (logs.lines_per_second, logs.max_lines) == (2, 3)


@pytest.mark.parametrize(
    "text",
    [
        "root:$6$SECRET:19000:0\n\tdaemon: SECRET",
        "token: SECRET: SECRET",
        "users: *SECRET",
        "password: !SECRET x",
        "a: 'SECRET",
        "? SECRET\n: SECRET\n- SECRET",
        "%SECRET x",
        "SECRET: |9x",
        "a: &SECRET 1\nb: &SECRET 1\nc: {[SECRET]: 1}",
        'a: "SECRET\\q"',
        "!!int SECRET",
        "!<SECRET> x",
    ],
)
def test_no_text_of_a_file_stands_in_an_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "given.yaml"
    path.write_text(text)
    for load in READERS.values():
        with pytest.raises(UsageError) as refused:
            load(path)
        assert "SECRET" not in str(refused.value)
    with pytest.raises(YAMLTextError) as unread:
        read_document(text)
    assert "SECRET" not in "".join(traceback.format_exception_only(unread.value))
