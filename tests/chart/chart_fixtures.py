"""What the tests of the chart share: a pytest plug-in beside e2e_fixtures.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.e2e_world import World

from chart.chart_release import Places, Release, released
from chart.helm_commands import Helm
from chart.played_node import PlayedNode


@pytest.fixture(scope="session")
def bare_helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm that has no cluster."""
    return Helm(tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def helm(world: World) -> Helm:
    return Helm(world.root / "helm", world.info.token_kubeconfig)


@pytest.fixture
def node(world: World, tmp_path: Path) -> Iterator[PlayedNode]:
    with PlayedNode(world.info.token_kubeconfig, tmp_path / "node") as played:
        yield played
    assert played.failure is None, played.failure


@pytest.fixture
def release(helm: Helm, world: World, node: PlayedNode) -> Iterator[Release]:
    with released(Places(helm, world, node, world)) as found:
        yield found
