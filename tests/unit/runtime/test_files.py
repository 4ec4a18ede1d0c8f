"""The files of a node: who sees what somebody wrote, and when."""

import pytest

from fleet.k8s.scripts import MountSpec
from fleet.runtime.files import FILES_MAX, HOST, NodeFiles, VolumePlace, layer_of
from fleet.runtime.shell.surroundings import ReadOnlyFileSystemError
from fleet.runtime.shell.syntax import UnknownScriptError

DATA = (MountSpec("/data", "data", ""),)


def test_an_empty_dir_outlives_a_container_but_not_its_pod() -> None:
    files = NodeFiles()
    mine = {"data": VolumePlace(("pod-1", "data"))}
    files.view(DATA, mine).write("/data/foo", "x")
    assert files.view(DATA, mine).read("/data/foo") == "x"
    assert files.view(DATA, {"data": VolumePlace(("pod-2", "data"))}).read("/data/foo") is None
    files.forget("pod-1")
    assert files.view(DATA, mine).read("/data/foo") is None
    assert files.view(DATA, mine).read("/data") == "/"


def test_a_directory_of_the_host_is_shared_by_pods_that_see_it_elsewhere() -> None:
    files = NodeFiles()
    files.view(DATA, {"data": VolumePlace(HOST, "/var/lib/job")}).write("/data/a/../foo", "x")
    whole = files.view((MountSpec("/host", "root", ""),), {"root": VolumePlace(HOST, "/var/lib")})
    assert whole.read("/host/job/foo") == "x"
    assert whole.read("/host/job") == "/"
    part = (MountSpec("/d", "root", "job"),)
    files.view(part, {"root": VolumePlace(HOST, "/var/lib")}).write("/d/foo", None)
    assert whole.read("/host/job/foo") is None
    files.forget("pod-1")


def test_the_deepest_mount_has_the_file() -> None:
    mounts = (*DATA, MountSpec("/data/inner/", "inner", ""))
    places = {"data": VolumePlace(("p", "data")), "inner": VolumePlace(("p", "inner"))}
    files = NodeFiles()
    files.view(mounts, places).write("/data/inner/x", "deep")
    assert files.view(DATA, places).read("/data/inner/x") is None


def test_what_an_image_or_a_secret_holds_is_unknown() -> None:
    view = NodeFiles().view(DATA, {})
    for path in ("/data/token", "/etc/passwd"):
        with pytest.raises(UnknownScriptError):
            view.read(path)
    assert view.read("/tmp/x") is None
    view.write("/tmp/x", "")
    view.write("/opt/y", "1")
    assert (view.read("/tmp/x"), view.read("/opt/y")) == ("", "1")
    with pytest.raises(UnknownScriptError):
        view.write("/data/token", "x")


def test_files_have_a_limit() -> None:
    view = NodeFiles().view((), {})
    for at in range(FILES_MAX):
        view.write(f"/tmp/{at}", "")
    view.write("/tmp/0", "again")
    with pytest.raises(UnknownScriptError, match="No space left"):
        view.write("/tmp/more", "")


def test_a_file_has_a_history() -> None:
    files = NodeFiles()
    places = {"data": VolumePlace(("p", "data"))}
    script = files.view(DATA, places, layer_of("p", "a"), 100)
    script.at(10)
    script.write("/data/x", "one")
    script.at(30)
    script.write("/data/x", "two")
    script.write("/tmp/own", "layer")
    other = files.view(DATA, places, layer_of("p", "b"), 0)
    seen = []
    for now in (109, 110, 129, 130):
        other.at(now)
        seen.append(other.read("/data/x"))
    assert seen == [None, "one", "one", "two"]
    assert other.read("/tmp/own") is None
    files.undo(layer_of("p", "a"), 120)
    assert other.read("/data/x") == "one"
    assert other.names("/data") == ["x"]


def test_a_replay_writes_for_nobody_else_until_it_is_committed() -> None:
    files = NodeFiles()
    places = {"data": VolumePlace(("p", "data"))}
    other = files.view(DATA, places, layer_of("p", "b"))
    other.write("/data/x", "others")
    replay = files.view(DATA, places, layer_of("p", "a")).as_replay()
    replay.at(5)
    replay.write("/data/x", "mine")
    other.at(9)
    assert (replay.read("/data/x"), other.read("/data/x")) == ("mine", "others")
    replay.commit()
    assert other.read("/data/x") == "mine"


def test_what_a_volume_shows_is_there_and_cannot_be_written() -> None:
    shown = {"/a": "1", "/..data/b": "2"}
    place = VolumePlace(("p", "cm"), shown=shown, read_only=True)
    view = NodeFiles().view((MountSpec("/etc/cm", "cm", ""),), {"cm": place}, system={})
    assert view.read("/etc/cm/a") == "1"
    assert view.read("/etc/cm") == view.read("/etc") == view.read("/") == "/"
    assert view.read("/etc/cm/none") is None
    assert view.names("/etc/cm") == ["..data", "a"]
    assert "etc" in view.names("/")
    assert view.names("/etc") == ["cm"]
    with pytest.raises(ReadOnlyFileSystemError, match="/etc/cm/a"):
        view.write("/etc/cm/a", "2")
    part = NodeFiles().view((MountSpec("/one", "cm", "a"),), {"cm": place}, system={})
    assert part.read("/one") == "1"


def test_with_its_system_files_nothing_of_a_container_is_unknown() -> None:
    view = NodeFiles().view((), {}, system={"/etc/hostname": "web\n"})
    assert view.read("/etc/hostname") == "web\n"
    assert view.read("/opt/app/none") is None
    assert view.read("/usr") == "/"
    view.write("/opt/x", "1")
    assert view.names("/opt") == ["x"]
    view.write("/etc/hostname", None)
    assert view.read("/etc/hostname") is None
    assert view.names("/etc") == []
