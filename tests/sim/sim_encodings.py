"""In which encodings simulations run: a pytest plug-in that its modules name in `pytest_plugins`.

All run in protobuf, which kubelets speak. Those of modules in READ_AND_WRITTEN run in JSON, too.

No conftest.py: mypy takes only one of that name, and the wire tests have it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from world.encodings import ENCODINGS
from world.simulation import ENCODING

HERE = Path(__file__).parent
FIXTURE = "encoding"
READ_AND_WRITTEN = frozenset(
    (
        "test_csi_node_updates",
        "test_device_plugins",
        "test_dra",
        "test_encodings",
        "test_event_correlation",
        "test_first_sync",
        "test_foreign_edits",
        "test_light",
        "test_lost_keys",
        "test_nodes_of_others",
        "test_pods",
        "test_polled_objects_timing",
        "test_recovery",
        "test_registration",
        "test_static_pods",
        "test_volume_expansion",
        "test_watches",
    )
)
"""Modules about what is sent and read. The others are about when and whether, which no encoding
changes; the recorded judge plays all its scenes in both."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of this folder once in each of its encodings, without a word in it."""
    path = Path(str(metafunc.module.__file__))
    if path.parent == HERE:
        encodings = ENCODINGS if path.stem in READ_AND_WRITTEN else ("protobuf",)
        metafunc.parametrize(FIXTURE, encodings, indirect=True, scope="function")


@pytest.fixture(autouse=True)
def encoding(request: pytest.FixtureRequest) -> Iterator[str]:
    """Have the simulations of a test speak one encoding; tests of other folders have no choice."""
    before = ENCODING.set(getattr(request, "param", ENCODING.get()))
    yield ENCODING.get()
    ENCODING.reset(before)
