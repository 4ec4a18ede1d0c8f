"""The kubeconfig that a command gets, from several files; and no file of a user's is lost."""

import asyncio
import contextlib
import os
import tempfile
from io import StringIO
from pathlib import Path

import pytest
import yaml

from fleet.cluster.kubeconfig import only_context
from fleet.controlplane.kubeconfig import (
    check_kubeconfig_out,
    private_file,
    write_kubeconfig_out,
)
from fleet.errors import UsageError
from fleet.profile.settings import Settings
from fleet.report.display import Display
from fleet.run.target import Target


def write(path: Path, **content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **content}))
    return path


def test_a_context_is_put_together_from_several_files(tmp_path: Path) -> None:
    first = write(
        tmp_path / "a" / "config",
        contexts=[
            {"name": "other", "context": {"cluster": "x", "user": "x"}},
            {"name": "load", "context": {"cluster": "c", "user": "u", "namespace": "n"}},
        ],
        users=[{"name": "u", "user": {"client-certificate": "u.crt", "client-key": "/k/u.key"}}],
    )
    second = write(
        tmp_path / "b" / "config",
        contexts=[{"name": "load", "context": {"cluster": "x", "user": "x"}}],
        clusters=[
            {"name": "c", "cluster": {"server": "https://s", "certificate-authority": "ca.crt"}}
        ],
        users=[{"name": "u", "user": {"token": "of the second file"}}],
    )
    assert only_context([first, second], "load") == {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "load",
        "contexts": [{"name": "load", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
        "clusters": [
            {
                "name": "c",
                "cluster": {
                    "server": "https://s",
                    "certificate-authority": str(tmp_path / "b" / "ca.crt"),
                },
            }
        ],
        "users": [
            {
                "name": "u",
                "user": {
                    "client-certificate": str(tmp_path / "a" / "u.crt"),
                    "client-key": "/k/u.key",
                },
            }
        ],
    }


@pytest.mark.parametrize(
    ("command", "shown"), [("aws", "aws"), ("./bin/login", "{}/bin/login"), ("/opt/l", "/opt/l")]
)
def test_a_plugin_is_found_from_elsewhere(tmp_path: Path, command: str, shown: str) -> None:
    path = write(
        tmp_path / "config",
        contexts=[{"name": "load", "context": {"cluster": "c", "user": "u"}}],
        clusters=[{"name": "c", "cluster": {"server": "https://s"}}],
        users=[{"name": "u", "user": {"exec": {"command": command}}}],
    )
    [user] = only_context([path], "load")["users"]
    assert user["user"]["exec"]["command"] == shown.format(tmp_path)


def test_an_unknown_context_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        only_context([write(tmp_path / "config")], "load")


MINE = "apiVersion: v1\nclusters:\n- name: {}\n"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("cluster", ["production", "fleet"])  # rancher's fleet is one, too
def test_a_file_of_the_user_s_is_never_overwritten(tmp_path: Path, cluster: str) -> None:
    out = tmp_path / "kubeconfig"
    out.write_text(MINE.format(cluster))
    with pytest.raises(UsageError, match="fleet did not write this file"):
        write_kubeconfig_out(out, b"ours")
    assert out.read_text() == MINE.format(cluster)
    assert list(tmp_path.iterdir()) == [out]


def test_what_fleet_wrote_it_overwrites_whole_and_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "kubeconfig"
    out.touch(mode=0o666)  # as `mktemp` leaves one, or an older fleet did
    modes = []
    replace = Path.replace

    def seen(self: Path, target: Path) -> Path:
        modes.append(mode(self))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", seen)
    write_kubeconfig_out(out, b"first: 1\n")
    out.chmod(0o644)
    write_kubeconfig_out(out, b"second: 2\n")
    assert modes == [0o600, 0o600]
    assert mode(out) == 0o600
    assert yaml.safe_load(out.read_text()) == {"second": 2}
    assert list(tmp_path.iterdir()) == [out]


def test_a_link_to_a_file_of_the_user_s_is_no_way_to_it(tmp_path: Path) -> None:
    mine, link = tmp_path / "config", tmp_path / "link"
    mine.write_text(MINE.format("production"))
    link.symlink_to(mine)
    with pytest.raises(UsageError, match="fleet did not write this file"):
        write_kubeconfig_out(link, b"ours")
    assert mine.read_text() == MINE.format("production")


def test_what_the_run_reads_is_not_overwritten_though_fleet_wrote_it(tmp_path: Path) -> None:
    out, link = tmp_path / "kubeconfig", tmp_path / "link"
    write_kubeconfig_out(out, b"one: 1\n")
    link.symlink_to(out)
    for name in (out, link):
        with pytest.raises(UsageError, match="this run reads its credentials there"):
            check_kubeconfig_out(name, [tmp_path / "absent", out])


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("absent/k", "there is no folder {}/absent"),
        ("file/k", "there is no folder {}/file"),
        ("folder", "fleet did not write this file"),
        ("pipe", "fleet did not write this file"),
    ],
)
def test_where_nothing_can_be_written_one_line_says_so(tmp_path: Path, out: str, said: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError) as refused:
        check_kubeconfig_out(tmp_path / out)
    assert str(refused.value) == f"--kubeconfig-out {tmp_path / out}: " + (
        "not overwritten, " * ("write" in said) + said.format(tmp_path)
    )


def test_a_folder_that_takes_no_files_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write anywhere, so the refusal is made up."""

    def refuse(**_given: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    with pytest.raises(UsageError, match=r"kubeconfig: Permission denied$"):
        check_kubeconfig_out(tmp_path / "kubeconfig")


def test_a_private_file_is_gone_whatever_happens() -> None:
    with contextlib.suppress(KeyboardInterrupt), private_file(b"secret") as path:
        assert (path.read_bytes(), mode(path)) == (b"secret", 0o600)
        raise KeyboardInterrupt
    assert not path.exists()


def target(**options: object) -> Target:
    settings = Settings.from_options(**options)
    return Target(settings, Display(stream=StringIO()), lambda _death: None)


async def begin(**options: object) -> None:
    async with target(**options).open():
        raise AssertionError


@pytest.mark.parametrize("names_cluster", [True, False])
def test_nothing_is_begun_for_a_file_that_cannot_be_written(
    tmp_path: Path, *, names_cluster: bool
) -> None:
    """Neither on a named cluster nor before a control plane of our own is started."""
    mine = write(tmp_path / "config", clusters=[{"name": "production"}])
    named = {"kubeconfig": mine} if names_cluster else {}
    with pytest.raises(UsageError, match=r"--kubeconfig-out \S+: not overwritten"):
        asyncio.run(begin(kubeconfig_out=mine, **named))
    assert "production" in mine.read_text()


def test_in_a_cluster_there_is_no_kubeconfig_to_write(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--in-cluster has no kubeconfig"):
        asyncio.run(begin(in_cluster=True, kubeconfig_out=tmp_path / "out"))


async def test_a_named_cluster_s_credential_ends_with_the_run(tmp_path: Path) -> None:
    named = write(
        tmp_path / "config",
        contexts=[{"name": "load", "context": {"cluster": "c", "user": "u"}}],
        clusters=[{"name": "c", "cluster": {"server": "https://s"}}],
        users=[{"name": "u", "user": {"token": "secret"}}],
    )
    out = tmp_path / "out"
    opened = target(kubeconfig=named, kubeconfig_out=out, command=("true",))

    async with opened.open():
        opened.write_kubeconfig("load")
        of_command = opened.kubeconfig
        assert of_command is not None
        assert mode(of_command) == mode(out) == 0o600
        for each in (of_command, out):
            assert yaml.safe_load(each.read_text()) == only_context([named], "load")
    assert not of_command.exists()
    assert out.exists()
