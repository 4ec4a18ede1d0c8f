"""A real control plane: it comes up, is who it should be, and leaves nothing behind."""

import asyncio
import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from e2e.own_control_plane import restart_apiserver
from fleet import KUBERNETES_VERSION
from fleet.controlplane.binaries import find_binaries
from fleet.controlplane.controlplane import ControlPlane
from fleet.controlplane.kubeconfig import render_kubeconfig
from fleet.controlplane.options import (
    APISERVER,
    COMPONENTS,
    CONTROLLER_MANAGER,
    ETCD,
    SCHEDULER,
    ComponentDeath,
    ControlPlaneInfo,
    ControlPlaneOptions,
    from_json,
)
from fleet.controlplane.standing import attach, down, status, up
from fleet.errors import SetupError

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LIMIT_S = 120.0


@pytest.fixture(autouse=True)
def programs_are_there() -> None:
    assert find_binaries() is not None, "run `fleet controlplane build` first"


def kubectl(
    info: ControlPlaneInfo, *arguments: str, kubeconfig: Path | None = None, stdin: str = ""
) -> str:
    command = (*info.kubectl, "--kubeconfig", str(kubeconfig or info.kubeconfig), *arguments)
    return subprocess.run(
        command, input=stdin, check=True, capture_output=True, text=True, timeout=240
    ).stdout


def listening(info: ControlPlaneInfo) -> set[tuple[str, int]]:
    """Give the addresses on which the components listen."""
    return {
        (connection.laddr.ip, connection.laddr.port)
        for pid in info.pids.values()
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr
    }


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_until_gone(pids: Iterable[int]) -> None:
    wait_until(lambda: all(is_gone(pid) for pid in pids))


def audit_events(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_it_comes_up_and_everyone_is_who_they_should_be(tmp_path: Path) -> None:
    """One control plane for what only needs to be looked at."""
    audit_log = tmp_path / "audit.jsonl"
    out = tmp_path / "kubeconfig"
    options = ControlPlaneOptions(
        audit_log=audit_log,
        kubeconfig_out=out,
        extra_flags={CONTROLLER_MANAGER: ["node-eviction-rate=1"], SCHEDULER: ["--v=3"]},
    )

    async def run() -> ControlPlaneInfo:
        async with ControlPlane(options) as control_plane:
            info = control_plane.info
            await asyncio.to_thread(look_at, info, out)
            return info

    info = uvloop.run(run())
    wait_until_gone(info.pids.values())
    assert not info.directory.exists()
    users = {
        (str(event["user"]["username"]), str(event["userAgent"]).split("/")[0])  # type: ignore[index]
        for event in audit_events(audit_log)
    }
    agents = {user: {agent for name, agent in users if name == user} for user, _ in users}
    assert "kube-scheduler" in agents["system:kube-scheduler"]
    assert "kube-controller-manager" in agents["system:kube-controller-manager"]
    # Each controller has an account of its own, and none of the components is an administrator.
    assert "system:serviceaccount:kube-system:node-controller" in agents
    assert not {"kube-scheduler", "kube-controller-manager"} & agents["kubernetes-admin"]


def look_at(info: ControlPlaneInfo, out: Path) -> None:
    assert set(info.pids) == set(COMPONENTS)
    assert info.server_version == KUBERNETES_VERSION
    assert not info.warnings
    assert kubectl(info, "get", "--raw", "/readyz") == "ok"
    assert kubectl(info, "get", "--raw", "/readyz", kubeconfig=out) == "ok"
    groups = kubectl(info, "auth", "whoami", "-o", "json", kubeconfig=info.token_kubeconfig)
    assert "system:masters" in groups
    assert {address for address, _port in listening(info)} == {"127.0.0.1"}
    command = psutil.Process(info.pids[CONTROLLER_MANAGER]).cmdline()
    assert "--node-eviction-rate=1" in command
    assert "--v=3" in psutil.Process(info.pids[SCHEDULER]).cmdline()
    assert "--unsafe-no-fsync=true" in psutil.Process(info.pids[ETCD]).cmdline()

    etcd_gives_nothing_to_other_users(info)
    can_join(info)
    gets_a_certificate(info)


def etcd_gives_nothing_to_other_users(info: ControlPlaneInfo) -> None:
    """Its one port has metrics and health; all else is a socket that only this user reaches."""
    ports = {port for _address, port in listening(info) if port not in info.ports.values()}
    assert not ports
    everything = json.dumps({"key": "AA==", "range_end": "AA=="}).encode()
    url = f"http://127.0.0.1:{info.ports[ETCD]}"
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        assert b"etcd_disk_backend_commit_duration_seconds" in answer.read()
    for path in ("/v3/kv/range", "/v2/keys", "/members", "/raft"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}{path}", everything, timeout=60)
        assert refused.value.code == 404
        refused.value.close()
    assert info.directory.stat().st_mode & 0o777 == 0o700
    assert (info.directory / "etcd.sock").is_socket()


def can_join(info: ControlPlaneInfo) -> None:
    """Be a node by name alone: the user name yields group system:nodes, and with it the rights."""
    node = json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}})
    kubectl(info, "--as", "system:node:n0", "create", "-f", "-", stdin=node)
    kubectl(info, "wait", "--for=jsonpath={.spec.podCIDR}", "node/n0", "--timeout=120s")
    assert kubectl(info, "get", "node", "n0", "-o", "jsonpath={.spec.podCIDR}").endswith("/24")
    kubectl(info, "--as", "system:node:n0", "label", "node", "n0", "a=b")
    with pytest.raises(subprocess.CalledProcessError):  # NodeRestriction
        kubectl(info, "--as", "system:node:n1", "label", "node", "n0", "a=c")


def gets_a_certificate(info: ControlPlaneInfo) -> None:
    """Bootstrap with a token, as kubeadm's nodes do: approved and signed by the controllers."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": "abcdef",
            "token-secret": "0123456789abcdef",
            "usage-bootstrap-authentication": "true",
        },
    }
    kubectl(info, "create", "-f", "-", stdin=json.dumps(secret))
    joining = info.directory / "joining.kubeconfig"
    token = "abcdef.0123456789abcdef"
    joining.write_bytes(render_kubeconfig(info.url, info.ca_file, "joining", token))
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
            x509.NameAttribute(NameOID.COMMON_NAME, "system:node:n2"),
        ]
    )
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, SHA256())
    csr = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": "n2"},
        "spec": {
            "request": base64.b64encode(request.public_bytes(Encoding.PEM)).decode(),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"],
        },
    }
    wait_until(lambda: is_allowed(info, joining))  # the API server's informers take a moment
    kubectl(info, "create", "-f", "-", kubeconfig=joining, stdin=json.dumps(csr))
    kubectl(info, "wait", "--for=jsonpath={.status.certificate}", "csr/n2", "--timeout=120s")


def is_allowed(info: ControlPlaneInfo, kubeconfig: Path) -> bool:
    try:
        kubectl(info, "auth", "can-i", "create", "csr", kubeconfig=kubeconfig)
    except subprocess.CalledProcessError:
        return False
    return True


@pytest.mark.slow
def test_etcd_and_an_apiserver_alone_are_enough(tmp_path: Path) -> None:
    """As with KUBEBUILDER_ASSETS: a warning, and pods that nothing would schedule are admitted."""
    full = find_binaries()
    assert full is not None
    for name in (ETCD, APISERVER, "kubectl"):
        (tmp_path / name).symlink_to(Path(full.commands[name][0]).resolve())
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    spec = {"nodeName": "n0", "containers": [{"name": "c", "image": "i"}]}

    async def run() -> ControlPlaneInfo:
        async with ControlPlane(ControlPlaneOptions(binaries=tmp_path)) as control_plane:
            info = control_plane.info
            text = json.dumps({**pod, "spec": spec})
            await asyncio.to_thread(kubectl, info, "create", "-f", "-", stdin=text)
            return info

    info = uvloop.run(run())
    assert set(info.pids) == {ETCD, APISERVER}
    assert info.server_version == KUBERNETES_VERSION
    assert "no kube-scheduler and no kube-controller-manager" in info.warnings[0]


def test_two_at_a_time_and_an_apiserver_that_restarts() -> None:
    deaths: list[ComponentDeath] = []

    async def run() -> None:
        first, second = ControlPlane(on_death=deaths.append), ControlPlane()
        try:
            one, two = await asyncio.gather(first.start(), second.start())
            assert listening(one).isdisjoint(listening(two))
            await asyncio.to_thread(kubectl, one, "create", "namespace", "only-here")
            await restart_apiserver(first)
            assert first.info.pids[APISERVER] != one.pids[APISERVER]
            assert first.info.url == one.url
            names = await asyncio.to_thread(kubectl, one, "get", "ns", "-o", "name")
            others = await asyncio.to_thread(kubectl, two, "get", "ns", "-o", "name")
            assert "namespace/only-here" in names
            assert "namespace/only-here" not in others
            assert not deaths
            os.kill(first.info.pids[SCHEDULER], signal.SIGKILL)
            async with asyncio.timeout(LIMIT_S):
                while not deaths:  # noqa: ASYNC110  # a callback fills it
                    await asyncio.sleep(0.01)
        finally:
            await asyncio.gather(first.stop(), second.stop())
        wait_until_gone([*one.pids.values(), *two.pids.values()])

    uvloop.run(run())
    assert [(death.component, death.returncode) for death in deaths] == [(SCHEDULER, -9)]
    assert "kube-scheduler was killed by signal 9; its log is " in str(deaths[0])


OWNER = """
import sys, time, uvloop
from fleet.controlplane.controlplane import ControlPlane
from fleet.controlplane.options import to_json

async def main():
    info = await ControlPlane().start()
    print(to_json(info), flush=True)
    time.sleep(600)

uvloop.run(main())
"""


@pytest.mark.parametrize("loop", ["uvloop", pytest.param("asyncio", marks=pytest.mark.slow)])
def test_sigkill_of_the_owner_leaves_no_process_and_no_port(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # nobody else's start may sweep it
    monkeypatch.setattr(tempfile, "tempdir", None)
    script = OWNER.replace("uvloop", loop)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        info = from_json(ControlPlaneInfo, owner.stdout.readline().decode())
        ports = {port for _address, port in listening(info)}
        assert set(info.ports.values()) <= ports
        owner.kill()
    wait_until_gone(info.pids.values())
    wait_until(lambda: not any(is_open(port) for port in ports))  # the last thread closes them
    # Its files are swept by whoever starts next.
    assert info.directory.exists()
    uvloop.run(start_and_stop(ControlPlaneOptions()))
    assert not info.directory.exists()


async def start_and_stop(options: ControlPlaneOptions) -> ControlPlaneInfo:
    async with ControlPlane(options) as control_plane:
        return control_plane.info


def test_a_flag_that_breaks_a_component_is_one_clear_error(tmp_path: Path) -> None:
    options = ControlPlaneOptions(
        directory=tmp_path / "d", extra_flags={APISERVER: ["no-such-flag=1"]}
    )
    with pytest.raises(SetupError) as raised:
        uvloop.run(start_and_stop(options))
    assert "kube-apiserver exited with code 1; its log is " in str(raised.value)
    assert "unknown flag: --no-such-flag" in str(raised.value)
    left = [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if str(tmp_path) in " ".join(process.info["cmdline"] or ())
    ]
    assert not left


def test_a_named_directory_keeps_its_cluster_and_its_address(tmp_path: Path) -> None:
    options = ControlPlaneOptions(directory=tmp_path / "d", fsync=True)

    async def create() -> ControlPlaneInfo:
        async with ControlPlane(options) as control_plane:
            info = control_plane.info
            await asyncio.to_thread(kubectl, info, "create", "namespace", "stays")
            return info

    async def look() -> tuple[ControlPlaneInfo, str]:
        async with ControlPlane(options) as control_plane:
            info = control_plane.info
            return info, await asyncio.to_thread(kubectl, info, "get", "ns", "-o", "name")

    before = uvloop.run(create())
    after, names = uvloop.run(look())
    assert "namespace/stays" in names
    assert after.url == before.url
    assert after.etcd_fsync


@pytest.fixture
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield tmp_path / "state"
    with contextlib.suppress(SetupError):
        asyncio.run(down())


def test_up_status_down(state_home: Path) -> None:
    assert attach() is None
    lines: list[str] = []
    # In another process, as the command does: the control plane must outlive it.
    script = "import asyncio; from fleet.controlplane.standing import up; asyncio.run(up())"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    info = attach()
    assert info is not None
    assert info.directory == state_home / "fleet" / "controlplane"
    assert kubectl(info, "get", "--raw", "/readyz") == "ok"
    again = asyncio.run(up(progress=lines.append))
    assert again.url == info.url
    assert "is running in" in lines[-1]
    shown = asyncio.run(status())
    assert shown is not None
    assert shown.is_ready
    assert shown.components == dict.fromkeys(COMPONENTS, True)
    assert asyncio.run(down())
    wait_until_gone([info.owner_pid, *info.pids.values()])
    assert not info.directory.exists()
    assert attach() is None
    assert not asyncio.run(down())


@pytest.mark.slow
def test_a_standing_one_dies_with_its_supervisor(state_home: Path, tmp_path: Path) -> None:
    """`--dir` is found without being named again, and SIGKILL leaves only files."""
    assert state_home
    info = asyncio.run(up(ControlPlaneOptions(directory=tmp_path / "d")))
    found = attach()
    assert found is not None
    assert found.directory == tmp_path / "d"
    os.kill(info.owner_pid, signal.SIGKILL)
    wait_until_gone([info.owner_pid, *info.pids.values()])
    wait_until(lambda: attach() is None)  # the last thread lets go of its lock
    assert asyncio.run(status(tmp_path / "d")) is None


def test_up_tells_why_it_failed(state_home: Path) -> None:
    options = ControlPlaneOptions(extra_flags={ETCD: ["no-such-flag=1"]})
    with pytest.raises(SetupError, match="etcd exited with code"):
        asyncio.run(up(options))
    logs = state_home / "fleet" / "controlplane" / "logs"
    assert {path.name for path in logs.iterdir()} == {"etcd.log", "supervisor.log"}
