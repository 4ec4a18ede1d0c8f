"""Every simulation in both encodings: a pytest plug-in that its modules name in `pytest_plugins`.

No conftest.py: mypy takes only one of that name, and the wire tests have it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from world.encodings import ENCODINGS
from world.simulation import ENCODING

HERE = Path(__file__).parent
FIXTURE = "encoding"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of this folder once in each encoding, without a word in it."""
    if Path(str(metafunc.module.__file__)).parent == HERE:
        metafunc.parametrize(FIXTURE, ENCODINGS, indirect=True, scope="function")


@pytest.fixture(autouse=True)
def encoding(request: pytest.FixtureRequest) -> Iterator[str]:
    """Have the simulations of a test speak one encoding; tests of other folders have no choice."""
    before = ENCODING.set(getattr(request, "param", ENCODING.get()))
    yield ENCODING.get()
    ENCODING.reset(before)
