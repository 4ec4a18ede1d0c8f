"""What the end-to-end tests share: a pytest plug-in that test modules name in `pytest_plugins`.

No conftest.py: mypy takes only one of that name, and the wire tests have it.
"""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from support.go_program import TESTED
from support.guard import guarded, marked_processes

from e2e.e2e_world import FOREIGN_NODE, Running, World, eventually, six_nodes
from e2e.forked_fleet import fork_server
from e2e.leftovers import leftovers
from e2e.own_control_plane import own_control_plane, standing
from fleet.controlplane.options import CONTROLLER_MANAGER

FIRST = (
    "test_oracle",
    "test_real_kubelet",
    "test_docs",
    "test_scenarios",
    "test_chart",
    "test_chart_install",
    "test_chart_dashboard",
    "test_cluster",
    "test_kubelet_server",
    "test_agents",
    "test_streams",
    "test_kubectl",
    "test_smoke",
    "test_trouble",
    "test_dashboard",
    "test_rights",
    "test_controlplane",
    "test_pod_sources",
    "test_volumes",
    "test_workloads",
)
"""The long modules, in the order in which they begin."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say in which order tests run, and which of them on one worker, for xdist's loadgroup.

    Tests that share a fleet or a control plane of their module stay together, as do those of a
    module of the chart, whose release has one name. They come first: each other test goes to the
    next free worker, so that no worker is left with a whole module at the end.
    """
    ranks = {f"{name}.py": rank for rank, name in enumerate(FIRST)}
    for item in items:
        if item.get_closest_marker("xdist_group"):
            continue  # a part of its module
        if item.path.parent.name == "chart" or shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))

    def place(item: pytest.Item) -> tuple[bool, int]:
        is_single = item.get_closest_marker("xdist_group") is None
        return is_single, ranks.get(item.path.name, len(FIRST))

    items.sort(key=place)


def shares_a_fixture(item: pytest.Item) -> bool:
    """Return whether a fixture of a test lives as long as its module."""
    assert isinstance(item, pytest.Function), item
    found = item._fixtureinfo.name2fixturedefs.values()
    return any(each.scope == "module" for fixtures in found for each in fixtures)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    leftovers.begin(item.path)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    leftovers.call()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.append(("the cluster when it failed", leftovers.fail(item.nodeid)))
    return report


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Hide the user's state, but for the built programs; at the end nothing of ours runs."""
    root = tmp_path_factory.mktemp("world")
    with guarded(str(root)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", str(root / "state"))
            patch.setenv("NO_PROXY", "*")
            patch.setenv("FLEET_NO_REPORT", "1")  # 2 s a run; test_run_reports.py has some
            patch.setenv("FLEET_NO_AGENTS", "1")  # of kubelets; test_agents.py has both
            patch.delenv("KUBECONFIG", raising=False)
            with fork_server():
                yield root
        eventually(lambda: not marked_processes(str(root)), "every process has ended")


@pytest.fixture(scope="session")
def world(environment: Path) -> Iterator[World]:
    """Bring a control plane up as a user would."""
    with standing(environment, TESTED) as found, leftovers.watched(found) as world:
        yield world


@pytest.fixture(scope="module")
def stage(world: World) -> Iterator[Running]:
    """Run six nodes for all tests of a module."""
    yield from six_nodes(world, "stage")


@pytest.fixture(scope="module")
def eager(environment: Path) -> Iterator[World]:
    """Run a control plane to which a node is Unknown that says nothing for 25 s, not 50."""
    flags = {CONTROLLER_MANAGER: ("node-monitor-grace-period=25s", "node-monitor-period=1s")}
    with own_control_plane(environment, flags) as (world, _, _):
        yield world


@pytest.fixture
def foreign_node(world: World) -> Iterator[str]:
    """Make a shared cluster of it: a node that fleet did not create is there."""
    world.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": FOREIGN_NODE}})
    yield FOREIGN_NODE
    world.kubectl("delete", "node", FOREIGN_NODE)
