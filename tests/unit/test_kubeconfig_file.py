"""The kubeconfig that a command gets, from several files."""

from pathlib import Path

import pytest
import yaml

from fleet.kubeconfig_file import only_context


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
