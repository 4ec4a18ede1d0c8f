"""The certificate of the peer, as a fixture."""

from pathlib import Path

import pytest
from peer import Certificate, make_certificate


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    folder: Path = tmp_path_factory.mktemp("peer")
    return make_certificate(folder)
