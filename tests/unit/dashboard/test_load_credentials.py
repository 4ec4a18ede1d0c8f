"""Who API users are: tokens, files, plug-ins that run, and an authority that is checked."""

import base64
import ssl
import sys
from pathlib import Path

import pytest
import yaml

from fleet.controlplane.pki import write_certificates
from fleet.dashboard import load_credentials
from fleet.dashboard.load_credentials import LoadCredentials
from fleet.errors import SetupError

PLUGIN = """
import datetime, json, os, pathlib, sys
asked = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
count = pathlib.Path(sys.argv[1])
count.write_text(str(int(count.read_text()) + 1 if count.exists() else 1))
ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=float(os.environ["ENDS"]))
status = {"token": f"{asked['kind']}-{count.read_text()}", "expirationTimestamp": ends.isoformat()}
print(json.dumps({"kind": "ExecCredential", "status": status}))
"""


def credentials(tmp_path: Path, user: dict[str, object], **cluster: object) -> LoadCredentials:
    path = tmp_path / "config"
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://here", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(document))
    return LoadCredentials.from_environment({"KUBECONFIG": f"{path}:{tmp_path / 'config'}"})


def test_a_token_is_sent_as_it_stands_or_as_its_file_has_it(tmp_path: Path) -> None:
    assert credentials(tmp_path, {"token": "t"}).authorization() == "Bearer t"
    (tmp_path / "token").write_text("from-file\n")
    found = credentials(tmp_path, {"tokenFile": "token"})
    assert found.authorization() == "Bearer from-file"
    assert credentials(tmp_path, {}).authorization() == ""


def test_api_users_go_by_the_proxy_of_the_nodes(tmp_path: Path) -> None:
    named = credentials(tmp_path, {"token": "t"}, **{"proxy-url": "http://proxy:3128"})
    assert named.proxy({}) == ("proxy", 3128)
    plain = credentials(tmp_path, {"token": "t"})
    assert plain.proxy({}) is None
    assert plain.proxy({"HTTPS_PROXY": "http://other"}) == ("other", 80)
    assert plain.proxy({"HTTPS_PROXY": "http://other", "NO_PROXY": "here"}) is None
    secret = credentials(tmp_path, {"token": "t"}, **{"proxy-url": "http://me:word@proxy"})
    with pytest.raises(SetupError, match="the proxy proxy:80 asks for a password"):
        secret.proxy({})


@pytest.mark.parametrize(("ends_s", "runs"), [("3600", "1"), ("30", "2")])
def test_a_plugin_runs_again_when_its_token_is_about_to_end(
    tmp_path: Path, ends_s: str, runs: str
) -> None:
    counted = tmp_path / "count"
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", PLUGIN, str(counted)],
        "env": [{"name": "ENDS", "value": ends_s}],
    }
    found = credentials(tmp_path, {"exec": plugin})
    assert found.authorization() == "Bearer ExecCredential-1"
    assert found.authorization() == f"Bearer ExecCredential-{runs}"
    assert counted.read_text() == runs


def test_the_pod_s_own_account_is_the_last_resort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_credentials, "SERVICE_ACCOUNT", tmp_path)
    (tmp_path / "token").write_text("pod")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    found = LoadCredentials.from_environment(environ)
    assert (found.server, found.authorization()) == ("https://[fd00::1]:443", "Bearer pod")


def test_the_server_s_authority_is_checked_unless_the_kubeconfig_says_no(tmp_path: Path) -> None:
    authority = write_certificates(tmp_path, "10.0.0.1").ca.certificate
    data = base64.b64encode(authority.read_bytes()).decode()
    context = credentials(tmp_path, {}, **{"certificate-authority-data": data}).ssl_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert len(context.get_ca_certs()) == 1
    loose = credentials(tmp_path, {}, **{"insecure-skip-tls-verify": True}).ssl_context()
    assert loose.verify_mode is ssl.CERT_NONE
