"""Where PodResources are served, and how often."""

import socket
from pathlib import Path

import pytest

from fleet.errors import SetupError
from fleet.server.pod_resources import BURST, QPS, Limit
from fleet.server.resource_sockets import prepare_sockets, remove_sockets, socket_path

NAMES = ("n-0", "n-1")


def test_what_a_killed_run_left_is_replaced(tmp_path: Path) -> None:
    prepare_sockets(tmp_path, NAMES)
    left = socket_path(tmp_path, "n-0")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(left))
    assert left.is_socket()
    prepare_sockets(tmp_path, NAMES)
    assert not left.exists()
    assert left.parent.is_dir()
    (tmp_path / "n-1" / "note").touch()
    remove_sockets(tmp_path, NAMES)
    assert [each.name for each in tmp_path.iterdir()] == ["n-1"]  # somebody's note is in it


def test_what_is_no_socket_stays(tmp_path: Path) -> None:
    path = socket_path(tmp_path, "n-0")
    path.parent.mkdir()
    path.write_text("mine")
    with pytest.raises(SetupError, match=r"n-0/kubelet.sock is there, and is no socket"):
        prepare_sockets(tmp_path, NAMES)
    assert path.read_text() == "mine"


def test_a_socket_that_somebody_listens_at_stays(tmp_path: Path) -> None:
    path = socket_path(tmp_path, "n-1")
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(path))
        theirs.listen()
        with pytest.raises(SetupError, match=r"somebody listens at .*n-1/kubelet.sock"):
            prepare_sockets(tmp_path, NAMES)
        assert path.is_socket()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


@pytest.mark.parametrize(
    ("folder", "words"),
    [("x" * 100, "is too long: a socket's path has 107 bytes"), ("file/below", "Not a directory")],
)
def test_a_folder_that_cannot_be_is_named(tmp_path: Path, folder: str, words: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match=words):
        prepare_sockets(tmp_path / folder, NAMES)


def test_calls_are_limited_as_upstream_does() -> None:
    limit = Limit(0.0)
    assert [limit.allows(0.0) for _ in range(BURST + 1)] == [True] * BURST + [False]
    assert limit.allows(1.5 / QPS)
    assert not limit.allows(1.5 / QPS)
    assert [limit.allows(60.0) for _ in range(BURST + 1)] == [True] * BURST + [False]
