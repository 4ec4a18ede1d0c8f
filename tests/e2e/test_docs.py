"""Every command block of the documentation is run, every YAML block is read, as a user would.

A page is one shell: its blocks run one after the other on the control plane that all share. Only
the size differs: `fleet` and `make` are shims that hold `--nodes` at 5 and `--duration` at 2 s.
That a run was late is forgiven, as everywhere (lateness.py).
tests/support/markdown.py says what may stand behind the language of a block.
"""

import contextlib
import doctest
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import psutil
import pytest
import yaml
from support import markdown
from support.guard import MARK, marked_processes
from support.markdown import Block

from e2e.e2e_world import FLEET, WAIT_MAX_S, World
from e2e.forked_fleet import door
from fleet.cluster.ownership import RUN_LABEL
from fleet.controlplane.binaries import cache_directory
from fleet.errors import UsageError
from fleet.profile.loader import parse_documents
from fleet.report.service_levels import load_objectives
from fleet.scenario.scenario import parse as parse_scenario

pytest_plugins = ["e2e.e2e_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SHELL = ("sh", "console")
CONTEXTS = ("test", "kind-fleet", "k3d-fleet")
"""Names that the pages call a cluster; here they all are the control plane of the tests."""

PARTS_OF_PODS = {"affinity", "command", "tolerations"}
CHART = markdown.ROOT / "charts/fleet"
VALUES, VALUES_SCHEMA = (
    yaml.safe_load((CHART / name).read_text()) for name in ("values.yaml", "values.schema.json")
)

SHIM = f"""\
#!{sys.executable}
import os, signal, sys
from pathlib import Path

sys.path.insert(0, {str(markdown.ROOT / "tests")!r})
from e2e import forked_fleet
from e2e.lateness import is_late

arguments, shown = sys.argv[1:], []
limits = {{"--nodes": lambda n: str(min(5, int(n))), "--duration": lambda _: "2s"}}
limits["-n"] = limits["--nodes"]
if arguments[:1] == ["capacity"]:
    limits["--max-nodes"] = limits["--first"] = limits["--nodes"]
    arguments += ["--hold=1s"]
while arguments and arguments[0] != "--":
    name, equals, value = arguments.pop(0).partition("=")
    if name in limits:
        value = limits[name](value if equals else arguments.pop(0))
        name, equals = {{"-n": "--nodes"}}.get(name, name), "="
    shown.append(name + equals + value)
ours, theirs = os.pipe()
signal.signal(signal.SIGINT, lambda *_: process.send_signal(signal.SIGINT))
process = forked_fleet.start_on((*{FLEET}, *shown, *arguments), Path.cwd(), (0, theirs, 2))
os.close(theirs)
printed = []
for line in os.fdopen(ours):
    print(line, end="", flush=True)
    printed.append(line)
code = process.wait({WAIT_MAX_S})
sys.exit(0 if is_late(code, "".join(printed)) else code)
"""
# A checkout that was updated after `make setup` needs no new environment for this.
MAKE_SHIM = f"""\
#!/bin/sh
exec {shutil.which("make")} -C {markdown.ROOT} --assume-old=pyproject.toml "$@" \
  BIN="$(dirname "$0")" NODES=5 ARGS=--run-dir="$PWD/run"
"""
UNTIL_READY = """\
until grep -Esq 'nodes? (is|are) Ready after|dashboard: http' background.log; do
  kill -0 $background || { cat background.log >&2; exit 1; }
  sleep 0.1
done
"""
INTERRUPT = """\
kill -INT -- -$background
wait $background || { cat background.log >&2; exit 1; }
"""


def shell_blocks(page: Path) -> list[Block]:
    blocks = [block for block in markdown.blocks(page) if "untested" not in block.options]
    return [block for block in blocks if block.language in SHELL or "file" in block.options]


def script(blocks: list[Block]) -> str:
    """Make one script of a page."""
    lines = ["set -euo pipefail", "set -m"]
    has_background = False
    for block in blocks:
        lines.append(f"echo '@ {block.place}' >&2")
        if "background" in block.options:
            assert not has_background, f"{block.place}: one block a page runs in the background"
            has_background = True
            lines += [f"( {block.text} ) > background.log 2>&1 &", "background=$!", UNTIL_READY]
        elif "file" in block.options:
            lines.append(f"cat > {block.options['file']} <<'END_OF_FILE'\n{block.text}END_OF_FILE")
        elif block.language == "console":
            lines += session(block)
        else:
            lines.append(block.text)
    return "\n".join((*lines, INTERRUPT if has_background else ""))


def session(block: Block) -> Iterator[str]:
    """Yield the commands of a session; what they print is kept where an output is shown."""
    for number, (command, shown) in enumerate(commands(block)):
        into = f" | tee {block.line}.{number}.out" if shown else ""
        yield f"{{ {command}\n}}{into}"


def commands(block: Block) -> list[tuple[str, str]]:
    """Split a session into commands and the output that is shown for each."""
    found: list[tuple[str, str]] = []
    for line in block.text.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif found and found[-1][0].rstrip().endswith("\\"):
            found[-1] = (found[-1][0] + line.removeprefix("> "), "")
        else:
            assert found, f"{block.place}: a session begins with `$ `"
            found[-1] = (found[-1][0], found[-1][1] + line)
    return found


@pytest.fixture
def directory(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a page a home, a kubeconfig with the contexts it names, and the shims."""
    shims = tmp_path / "shims"
    shims.mkdir()
    for name, text in (("fleet", SHIM), ("kubectl-fleet", SHIM), ("make", MAKE_SHIM)):
        (shims / name).write_text(text)
        (shims / name).chmod(0o755)
    kubectl = shlex.join(world.info.kubectl)
    (shims / "kubectl").write_text(f'#!/bin/sh\nexec {kubectl} "$@"\n')
    (shims / "kubectl").chmod(0o755)
    document = yaml.safe_load(world.info.token_kubeconfig.read_text())
    [context] = document["contexts"]
    document["contexts"] += [{**context, "name": name} for name in CONTEXTS]
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text(yaml.safe_dump(document))
    monkeypatch.setenv("PATH", f"{shims}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_directory().parents[2]))
    monkeypatch.setenv("HOME", str(tmp_path))
    page = tmp_path / "page"
    page.mkdir()
    return page


@pytest.mark.parametrize(
    "page", [page for page in markdown.pages() if shell_blocks(page)], ids=markdown.name
)
def test_the_commands_of_a_page_work(
    page: Path, world: World, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = shell_blocks(page)
    own = "fleet controlplane", "-flag "
    if any(words in block.text for block in blocks for words in own):  # not the shared one
        monkeypatch.setenv("XDG_STATE_HOME", str(directory / "state"))
    try:
        done = subprocess.run(
            ("bash", "-c", script(blocks)),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            pass_fds=[door()],
            check=False,
        )
    finally:
        for process in marked_processes(os.environ[MARK]):
            with contextlib.suppress(psutil.Error):
                if Path(process.cwd()).is_relative_to(directory):
                    process.kill()
        left = world.items("nodes", "-l", RUN_LABEL)
        if left:  # the pages that follow are not to blame
            world.fleet("clean", "--all", "--yes")
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    checker = doctest.OutputChecker()
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for block in (each for each in blocks if each.language == "console"):
        for number, (command, shown) in enumerate(commands(block)):
            if shown:
                printed = (directory / f"{block.line}.{number}.out").read_text()
                same = checker.check_output(shown, printed, flags)
                assert same, f"{block.place}: {command}{printed}"
    assert not left, "the page leaves nodes"
    world.kubectl("delete", "deployments,jobs,pods,pvc", "--all", "--wait=false")


def yaml_blocks() -> list[Block]:
    return [
        block
        for page in markdown.pages()
        for block in markdown.blocks(page)
        if block.language == "yaml" and "untested" not in block.options
    ]


@pytest.mark.parametrize("block", yaml_blocks(), ids=lambda block: block.place)
def test_a_yaml_block_is_read(block: Block, world: World, tmp_path: Path) -> None:
    for document in yaml.safe_load_all(block.text):
        version = str(document.get("apiVersion", ""))
        if document.get("kind") == "ServiceLevelObjectives":
            (tmp_path / "slo.yaml").write_text(yaml.safe_dump(document))
            assert load_objectives(tmp_path / "slo.yaml")
        elif document.get("kind") == "Scenario":
            assert parse_scenario(yaml.safe_dump(document), block.place)
        elif version.startswith("fleet.emulator/"):
            assert parse_documents(yaml.safe_dump(document), block.place)
        elif version:
            dry_run(world, document)
        elif "phases" in document:
            head = {"apiVersion": "fleet.emulator/v1alpha1", "kind": "Scenario"}
            spec = {"nodePools": [{"name": "a", "replicas": 1}], **document}
            whole = {**head, "metadata": {"name": "a"}, "spec": spec}
            assert parse_scenario(yaml.safe_dump(whole), block.place)
        elif document.keys() & PARTS_OF_PODS:
            container = {"name": "a", "image": "a"}
            spec = {"containers": [container], **document}
            if "command" in document:
                spec = {"containers": [{**container, **document}]}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
            dry_run(world, {**pod, "spec": spec})
        elif document.keys() <= VALUES.keys():
            jsonschema.validate({**VALUES, **document}, VALUES_SCHEMA)
        else:
            read_part(document)


def dry_run(world: World, document: dict[str, object]) -> None:
    world.kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(document))


def read_part(part: dict[str, object]) -> None:
    """Read what is a part of a document of fleet: of the spec, or of what a container does."""
    spec = part.get("spec", part)
    problems = []
    for kind in ("NodeProfile", "PodBehavior"):
        for inside in (spec, {"containers": [{"name": "*", **part}]}):
            head = {"apiVersion": "fleet.emulator/v1alpha1", "kind": kind}
            text = yaml.safe_dump({**head, "metadata": {"name": "a"}, "spec": inside})
            try:
                parse_documents(text, kind)
            except UsageError as error:
                problems.append(str(error))
            else:
                return
    raise AssertionError(problems)


def test_json_blocks_are_json() -> None:
    for page in markdown.pages():
        for block in markdown.blocks(page):
            if block.language == "json":
                json.loads(block.text)
