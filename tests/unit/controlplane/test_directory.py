"""Directories, ports and kubeconfigs: what is held, kept, swept and never overwritten."""

import socket
import tempfile
from pathlib import Path

import pytest

from fleet.controlplane.directory import Layout, hold_directory, is_held
from fleet.controlplane.options import ControlPlaneInfo, ControlPlaneOptions
from fleet.controlplane.ports import choose_ports, read_ports, write_ports
from fleet.errors import SetupError


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
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    held = hold_directory(tmp_path / "mine", keep=False)
    held.layout.kubeconfig("admin").write_text("x")
    held.release()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_failed_start_leaves_its_logs() -> None:
    held = hold_directory(None)
    (held.layout.logs / "etcd.log").write_text("oops")
    held.release(with_logs=False)
    assert [path.name for path in held.layout.root.iterdir()] == ["logs"]
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
    ports = choose_ports()
    numbers = (
        ports.etcd,
        ports.etcd_peer,
        ports.apiserver,
        ports.scheduler,
        ports.controller_manager,
    )
    assert len(set(numbers)) == 5
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert first < 20_000 or max(numbers) < first


def test_the_last_ports_are_taken_again_if_they_are_free(tmp_path: Path) -> None:
    ports = choose_ports()
    write_ports(tmp_path / "ports.json", ports)
    assert read_ports(tmp_path / "ports.json") == ports
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports.scheduler))
        other.listen()
        chosen = choose_ports(ports)
    assert chosen.apiserver == ports.apiserver
    assert chosen.scheduler != ports.scheduler
    assert choose_ports(None, {"apiserver": 6443}).apiserver == 6443


def test_broken_port_files_are_ignored(tmp_path: Path) -> None:
    assert read_ports(tmp_path / "none") is None
    (tmp_path / "ports.json").write_text('{"etcd": 1}')
    assert read_ports(tmp_path / "ports.json") is None


def test_options_and_info_survive_their_json() -> None:
    options = ControlPlaneOptions(
        directory=Path("/d"), audit_log=Path("/a"), fsync=True, extra_flags={"etcd": ["v=1"]}
    )
    assert ControlPlaneOptions.from_json(options.to_json()) == options
    info = ControlPlaneInfo(
        directory=Path("/d"),
        url="https://127.0.0.1:1",
        kubeconfig=Path("/k"),
        token_kubeconfig=Path("/t"),
        ca_file=Path("/c"),
        admin_certificate=Path("/a.crt"),
        admin_key=Path("/a.key"),
        server_version="v1.36.3",
        binaries_source="PATH",
        kubectl=("/bin/kubectl",),
        pids={"etcd": 1},
        ports={"etcd": 2},
        logs={"etcd": Path("/d/logs/etcd.log")},
        warnings=("w",),
    )
    assert ControlPlaneInfo.from_json(info.to_json()) == info
