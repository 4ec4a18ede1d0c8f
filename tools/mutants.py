"""Say which small changes of fleet's code the tests notice, module by module.

    python tools/mutants.py --seed=32 --modules=20       # a table of modules
    python tools/mutants.py fleet/clock.py --show         # the mutants of one that live

A mutant is a function with one operator, comparison, constant, condition, call or return changed.
The test files that import the module, and those of its folder, run until a test fails. Simulations
and recorded scenes that reach the changed line follow, the cheap ones first, where coverage has
been recorded (`--reached`):

    COVERAGE_FILE=sims pytest --cov=fleet --cov-context=test --cov-report= tests/sim

One process collects the tests, and a fork of it runs each mutant, so that a mutant costs what its
tests cost. What a module computes when it is imported (tables, classes) is not mutated.
"""

import argparse
import ast
import contextlib
import copy
import gc
import importlib
import json
import os
import random
import resource
import sqlite3
import sys
import time
import types
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from coverage.numbits import numbits_to_nums

ROOT = Path(__file__).resolve().parents[1]
CPU_MAX_S = 60
"""What ends a mutant that never ends; the processor's time, for a busy machine is no verdict."""
REACHED_MAX = 20
"""Of the simulations and scenes that reach a line; the rest cost more than they find."""
PAIRS: tuple[tuple[type[ast.AST], type[ast.AST]], ...] = (
    *((ast.Eq, ast.NotEq), (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Is, ast.IsNot)),
    *((ast.In, ast.NotIn), (ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv)),
    (ast.BitAnd, ast.BitOr),
)
OPPOSITES: dict[type[ast.AST], type[ast.AST]] = {
    ast.Div: ast.Mult,
    ast.Mod: ast.Add,
    **dict(PAIRS),
    **{second: first for first, second in PAIRS},
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Mutant(NamedTuple):
    """One change of a module: where, what, and the module with it."""

    path: str
    line: int
    what: str
    tree: ast.Module


class Reached:
    """Which tests reach which lines, as pytest-cov has recorded it."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._cost: dict[str, int] = defaultdict(int)
        for file in files:
            for path, context, bits in sqlite3.connect(file).execute(
                "select path, context, numbits from line_bits join file on file.id = file_id"
                " join context on context.id = context_id where context != ''"
            ):
                name = str(context).rpartition("|")[0]
                lines = numbits_to_nums(bits)
                self._cost[name] += len(lines)
                for line in lines:
                    self._lines[path[path.rindex("/fleet/") + 1 :]][line].add(name)

    def tests(self, path: str, line: int) -> list[str]:
        """Return the tests that reach a line; those that reach least of fleet come first."""
        return sorted(self._lines[path][line], key=lambda name: (self._cost[name], name))


def near(path: str) -> list[Path]:
    """Return the test files that import a module, then the others of the folder that mirrors its.

    End-to-end tests are none of them.
    """
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    package, name = ".".join(parts[:-1]), parts[-1]
    found = [file for file in sorted((ROOT / "tests").rglob("test_*.py")) if is_quick(file)]
    folder = Path("tests", "unit", *parts[1:-1])
    beside = [file for file in found if parts[1:-1] and file.parent == ROOT / folder]
    return list(dict.fromkeys([*(each for each in found if imports(each, package, name)), *beside]))


def is_quick(file: Path) -> bool:
    """Return whether a test file is about fleet and needs no control plane."""
    text = file.read_text()
    return "fleet" in text and "mark.e2e" not in text


def imports(file: Path, package: str, name: str) -> bool:
    """Return whether a file imports a module of a package."""
    return any(
        isinstance(node, ast.ImportFrom)
        and (
            node.module == f"{package}.{name}"
            or (node.module == package and name in {each.name for each in node.names})
        )
        for node in ast.walk(ast.parse(file.read_text()))
    )


def mutants_of(path: str) -> Iterator[Mutant]:
    """Yield every mutant of a module."""
    tree = ast.parse((ROOT / path).read_text())
    count = sum(1 for _ in _sites(tree))
    for number in range(count):
        changed = copy.deepcopy(tree)
        line, what, change = next(each for n, each in enumerate(_sites(changed)) if n == number)
        change()
        yield Mutant(path, line, what, ast.fix_missing_locations(changed))


def _sites(tree: ast.Module) -> Iterator[tuple[int, str, Any]]:
    """Yield what can be changed in the functions of a module: line, description, the change."""
    seen: set[int] = set()
    for function in ast.walk(tree):
        if not isinstance(function, FUNCTIONS):
            continue
        for statement in function.body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Assert) or _is_docstring(node):
                    seen.update(map(id, ast.walk(node)))
                if isinstance(node, ast.AnnAssign):
                    seen.update(map(id, ast.walk(node.annotation)))
                if id(node) not in seen:
                    seen.add(id(node))
                    yield from _changes(node)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _changes(node: ast.AST) -> Iterator[tuple[int, str, Any]]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in OPPOSITES:
            yield _swap(node, operator, lambda new: setattr(node, "ops", [new]))
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) | ast.AugAssign(op=operator):
            if type(operator) in OPPOSITES:
                yield _swap(node, operator, lambda new: setattr(node, "op", new))
        case ast.Constant(value=bool() | int() | float() | bytes() | str() as value):
            new = _other(value)
            yield node.lineno, f"{value!r} to {new!r}", lambda: setattr(node, "value", new)
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            no = ast.copy_location(ast.UnaryOp(ast.Not(), test), test)
            yield test.lineno, "condition denied", lambda: setattr(node, "test", no)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            nothing = ast.copy_location(ast.Constant(None), value)
            yield node.lineno, "returns None", lambda: setattr(node, "value", nothing)
        case ast.Expr(value=ast.Call() as call):
            nothing = ast.copy_location(ast.Constant(None), call)
            yield node.lineno, "call left out", lambda: setattr(node, "value", nothing)
        case _:
            return


def _swap(node: Any, operator: ast.AST, put: Any) -> tuple[int, str, Any]:
    new = OPPOSITES[type(operator)]
    text = f"{type(operator).__name__} to {new.__name__}"
    return node.lineno, text, lambda: put(new())


def _other(value: float | bytes | str) -> float | bytes | str:
    match value:
        case bool():
            return not value
        case bytes():
            return value + b"X"
        case str():
            return value + "X"
        case _:
            return value + 1


def functions_of(path: str) -> list[types.FunctionType]:
    """Import a module; return its functions and methods, wherever they are held."""
    importlib.import_module(path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
    file = str(ROOT / path)
    functions = (each for each in gc.get_objects() if type(each) is types.FunctionType)
    return [each for each in functions if each.__code__.co_filename == file]


def apply(mutant: Mutant, functions: Sequence[types.FunctionType]) -> None:
    """Give the functions of an imported module their changed code."""
    codes: dict[tuple[str, int], types.CodeType] = {}
    waiting = [compile(mutant.tree, str(ROOT / mutant.path), "exec")]
    while waiting:
        code = waiting.pop()
        codes[code.co_qualname, code.co_firstlineno] = code
        waiting += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    for function in functions:
        old = function.__code__
        new = codes.get((old.co_qualname, old.co_firstlineno))
        if new is not None and new.co_freevars == old.co_freevars:
            function.__code__ = new


class Runner:
    """Runs tests against mutants, each in a fork of the process that has collected the tests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._reached = Reached(options.reached)
        self._items: dict[str, pytest.Item] = {}
        self._sound: dict[str, bool] = {}
        self._functions: list[types.FunctionType] = []
        self._failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        self._failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judge every module in place of running the tests once."""
        self._items = {item.nodeid: item for item in session.items}
        print(f"{len(self._items)} tests; per module: mutants, killed, not reached, score")
        killed = counted = 0
        for path in self._options.modules_drawn:
            results = list(self._judge(path))
            dead = sum(1 for each in results if each["killed_by"])
            lost = sum(1 for each in results if not each["tests"])
            share = f"{dead / len(results):.0%}" if results else "-"
            print(f"{path:55} {len(results):4} {dead:4} {lost:4} {share:>5}", flush=True)
            killed, counted = killed + dead, counted + len(results)
        print(f"{'all':55} {counted:4} {killed:4} {'':4} {killed / max(counted, 1):5.1%}")
        return True

    def _judge(self, path: str) -> Iterator[dict[str, Any]]:
        self._functions = functions_of(path)
        ranks = {file: rank for rank, file in enumerate(near(path))}
        items = [each for each in self._items.values() if each.path in ranks]
        items.sort(key=lambda item: ranks[item.path])
        narrow = [item.nodeid for item in items]
        every = list(mutants_of(path))
        drawn = random.Random(f"{self._options.seed} {path}")  # noqa: S311 (a sample)
        for mutant in drawn.sample(every, min(self._options.mutants, len(every))):
            reached = self._reached.tests(path, mutant.line)
            names = [*narrow, *[each for each in reached if each in self._items][:REACHED_MAX]]
            result = {
                "module": path,
                "line": mutant.line,
                "what": mutant.what,
                "tests": len(names),
                "killed_by": self._killers(mutant, names),
            }
            if self._options.log:
                with self._options.log.open("a") as log:
                    log.write(json.dumps(result) + "\n")
            if self._options.show and not result["killed_by"]:
                print(f"  lives: {path}:{mutant.line} {mutant.what} ({len(names)} tests)")
            yield result

    def _killers(self, mutant: Mutant, names: list[str]) -> list[str]:
        """Return the tests that fail with a mutant: the first, or every one."""
        found = self._fork(mutant, names, first=not self._options.every)
        return [name for name in found if self._is_sound(name)]

    def _is_sound(self, name: str) -> bool:
        """Return whether a test passes without a mutant, in a fork as well."""
        if name not in self._sound:
            self._sound[name] = not self._fork(None, [name], first=True)
        return self._sound[name]

    def _fork(self, mutant: Mutant | None, names: list[str], *, first: bool) -> list[str]:
        if not names:
            return []
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            with contextlib.suppress(BaseException):
                self._child(mutant, names, writing, first=first)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.read().splitlines()
        os.waitpid(child, 0)
        # What was begun and has no end did not survive the mutant, or the time that it has.
        return [name for name in said if said.count(name) == 1]

    def _child(self, mutant: Mutant | None, names: list[str], pipe: int, *, first: bool) -> None:
        """Say each test when it begins, and again if it passes."""
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_MAX_S, CPU_MAX_S))
        if mutant is not None:
            apply(mutant, self._functions)
        for name in names:
            os.write(pipe, f"{name}\n".encode())
            self._failed = False
            item = self._items[name]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if not self._failed:
                os.write(pipe, f"{name}\n".encode())
            elif first:
                break


def modules(options: argparse.Namespace) -> list[str]:
    """Return the modules that were named, or a sample of all that have functions."""
    if options.paths:
        return [str(path) for path in options.paths]
    every = sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "fleet").rglob("*.py")
        if "def " in path.read_text() and not path.stem.endswith("_pb2")
    )
    return random.Random(options.seed).sample(every, options.modules)  # noqa: S311 (a sample)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path, help="modules, such as fleet/clock.py")
    parser.add_argument("--reached", action="append", type=Path, default=[], help="coverage")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--modules", type=int, default=20, help="how many are drawn (20)")
    parser.add_argument("--mutants", type=int, default=40, help="of each module at most (40)")
    parser.add_argument("--every", action="store_true", help="name every test that fails")
    parser.add_argument("--log", type=Path, help="write each mutant and its killers as JSON")
    parser.add_argument("--show", action="store_true", help="name the mutants that live")
    return parser.parse_args(arguments)


def main() -> None:
    """Collect the tests once, and judge."""
    options = parsed(sys.argv[1:])
    os.chdir(ROOT)
    began = time.monotonic()
    quiet = ("-p", "no:terminal", "--timeout=0", "-p", "no:cacheprovider", "-m", "not e2e")
    options.modules_drawn = modules(options)
    files = {str(file) for path in options.modules_drawn for file in near(path)}
    if options.reached:
        files |= {"tests/sim", "tests/oracle/test_recorded.py"}
    pytest.main([*quiet, *sorted(files)], plugins=[Runner(options)])
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
