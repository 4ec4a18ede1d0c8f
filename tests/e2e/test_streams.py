"""What people type: exec, attach, cp, debug, port-forward, over WebSockets and over SPDY."""

import fcntl
import os
import pty
import socket
import struct
import subprocess
import termios
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.e2e_world import SUITES_PROGRAMS, World, eventually, pod, read_until
from e2e.free_ports import free_port

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SAYS = "echo first; while true; do echo tick; sleep 1; done"
WEB_SOCKETS = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "true"}
SPDY = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false"}
PROTOCOLS = pytest.mark.parametrize("variables", [WEB_SOCKETS, SPDY], ids=["ws", "spdy"])
SIZE = 3_000_000
ECHOED = 8_000_000
UNREAD = 4_096


@pytest.fixture(scope="module")
def kubectl(world: World) -> Iterator["Kubectl"]:
    """Run two nodes with one pod, and return what to type."""
    with world.spawn("streams", 2, SUITES_PROGRAMS) as run:
        run.until_ready()
        world.apply(pod("p", SAYS))
        world.kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=120s")
        yield Kubectl(world)
        run.end_well_or_late()
    world.assert_nothing_left("streams")


class Kubectl:
    """kubectl against the control plane of the tests."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.command = (*world.info.kubectl, f"--kubeconfig={world.info.kubeconfig}")

    def __call__(
        self, *arguments: str, stdin: bytes = b"", variables: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            (*self.command, *arguments),
            input=stdin,
            capture_output=True,
            env={**os.environ, **(variables or {})},
            timeout=120,
            check=False,
        )


@PROTOCOLS
def test_a_command_says_and_ends(kubectl: Kubectl, variables: dict[str, str]) -> None:
    done = kubectl(
        "exec", "p", "--", "sh", "-c", "echo out; echo err >&2; exit 3", variables=variables
    )
    assert done.stdout == b"out\n"
    assert done.stderr.splitlines() == [b"err", b"command terminated with exit code 3"]
    assert done.returncode == 3


@PROTOCOLS
def test_a_command_reads_to_the_end_of_its_input(
    kubectl: Kubectl, variables: dict[str, str]
) -> None:
    sent = os.urandom(SIZE)
    done = kubectl("exec", "-i", "p", "--", "cat", stdin=sent, variables=variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout == sent


def test_what_is_no_program_is_told(kubectl: Kubectl) -> None:
    done = kubectl("exec", "p", "--", "nosuch")
    assert done.returncode == 1
    assert b'exec: "nosuch": executable file not found in $PATH' in done.stderr


@PROTOCOLS
def test_a_shell_on_a_terminal(kubectl: Kubectl, variables: dict[str, str]) -> None:
    own, theirs = pty.openpty()
    with subprocess.Popen(
        (*kubectl.command, "exec", "-it", "p", "--", "sh"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, **variables},
        start_new_session=True,
    ) as typed:
        os.close(theirs)
        said = read_until(own, b"# ")
        os.write(own, b"x=$((6 * 7)); echo $x\r")
        said = read_until(own, b"\r\n42\r\n")
        assert b"echo $x" in said  # the terminal echoes
        os.write(own, b"exit 4\r")
        read_until(own, b"exit code 4")
        assert typed.wait(120) == 4
    os.close(own)


def test_a_script_and_an_exec_see_the_same_files(kubectl: Kubectl) -> None:
    script = "while [ ! -f /tmp/go ]; do sleep 1; done; echo went; sleep 3600"
    kubectl.world.apply(pod("waits", script))
    kubectl.world.kubectl("wait", "--for=condition=Ready", "pod/waits", "--timeout=120s")
    assert kubectl("exec", "waits", "--", "touch", "/tmp/go").returncode == 0
    eventually(lambda: kubectl("logs", "waits").stdout == b"went\n", "the script saw the file")


@PROTOCOLS
def test_attach_shows_what_comes(kubectl: Kubectl, variables: dict[str, str]) -> None:
    with subprocess.Popen(
        (*kubectl.command, "attach", "p"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **variables},
    ) as attached:
        assert attached.stdout is not None
        assert attached.stdout.readline() == b"tick\n"
        assert attached.stdout.readline() == b"tick\n"
        attached.terminate()


def test_files_are_copied_both_ways(kubectl: Kubectl, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(os.urandom(SIZE))
    done = kubectl("cp", str(tmp_path / "there"), "p:/tmp/copied")
    assert done.returncode == 0, done.stderr
    done = kubectl("cp", "p:/tmp/copied", str(tmp_path / "back"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "back").read_bytes() == (tmp_path / "there").read_bytes()


def test_debug_runs_an_ephemeral_container(kubectl: Kubectl) -> None:
    done = kubectl(
        "debug", "p", "--image=busybox", "--container=d", "--", "sh", "-c", "echo debugged"
    )
    assert done.returncode == 0, done.stderr
    eventually(
        lambda: kubectl("logs", "p", "-c", "d").stdout == b"debugged\n", "the debugger spoke"
    )


def test_a_container_that_is_not_there_is_told(kubectl: Kubectl) -> None:
    kubectl.world.apply(pod("over", "exit 0"))
    eventually(
        lambda: (
            kubectl.world.get("pod", "over")["status"]
            .get("containerStatuses", [{}])[0]
            .get("restartCount", 0)
            > 0
            or b"terminated" in kubectl("get", "pod", "over", "-o", "json").stdout
        ),
        "it has ended",
    )
    done = kubectl("exec", "over", "--", "true")
    assert done.returncode == 1
    assert b"container not found" in done.stderr or b"cannot exec" in done.stderr


def unread(process: subprocess.Popen[bytes]) -> int:
    """Return how many bytes of the output of a process wait in its pipe."""
    assert process.stdout is not None
    found: tuple[int] = struct.unpack("i", fcntl.ioctl(process.stdout, termios.FIONREAD, bytes(4)))
    return found[0]


def test_clients_that_do_not_read_disturb_nobody(kubectl: Kubectl) -> None:
    """Sessions with endless output that nobody takes; another one is answered as before."""
    endless = (
        "exec",
        "p",
        "--",
        "sh",
        "-c",
        "while true; do echo yyyyyyyyyyyyyyyyyyyyyyyyyy; done",
    )
    stuck = [
        subprocess.Popen(
            (*kubectl.command, *endless), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        for _ in range(5)
    ]
    try:
        eventually(lambda: min(map(unread, stuck)) > UNREAD, "output that nobody reads")
        for _ in range(3):
            done = kubectl("exec", "p", "--", "echo", "alive")
            assert done.stdout == b"alive\n"
    finally:
        for each in stuck:
            each.kill()
            each.communicate()


@pytest.mark.parametrize("uses_web_sockets", ["true", "false"])
def test_a_port_is_forwarded(kubectl: Kubectl, uses_web_sockets: str) -> None:
    """Every port of a pod answers."""
    kubectl.world.apply(pod("web", "sleep 3600"))
    kubectl.world.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=120s")
    served = free_port()
    with subprocess.Popen(
        (*kubectl.command, "port-forward", "web", f"{served}:8080"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "KUBECTL_PORT_FORWARD_WEBSOCKETS": uses_web_sockets},
    ) as forwarding:
        assert forwarding.stdout is not None
        assert b"Forwarding from" in forwarding.stdout.readline()
        url = f"http://127.0.0.1:{served}/hostname"
        for _ in range(3):  # each a connection of its own
            with urllib.request.urlopen(url, timeout=60) as answer:
                assert answer.status == 200
                assert b"web" in answer.read()
        forwarding.terminate()


@pytest.mark.parametrize("uses_web_sockets", ["true", "false"])
def test_a_forwarded_port_carries_both_ways_at_once(
    kubectl: Kubectl, uses_web_sockets: str
) -> None:
    """Of a pod without declared ports any one echoes: more than all buffers on the way hold."""
    port, sent = free_port(), b"no request\n" + os.urandom(ECHOED)
    with subprocess.Popen(
        (*kubectl.command, "port-forward", "p", f"{port}:7"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "KUBECTL_PORT_FORWARD_WEBSOCKETS": uses_web_sockets},
    ) as forwarding:
        try:
            assert forwarding.stdout is not None
            assert b"Forwarding from" in forwarding.stdout.readline()
            with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
                writing = threading.Thread(target=connection.sendall, args=(sent,))
                writing.start()
                received = bytearray()
                while len(received) < len(sent) and (piece := connection.recv(1 << 16)):
                    received += piece
                writing.join(120)
        finally:
            forwarding.terminate()
    assert received == sent
