import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_asyncio.config import incluster_config
from world.cluster_fakes import write_kubeconfig

from fleet.cluster.credentials import ClusterSelection, Credentials
from fleet.errors import HIDDEN, SetupError, UsageError, masked


def load(selection: ClusterSelection, **environ: str) -> Credentials:
    return asyncio.run(selection.load(environ))


def load_file(path: Path) -> Credentials:
    return load(ClusterSelection(kubeconfig=path))


HTTPS = {"server": "https://api.example:6443"}


def test_nothing_but_a_flag_names_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/somewhere")
    assert not ClusterSelection().is_named
    assert ClusterSelection(context="a").is_named
    assert ClusterSelection(kubeconfig=Path("k")).is_named
    assert ClusterSelection(in_cluster=True).is_named


def test_in_cluster_excludes_the_others() -> None:
    with pytest.raises(UsageError, match="--in-cluster excludes"):
        ClusterSelection(in_cluster=True, context="a")


def test_a_context_is_looked_up_in_the_environment_s_kubeconfig(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "k", HTTPS, {"token": "t"})
    selection = ClusterSelection(context="test")
    credentials = load(selection, KUBECONFIG=f"{tmp_path}/missing:{path}")
    assert (credentials.context, credentials.host, credentials.port) == (
        "test",
        "api.example",
        6443,
    )
    with pytest.raises(UsageError, match="no kubeconfig at"):
        load(selection, KUBECONFIG=f"{tmp_path}/missing")


def test_kubeconfigs_merge_and_the_first_wins(tmp_path: Path) -> None:
    first = write_kubeconfig(tmp_path / "a", HTTPS, {"token": "first"})
    second = write_kubeconfig(tmp_path / "b", {"server": "https://other"}, {"token": "second"})
    credentials = load(ClusterSelection(context="test"), KUBECONFIG=f"{first}:{second}")
    assert credentials.authorization() == b"Bearer first"


def test_an_unknown_context_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "k", HTTPS, {})
    with pytest.raises(UsageError, match=r"context nope is not in .*it has: test"):
        load(ClusterSelection(kubeconfig=path, context="nope"))


def test_without_a_current_context_one_must_be_named(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "k", HTTPS, {})
    document = yaml.safe_load(path.read_text())
    del document["current-context"]
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(UsageError, match="--context: test"):
        load_file(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "just words",
        "[1, 2]",
        "a: [",
        "clusters: 7",
        "clusters: []",
        "clusters: [7]\ncurrent-context: a",
        "clusters: []\ncontexts: [{name: a}]\ncurrent-context: a",
        "clusters: []\ncontexts: [{name: a, context: {}}]\ncurrent-context: a",
        "clusters: []\ncontexts: [{name: a, context: {user: u}}]\ncurrent-context: a",
        (
            "clusters: []\nusers: [{name: u, user: {}}]\n"
            "contexts: [{name: a, context: {user: u, cluster: c}}]\ncurrent-context: a"
        ),
        (
            "clusters: [{name: c, cluster: {server: 'https://h:port'}}]\n"
            "users: [{name: u, user: {}}]\n"
            "contexts: [{name: a, context: {user: u, cluster: c}}]\ncurrent-context: a"
        ),
    ],
)
def test_a_malformed_kubeconfig_is_told_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "k"
    path.write_text(text)
    with pytest.raises(UsageError) as said:
        load_file(path)
    assert "\n" not in str(said.value)
    assert str(path) in str(said.value)


def test_missing_and_unreadable_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_file(tmp_path / "missing")
    path = write_kubeconfig(tmp_path / "k", HTTPS | {"certificate-authority": "gone.crt"}, {})
    with pytest.raises(UsageError, match=r"gone\.crt"):
        load_file(path)


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"server": "http://api.example"}, "not https"),
        ({"server": "https://api.example/k8s/clusters/c-1"}, "has a path"),
        (HTTPS | {"proxy-url": "socks5://u:secret@proxy:1080"}, r"kind socks5 .*//proxy:1080\)"),
        (
            HTTPS | {"proxy-url": "https://proxy:3129"},
            "proxy-url: a proxy of kind https is not",
        ),
    ],
)
def test_what_the_wire_engine_cannot_reach_is_refused(
    tmp_path: Path, cluster: dict[str, Any], message: str
) -> None:
    with pytest.raises(SetupError, match=message):
        load_file(write_kubeconfig(tmp_path / "k", cluster, {"token": "t"}))


def test_a_user_who_impersonates_is_refused(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "k", HTTPS, {"token": "t", "as": "someone"})
    with pytest.raises(UsageError, match="impersonates another"):
        load_file(path)


def test_token_files_lose_their_newline_and_are_read_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    credentials = load_file(write_kubeconfig(tmp_path / "k", HTTPS, {"tokenFile": str(token)}))
    assert credentials.authorization() == b"Bearer one"
    assert not asyncio.run(credentials.refresh())
    token.write_text("two\n")
    assert asyncio.run(credentials.refresh())
    assert credentials.authorization() == b"Bearer two"


def test_addresses_and_server_names(tmp_path: Path) -> None:
    cluster = {"server": "https://[::1]", "tls-server-name": "kubernetes"}
    credentials = load_file(write_kubeconfig(tmp_path / "k", cluster, {}))
    assert (credentials.host, credentials.port) == ("::1", 443)
    assert credentials.address == "[::1]:443"
    assert credentials.server_name == "kubernetes"
    assert credentials.authorization() is None


def plugin(tmp_path: Path, body: str) -> dict[str, Any]:
    path = tmp_path / "plugin"
    path.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\n{body}\n")
    path.chmod(0o755)
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"command": str(path), "apiVersion": version, "args": None, "env": None}}


def credential(token: str, expires: str = "") -> str:
    expiry = f',"expirationTimestamp":"{expires}"' if expires else ""
    return (
        'echo \'{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",'
        f'"status":{{"token":"{token}"{expiry}}}}}\''
    )


@pytest.mark.parametrize(
    ("expires", "runs"), [("", 1), ("2199-01-01T00:00:00Z", 1), ("2020-01-01T00:00:00Z", 2)]
)
def test_a_plugin_runs_again_when_its_token_expires_and_on_a_401(
    tmp_path: Path, expires: str, runs: int
) -> None:
    user = plugin(tmp_path, credential("t", expires))
    credentials = load_file(write_kubeconfig(tmp_path / "k", HTTPS, user))
    assert credentials.authorization() == b"Bearer t"
    asyncio.run(credentials.refresh())
    assert (tmp_path / "runs").read_text().count("run") == runs
    asyncio.run(credentials.refresh(force=True))
    assert (tmp_path / "runs").read_text().count("run") == runs + 1


@pytest.mark.parametrize(
    "said",
    [
        "token=ya29.a0AfH6SMBx7Qm3kD2vR8sT1uW5yZ9cE4fG6hJ0kL2mN",
        "debug: dGhpc2lzYXZlcnlzZWNyZXR0b2tlbjEyMzQ1Njc4OTA=",
        '{"status": {"token": "0123456789abcdefABCDEF0123456789"}}',
        "Authorization: Bearer tiny",
    ],
)
def test_what_a_plugin_says_shows_no_token(said: str, tmp_path: Path) -> None:
    """It stands in notes, and in the invalid_reasons of a summary that CI publishes."""
    body = f"echo 'please log in at https://login.example/device' >&2; echo '{said}' >&2; exit 3"
    with pytest.raises(SetupError) as raised:
        load_file(write_kubeconfig(tmp_path / "k", HTTPS, plugin(tmp_path, body)))
    told = str(raised.value)
    assert "please log in at https://login.example/device" in told
    secrets = ("AfH6SMBx7Qm3kD2", "dGhpc2lzYXZlcnl", "0123456789abcdef", "tiny")
    assert not [each for each in secrets if each in told]
    loud = "i=0; while [ $i -lt 5000 ]; do echo word $i; i=$((i+1)); done >&2; exit 3"
    with pytest.raises(SetupError) as raised:
        load_file(write_kubeconfig(tmp_path / "k", HTTPS, plugin(tmp_path, loud)))
    assert len(str(raised.value)) < 1000
    assert "word 4999" in str(raised.value)


def test_the_token_of_a_user_is_hidden_from_then_on(tmp_path: Path) -> None:
    user = plugin(tmp_path, credential("the-one-token-that-it-has"))
    load_file(write_kubeconfig(tmp_path / "k", HTTPS, user))
    assert masked("sent the-one-token-that-it-has") == f"sent {HIDDEN}"


def test_a_plugin_that_is_not_there_is_a_setup_error(tmp_path: Path) -> None:
    missing = {"exec": {"command": "/nowhere/plugin", "apiVersion": "v1"}}
    with pytest.raises(SetupError, match=r"plugin .*/nowhere/plugin failed"):
        load_file(write_kubeconfig(tmp_path / "k", HTTPS, missing))


def test_in_a_pod_the_service_account_is_used_and_its_token_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, ca = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("one\n")
    ca.write_text("any")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(ca))
    credentials = load(ClusterSelection(in_cluster=True))
    assert (credentials.context, credentials.host) == ("in-cluster", "fd00::1")
    assert credentials.authorization() == b"Bearer one"
    token.write_text("two")
    assert not asyncio.run(credentials.refresh()), "once a minute is enough"
    assert asyncio.run(credentials.refresh(force=True))
    assert credentials.authorization() == b"Bearer two"
    token.unlink()
    with pytest.raises(SetupError, match="token cannot be read"):
        asyncio.run(credentials.refresh(force=True))
    with pytest.raises(UsageError, match="unusable certificate"):
        credentials.ssl_context()


def test_outside_a_pod_in_cluster_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UsageError, match="not in a pod"):
        load(ClusterSelection(in_cluster=True))
