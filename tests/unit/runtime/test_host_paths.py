"""Volumes of kind hostPath that ask for a type: what a machine has, and what they make."""

import pytest

from fleet.clock import Draws
from fleet.k8s.pods import VolumeSpec
from fleet.profile.machine import MachinePath, real_path, types_by_path
from fleet.runtime.files import CHANGES_MAX
from fleet.runtime.runtime import Runtime

DISK = MachinePath(path="/mnt/disks/ssd0/", type="BlockDevice")
MACHINE = types_by_path((DISK,))
CHECK = "hostPath type check failed: %s is not a"


def runtime() -> Runtime:
    return Runtime(1, "192.0.2.1", "10.0.0.0/24", Draws(1))


def set_up(
    on: Runtime, path: str, kind: str = "", now_ns: int = 1, *, names_type: bool = False
) -> str:
    volume = VolumeSpec("h", "hostPath", host_path=path, host_type=kind)
    return on.set_up_host_path(volume, MACHINE, now_ns, names_type=names_type)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "Directory"),
        ("/etc", "Directory"),
        ("/var/log/", "Directory"),
        ("/lib/modules", "Directory"),
        ("/var/run", "DirectoryOrCreate"),
        ("/etc/hostname", "File"),
        ("/run/xtables.lock", "FileOrCreate"),
        ("/var/run/containerd/containerd.sock", "Socket"),
        ("/dev/null", "CharDevice"),
        ("/dev/sda", "BlockDevice"),
        ("/mnt/disks/ssd0", "BlockDevice"),
        ("/mnt/disks", "Directory"),
    ],
)
def test_a_machine_has_what_a_linux_node_and_its_profile_have(path: str, kind: str) -> None:
    on = runtime()
    assert set_up(on, path, kind) == ""
    assert set_up(on, path) == ""


@pytest.mark.parametrize(
    ("path", "kind", "error"),
    [
        ("/nowhere", "Directory", CHECK + " directory"),
        ("/etc/hostname", "Directory", CHECK + " directory"),
        ("/etc/hostname", "DirectoryOrCreate", CHECK + " directory"),
        ("/etc/hostname/x", "Directory", CHECK + " directory"),
        ("/etc/hostname/x/y", "DirectoryOrCreate", "mkdir /etc/hostname: not a directory"),
        ("/etc/", "File", CHECK + " file"),
        ("/etc", "FileOrCreate", CHECK + " file"),
        ("/nowhere/x", "FileOrCreate", "open %s: no such file or directory"),
        ("/etc/hostname/x", "FileOrCreate", "open %s: not a directory"),
        ("/var/run/docker.sock", "Socket", CHECK + " socket file"),
        ("/dev/sda", "CharDevice", CHECK + " character device"),
        ("/dev/null", "BlockDevice", CHECK + " block device"),
        ("/etc", "SocketOrCreate", "SocketOrCreate is an invalid volume type"),
        ("/etc/../etc", "", "invalid HostPath `%s`: must not contain '..'"),
    ],
)
def test_a_path_of_another_type_is_refused_as_a_kubelet_does(
    path: str, kind: str, error: str
) -> None:
    assert set_up(runtime(), path, kind) == (error % path if "%s" in error else error)


def test_what_one_volume_makes_the_next_one_finds() -> None:
    on = runtime()
    for path, makes, finds in (
        ("/data/a/b", "DirectoryOrCreate", "Directory"),
        ("/data/a/f", "FileOrCreate", "File"),
        ("/var/run/app", "", "Directory"),  # the runtime makes it
    ):
        assert set_up(on, path, finds)
        assert set_up(on, path, makes, 2) == ""
        assert set_up(on, path, finds, 2) == ""
    assert set_up(on, "/data/a", "Directory", 2) == ""
    assert set_up(on, "/run/app", "Directory", 2) == ""
    assert set_up(on, "/data/a/b", "File", 2)
    assert set_up(runtime(), "/data/a/b", "Directory", 2)  # another machine has none of it


def test_a_full_machine_forgets_what_is_oldest() -> None:
    on = runtime()
    for index in range(CHANGES_MAX + 1):
        assert set_up(on, f"/data/{index}", "DirectoryOrCreate") == ""
    assert set_up(on, "/data/0", "Directory")
    assert set_up(on, f"/data/{CHANGES_MAX}", "Directory") == ""


def test_links_near_the_root() -> None:
    assert real_path("/var/run/x/../y") == "/run/y"
    assert real_path("//var/runs") == "/var/runs"
    assert real_path("/lib64") == "/usr/lib64"


def test_a_kubelet_of_1_37_names_the_type_that_a_path_has() -> None:
    on, check = runtime(), "hostPath type check failed"
    error = set_up(on, "/dev/null", "File", names_type=True)
    assert error == f"{check}: /dev/null is not a file, it's a CharDevice"
    error = set_up(on, "/nowhere", "Socket", names_type=True)
    lost = 'unable to determine its type: path "/nowhere" does not exist'
    assert error == f"{check}, /nowhere is not a socket file, {lost}"
