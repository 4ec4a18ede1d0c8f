"""Bad input: one line that says what to do, exit 2 or 3, and nothing is created."""

import contextlib
import datetime as dt
import json
import resource
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from e2e_world import World, eventually
from lateness import assert_done

from fleet.cluster.ownership import RUN_LABEL

SAID_BEFORE = (
    "[",
    "using the local control plane",
    "WARNING fleet.cluster.credentials: CERTIFICATES ARE",
)

pytest_plugins = ("e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def assert_refused(world: World, code: int, words: str, *arguments: str) -> None:
    """Fleet says one line, ends with the code, and leaves cluster and directory alone."""
    runs = set(world.root.glob("runs/*"))
    done = world.fleet("spawn", "--until-ready", *arguments)
    assert done.returncode == code, done.stderr
    assert not done.stdout
    lines = [line for line in done.stderr.splitlines() if not line.startswith(SAID_BEFORE)]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("fleet: ")
    assert words in lines[0]
    assert not world.items("nodes", "-l", RUN_LABEL)
    assert not world.items("leases", "-l", RUN_LABEL)
    assert set(world.root.glob("runs/*")) == runs


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nods=5"], "--nods"),
        (["--nodes=-1"], "--nodes: -1"),
        (["--nodes=0"], "--nodes: 0"),
        (["--nodes=many"], "--nodes"),
        (["--nodes=100001"], "--nodes: 100001"),
        (["--nodes=99999999999999999999"], "--nodes: 99999999999999999999"),
        (["--profile=no-such"], "no-such"),
        (["--profile=default=0"], "the weight '0' is not a number above 0"),
        (["--profile=./no-such.yaml"], "no-such.yaml"),
        (["--name-prefix=Not_A_Label"], "--name-prefix: 'Not_A_Label' is not a DNS label"),
        (["--name-prefix=-a"], "--name-prefix"),
        ([f"--name-prefix={'a' * 60}"], "shorten the prefix"),
        (["--fidelity=high"], "--fidelity"),
        (["--duration=soon"], "--duration: 'soon' is not a duration"),
        (["--duration=0s"], "--duration: 0s leaves no time"),
        (["--kubeconfig=/no/such/file"], "--kubeconfig /no/such/file: no such file"),
        (["--context=no-such"], "no-such"),
        (["--in-cluster"], "cluster"),
        (["--in-cluster", "--context=x"], "--in-cluster excludes"),
        (["--confirm-cluster=other"], "--confirm-cluster other"),
        (["--run-dir=/dev/null/x"], "/dev/null/x"),
        (["--apiserver-flag=--"], "--apiserver-flag"),
        (["--fsync"], "--fsync: the control plane in"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_wrong_option_is_refused(world: World, arguments: list[str], words: str) -> None:
    code = 3 if arguments == ["--run-dir=/dev/null/x"] else 2
    assert_refused(world, code, words, *arguments)


@pytest.mark.parametrize("text", ["", "{", "a: [", "clusters: 5", "\0", "kind: Config\n"])
def test_an_unreadable_kubeconfig_is_refused(world: World, tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    assert_refused(world, 2, str(path), f"--kubeconfig={path}")


def test_refused_credentials_are_told(world: World, tmp_path: Path) -> None:
    never = world.user(tmp_path / "never", "nonsense")
    assert_refused(world, 3, "401, the credentials of context", f"--kubeconfig={never}")
    world.kubectl("create", "serviceaccount", "gone")
    token = world.kubectl("create", "token", "gone").strip()
    world.kubectl("delete", "serviceaccount", "gone")
    revoked = world.user(tmp_path / "revoked", token)
    # The server learns by a watch that the account is gone, and remembers for a while who it was.
    asks = ("get", "--raw", "/version")
    eventually(lambda: not world.kubectl(*asks, kubeconfig=revoked, check=False), "it is revoked")
    assert_refused(world, 3, "expired, revoked or of another", f"--kubeconfig={revoked}")


def until_allowed(world: World, verb: str, resource: str) -> None:
    """Wait until the authorizer has seen what the account `limited` was granted."""
    asked = ("auth", "can-i", verb, resource, "--as=system:serviceaccount:default:limited")
    eventually(lambda: world.kubectl(*asked, check=False).strip() == "yes", f"{verb} {resource}")


def test_a_missing_permission_is_named_by_verb_and_resource(world: World, tmp_path: Path) -> None:
    world.kubectl("create", "serviceaccount", "limited")
    account = "--serviceaccount=default:limited"
    path = world.user(tmp_path / "k", world.kubectl("create", "token", "limited").strip())
    try:
        assert_refused(world, 3, "delete csinodes.storage.k8s.io", f"--kubeconfig={path}")
        world.kubectl("create", "clusterrolebinding", "limited", "--clusterrole=view", account)
        until_allowed(world, "list", "configmaps")
        shared = (f"--kubeconfig={path}", "--identity=shared")
        assert_refused(world, 3, "get,patch,delete nodes fleet-00000", *shared)
        world.kubectl("delete", "clusterrolebinding", "limited")
        world.kubectl(
            "create", "clusterrolebinding", "limited", "--clusterrole=edit-nodes", account
        )
        rule = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "edit-nodes"},
            "rules": [
                {
                    "apiGroups": ["", "apps", "storage.k8s.io", "coordination.k8s.io"],
                    "resources": ["*"],
                    "verbs": ["get", "list", "watch", "patch", "delete", "create", "update"],
                }
            ],
        }
        world.apply(rule)
        until_allowed(world, "patch", "csinodes.storage.k8s.io")
        assert_refused(world, 3, "no permission to impersonate nodes", f"--kubeconfig={path}")
        words = "list,watch runtimeclasses.node.k8s.io"
        assert_refused(world, 3, words, *shared)
    finally:
        world.kubectl("delete", "clusterrolebinding", "limited", "--ignore-not-found")
        world.kubectl("delete", "clusterrole", "edit-nodes", "--ignore-not-found")
        world.kubectl("delete", "serviceaccount", "limited")


@contextlib.contextmanager
def listening(directory: Path, protocols: list[str] | None) -> Iterator[int]:
    """Accept connections, by TLS with the protocols or without TLS for None; answer nothing."""
    context = None
    if protocols is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self_signed(directory))
        if protocols:
            context.set_alpn_protocols(protocols)

    def accept(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                with contextlib.suppress(OSError), client:
                    if context is None:
                        client.recv(100)
                        client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    else:
                        with context.wrap_socket(client, server_side=True) as secured:
                            secured.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, args=(server,), daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def self_signed(directory: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "proxy")])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name)
    builder = builder.public_key(key.public_key()).serial_number(1)
    builder = builder.not_valid_before(now - dt.timedelta(hours=1))
    certificate = builder.not_valid_after(now + dt.timedelta(hours=1)).sign(key, SHA256())
    path = directory / "proxy.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(private + certificate.public_bytes(Encoding.PEM))
    return path


@pytest.mark.parametrize(
    ("protocols", "words"),
    [
        ([], "does not speak HTTP/2"),
        (["http/1.1"], "does not speak HTTP/2"),
        (None, "does the port speak plain HTTP?"),
    ],
)
def test_a_server_without_http2_is_refused(
    world: World, tmp_path: Path, protocols: list[str] | None, words: str
) -> None:
    with listening(tmp_path, protocols) as port:
        path = world.user(tmp_path / "k", "t", server=f"https://127.0.0.1:{port}")
        text = path.read_text().splitlines()
        lines = [line for line in text if "certificate-authority-data" not in line]
        server = next(line for line in lines if "server:" in line)
        indent = server[: len(server) - len(server.lstrip())]
        lines.insert(lines.index(server), f"{indent}insecure-skip-tls-verify: true")
        path.write_text("\n".join(lines))
        assert_refused(world, 3, words, f"--kubeconfig={path}")


def test_an_unreachable_server_is_told(world: World, tmp_path: Path) -> None:
    with socket.socket() as taken:  # by nobody who listens
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        path = world.user(tmp_path / "k", "t", server=f"https://127.0.0.1:{port}")
        words = f"no connection to 127.0.0.1:{port}: connection refused"
        assert_refused(world, 3, words, f"--kubeconfig={path}")


def test_a_second_fleet_with_the_prefix_is_refused(world: World) -> None:
    with world.spawn("mine", 2) as run:
        run.until_ready()
        uids = {node["metadata"]["uid"] for node in world.nodes("mine").values()}
        done = world.fleet("spawn", "--nodes=2", "--name-prefix=mine", "--until-ready")
        assert done.returncode == 3
        assert f"the name prefix mine is in use by run {world.run_id('mine')}" in done.stderr
        assert {node["metadata"]["uid"] for node in world.nodes("mine").values()} == uids
        run.end_well_or_late()
    world.assert_nothing_left("mine")


def test_names_of_nodes_that_fleet_did_not_create_are_left_alone(world: World) -> None:
    world.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "taken-00001"}})
    try:
        confirm = "--confirm-cluster=fleet"
        done = world.fleet("spawn", "--nodes=2", "--name-prefix=taken", confirm, "--until-ready")
        assert done.returncode == 3, done.stderr
        assert "choose another --name-prefix" in done.stderr
        assert "taken-00000" not in world.kubectl("get", "nodes", "-o", "name")
    finally:
        world.kubectl("delete", "node", "taken-00001")


def test_too_few_file_descriptors_are_told_by_number(world: World) -> None:
    """A user who is not root cannot raise the hard limit; root runs without that right here."""
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))\n"
        "def refuse(*_): raise ValueError('not allowed to raise maximum limit')\n"
        "resource.setrlimit = refuse\n"
        "from fleet.cli import main; main()"
    )
    command = (sys.executable, "-c", limited, "spawn", "--nodes=1000", "--until-ready")
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=world.root, timeout=120
    )
    assert done.returncode == 3
    [line] = done.stderr.splitlines()
    assert "1000 nodes in fidelity kubelet need 1250 open files, the limit is 300" in line
    assert "ulimit -Hn 1250" in line
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] != 300


def test_too_little_memory_is_told(world: World) -> None:
    short = (
        "import fleet.host.machine\n"
        "fleet.host.machine.available_bytes = lambda: 150 << 20\n"
        "from fleet.cli import main; main()"
    )
    command = (sys.executable, "-c", short, "spawn", "--nodes=5000", "--until-ready")
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=world.root, timeout=120
    )
    assert done.returncode == 3
    [line] = done.stderr.splitlines()
    assert "of memory" in line
    assert "0.2 GB are available" in line


def test_json_output_is_nothing_but_json(world: World) -> None:
    done = world.fleet("spawn", "--nodes=1", "--name-prefix=pure", "--until-ready", "--output=json")
    assert_done(done.returncode, done.stdout, done.stderr)
    assert json.loads(done.stdout)["nodes"]["ready"] == 1
