"""Directories, ports and kubeconfigs: what is held, kept, swept and never overwritten."""

import asyncio
import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.controlplane.directory import ETCD_SOCKET, MARK, Layout, hold_directory, is_held
from fleet.controlplane.flags import choose_ports, read_ports
from fleet.controlplane.options import (
    APISERVER,
    COMPONENTS,
    SCHEDULER,
    ControlPlaneInfo,
    ControlPlaneOptions,
    from_json,
    no_progress,
    to_json,
)
from fleet.controlplane.standing import _outcome, _start_supervisor, attach, down
from fleet.errors import SetupError, UsageError

INFO = ControlPlaneInfo(
    directory=Path("/d"),
    url="https://127.0.0.1:1",
    kubeconfig=Path("/k"),
    token_kubeconfig=Path("/t"),
    ca_file=Path("/c"),
    admin_certificate=Path("/a.crt"),
    admin_key=Path("/a.key"),
    server_version="v1.36.3",
    kubectl=("/bin/kubectl",),
    pids={"etcd": 1},
    ports={"etcd": 2},
    logs={"etcd": Path("/d/logs/etcd.log")},
    warnings=("w",),
)


@pytest.fixture(autouse=True)
def own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


def test_a_temporary_directory_goes_away() -> None:
    held = hold_directory(None)
    assert is_held(held.layout)
    held.release()
    assert not held.layout.root.exists()


def test_a_given_directory_stays_and_can_be_held_again(tmp_path: Path) -> None:
    held = hold_directory(tmp_path / "mine")
    with pytest.raises(SetupError, match="another control plane is running there"):
        hold_directory(tmp_path / "mine")
    held.layout.tokens.write_text("secret")
    held.release()
    assert not is_held(held.layout)
    again = hold_directory(tmp_path / "mine")
    assert again.layout.tokens.read_text() == "secret"
    again.release()


def test_only_what_fleet_wrote_is_removed(tmp_path: Path) -> None:
    held = hold_directory(tmp_path / "mine", keep=False)
    held.layout.kubeconfig("admin").write_text("x")
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")  # while it runs
    held.release()
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {"thesis.tex", MARK}
    hold_directory(tmp_path / "mine").release()  # it is still known


@pytest.mark.parametrize(
    "files", [["thesis.tex"], ["lock", "etcd"], ["pki"], [".git", "ports.json"]]
)
def test_a_directory_with_other_files_is_refused_and_left_as_it_is(
    files: list[str], tmp_path: Path
) -> None:
    """Its etcd/ or pki/ would be taken for a control plane's, and removed at the end."""
    mine = tmp_path / "mine"
    for name in files:
        (mine / name).mkdir(parents=True)
        (mine / name / "inside").write_text("years of work")
    mine.chmod(0o755)
    before = sorted(mine.rglob("*"))
    for keep in (True, False, None):
        with pytest.raises(UsageError, match="is not empty, and no control plane of fleet"):
            hold_directory(mine, keep=keep)
    with pytest.raises(UsageError, match="is not empty, and no control plane of fleet"):
        asyncio.run(_start_supervisor(ControlPlaneOptions(directory=mine), no_progress))
    assert sorted(mine.rglob("*")) == before
    assert mine.stat().st_mode & 0o777 == 0o755


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir(mode=0o755)
    hold_directory(tmp_path / "empty").release()
    assert (tmp_path / "empty").stat().st_mode & 0o777 == 0o700


def test_a_directory_of_another_user_or_a_link_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with pytest.raises(UsageError, match="belongs to another user, or is a link"):
        hold_directory(tmp_path / "link")
    ours = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: ours + 1)
    with pytest.raises(UsageError, match="belongs to another user, or is a link"):
        hold_directory(tmp_path / "theirs")


def test_sockets_of_etcd_are_where_only_this_user_may_enter(tmp_path: Path) -> None:
    short = hold_directory(tmp_path / "d")
    assert short.layout.socket(ETCD_SOCKET) == tmp_path / "d" / ETCD_SOCKET
    short.release()
    long = hold_directory(tmp_path / ("d" * 100), keep=False)
    path = long.layout.socket(ETCD_SOCKET)
    assert path != short.layout.socket(ETCD_SOCKET)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    long.release()
    assert not path.parent.exists()


def standing(tmp_path: Path, pid: int) -> Path:
    """Hold a directory as a supervisor does, with what it tells about itself."""
    held = hold_directory(tmp_path / "d")
    told = dataclasses.replace(
        INFO,
        owner_pid=pid,
        pids={"etcd": pid},
    )
    held.layout.state.write_text(to_json(told))
    return held.layout.root


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        yield process
        process.kill()


def test_a_control_plane_is_found_by_its_process(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    directory = standing(tmp_path, stranger.pid)
    found = attach(directory)
    assert found is not None
    assert found.owner_pid == stranger.pid


def test_what_an_earlier_holder_wrote_is_neither_trusted_nor_acted_upon(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    """It was killed, another one holds the directory now, and its process id is a stranger's."""
    directory = tmp_path / "d"
    hold_directory(directory).release()
    Layout(directory).state.write_text(to_json(dataclasses.replace(INFO, owner_pid=stranger.pid)))
    assert attach(directory) is None, "nobody holds it"
    held = hold_directory(directory)
    assert attach(directory) is None
    assert asyncio.run(down(directory)) is False
    assert stranger.poll() is None
    held.release()


def test_what_somebody_else_says_of_a_control_plane_is_not_believed(
    tmp_path: Path, stranger: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = standing(tmp_path, stranger.pid)
    ours = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: ours + 1)
    assert attach(directory) is None


SLOW_TO_END = """
import json, os, pathlib, signal, sys, time

def end(*_):
    print(json.dumps({"progress": "ending"}), flush=True)
    time.sleep(0.3)
    pathlib.Path(sys.argv[1]).touch()
    sys.exit()

signal.signal(signal.SIGTERM, end)
print(json.dumps({"pid": os.getpid()}), flush=True)
print(json.dumps({"progress": "begun"}), flush=True)
time.sleep(60)
"""


def test_a_start_that_is_given_up_waits_for_the_end_of_its_supervisor(tmp_path: Path) -> None:
    async def give_up(supervisor: subprocess.Popen[bytes]) -> None:
        assert supervisor.stdout is not None
        begun = asyncio.Event()
        start = asyncio.create_task(
            _outcome(supervisor.stdout, Layout(tmp_path), lambda _line: begun.set())
        )
        await begun.wait()
        start.cancel()
        await asyncio.wait({start})
        assert start.cancelled()
        assert (tmp_path / "ended").exists()

    command = (sys.executable, "-c", SLOW_TO_END, str(tmp_path / "ended"))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as supervisor:
        asyncio.run(give_up(supervisor))


def test_a_failed_start_leaves_its_logs() -> None:
    held = hold_directory(None)
    (held.layout.logs / "etcd.log").write_text("oops")
    held.release(with_logs=False)
    assert {path.name for path in held.layout.root.iterdir()} == {"logs", MARK}
    hold_directory(None).release()
    assert (held.layout.logs / "etcd.log").exists()


def test_what_a_killed_run_left_is_swept() -> None:
    dead = hold_directory(None, keep=True)
    dead.release()  # as the kernel does for a killed process: the lock goes, the files stay
    living = hold_directory(None)
    assert not dead.layout.root.exists()
    other = hold_directory(None)
    assert living.layout.root.exists()
    living.release()
    other.release()


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="file/sub: Not a directory"):
        hold_directory(tmp_path / "file" / "sub")


def test_an_unlocked_directory_is_not_held(tmp_path: Path) -> None:
    assert not is_held(Layout(tmp_path))


def test_ports_are_free_distinct_and_out_of_the_ephemeral_range() -> None:
    ports = choose_ports({}, {})
    assert set(ports) == set(COMPONENTS)
    assert len(set(ports.values())) == 4
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert first < 20_000 or max(ports.values()) < first


def test_the_last_ports_are_taken_again_if_they_are_free(tmp_path: Path) -> None:
    ports = choose_ports({}, {})
    (tmp_path / "ports.json").write_text(json.dumps(ports))
    assert read_ports(tmp_path / "ports.json") == ports
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports[SCHEDULER]))
        other.listen()
        chosen = choose_ports(ports, {})
    assert chosen[APISERVER] == ports[APISERVER]
    assert chosen[SCHEDULER] != ports[SCHEDULER]
    assert choose_ports({}, {APISERVER: 6443})[APISERVER] == 6443


def test_broken_port_files_are_ignored(tmp_path: Path) -> None:
    assert read_ports(tmp_path / "none") == {}
    (tmp_path / "ports.json").write_text('{"etcd": "x"}')
    assert read_ports(tmp_path / "ports.json") == {}


def test_options_and_info_survive_their_json() -> None:
    options = ControlPlaneOptions(
        directory=Path("/d"), audit_log=Path("/a"), fsync=True, extra_flags={"etcd": ["v=1"]}
    )
    assert from_json(ControlPlaneOptions, to_json(options)) == options
    assert from_json(ControlPlaneInfo, to_json(INFO)) == INFO
