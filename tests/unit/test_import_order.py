"""Any module of fleet can be the first one that a process imports.

The command line imports most modules only when a command needs them, and the end-to-end tests fork
a process that has imported them all, which would hide a cycle. To import the 40 things that the
command line names, each in a process of its own, takes 22 s of CPU; to see in the sources that no
module of fleet needs itself takes one, and holds for every order.
"""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import fleet

ROOT = Path(fleet.__path__[0])


def modules() -> dict[str, Path]:
    """Return the files of fleet by the names of their modules."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_at_once(tree: ast.AST) -> Iterator[str]:
    """Yield what a module names in imports that run when it is imported itself."""
    for each in ast.iter_child_nodes(tree):
        if isinstance(each, ast.Import):
            yield from (name.name for name in each.names)
        elif isinstance(each, ast.ImportFrom):
            yield from (f"{each.module}.{name.name}" for name in each.names)
        elif isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING":
            for other in each.orelse:
                yield from imported_at_once(ast.Module([other], []))
        elif not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            yield from imported_at_once(each)


def needs(sources: dict[str, str]) -> dict[str, set[str]]:
    """Return which modules have to be imported before each; a package before what is in it."""
    found = {}
    for name, source in sources.items():
        words = [each.split(".") for each in (*imported_at_once(ast.parse(source)), name)]
        prefixes = {".".join(each[:end]) for each in words for end in range(1, len(each) + 1)}
        found[name] = (prefixes & sources.keys()) - {name}
    return found


def test_no_module_needs_itself_to_be_imported() -> None:
    found = needs({name: path.read_text() for name, path in modules().items()})
    assert "fleet.errors" in found["fleet.cli"]
    assert "fleet.run.run" not in found["fleet.cli"]  # only once a command needs it
    TopologicalSorter(found).prepare()
