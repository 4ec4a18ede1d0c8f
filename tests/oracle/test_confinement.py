"""What a real kubelet is confined to, without one."""

import os
import subprocess
from pathlib import Path

import pytest

from oracle import cgroups, real_kubelet


def test_who_is_not_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert real_kubelet.why_not() == "a real kubelet needs root"


def test_who_has_no_mount_namespace_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda program: None if program == "nsenter" else program)
    assert real_kubelet.why_not() == "a real kubelet is confined with nsenter, which is missing"


def test_cgroups_of_a_run_that_is_gone_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = subprocess.Popen(("true",))
    gone.wait()
    cpu, memory = tmp_path / "cpu", tmp_path / "memory"
    left = f"fleet-oracle-{gone.pid}"
    for place in (cpu, memory):
        (place / left / "kubepods" / "besteffort").mkdir(parents=True)
        (place / "fleet-oracle-not-ours").mkdir()
    mounts = tmp_path / "mounts"
    lines = [f"cgroup {place} cgroup rw 0 0" for place in (cpu, memory)]
    mounts.write_text("\n".join(["proc /proc proc rw 0 0", *lines]))
    monkeypatch.setattr(cgroups, "MOUNTS", mounts)
    root = cgroups.make_root()
    assert root == f"/fleet-oracle-{os.getpid()}"
    own = root.strip("/")
    for place in (cpu, memory):
        assert {each.name for each in place.iterdir()} == {own, "fleet-oracle-not-ours"}
    cgroups.remove_root(root)
    assert not (cpu / own).exists()


def test_a_machine_that_gives_no_cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("proc /proc proc rw 0 0\n")
    monkeypatch.setattr(cgroups, "MOUNTS", mounts)
    assert not cgroups.make_root()
    mounts.write_text(f"cgroup {tmp_path}/nowhere/cpu cgroup rw 0 0\n")
    assert not cgroups.make_root()
