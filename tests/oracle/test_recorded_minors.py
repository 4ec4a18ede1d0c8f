"""Scenes that real kubelets of other minors were recorded in, on nodes of fleet of those minors.

`test_recorded.py` compares the release that is TESTED, in both encodings and with mutations; here
each other minor is compared with what was recorded of it, in the encoding of kubelets.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from support.listed_differences import unlisted

from fleet.profile.node_model import NodeModel
from fleet.profile.release import RELEASES
from oracle.exchange import NODE_SCOPE
from oracle.recorded_scenes import DIRECTORY, path_of, recorded
from oracle.replay import beyond_chance, model_of, replayed, started
from oracle.test_recorded import HALF_OF, LISTED, NODES, SCENES, lines
from oracle.value_comparison import Comparison

NEWEST = {each.name: each.newest for each in RELEASES}
OTHERS = [
    (path.parent, path.name.partition(".")[0])
    for path in sorted(DIRECTORY.parent.glob("*/*.json.gz"))
    if path.parent != DIRECTORY
]
IDS = [f"{directory.name}-{name}" for directory, name in OTHERS]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, str], NodeModel]:
    """Return what gives the node of a minor that a scene, or a start, is played on."""

    @cache
    def of_node(directory: Path, node: str) -> NodeModel:
        told = HALF_OF[node].told
        root = tmp_path_factory.mktemp("node")
        return model_of(root, path_of(node, directory), told, NEWEST[directory.name])

    return lambda directory, name: of_node(directory, HALF_OF[name].node)


@pytest.mark.parametrize(("directory", "name"), OTHERS, ids=IDS)
def test_a_node_of_each_minor_does_what_its_kubelet_did(
    directory: Path, name: str, models: Callable[[Path, str], NodeModel]
) -> None:
    recording, model = recorded(name, directory), models(directory, name)
    if name in NODES:
        traces = started(recording, model, "protobuf").traces()
        found = unlisted(Comparison(*traces).run([NODE_SCOPE]).lines, LISTED)
    else:

        def found_with(seed: int) -> list[str]:
            return lines(replayed(recording, SCENES[name], model, "protobuf", seed=seed), name)

        found = beyond_chance(found_with)
    assert not found, "\n".join(found)


def test_every_minor_is_one_that_fleet_emulates() -> None:
    assert {directory.name for directory, _ in OTHERS} <= {*NEWEST}
