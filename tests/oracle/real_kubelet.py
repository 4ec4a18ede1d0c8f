"""One real kubelet, with fleet's simulated runtime behind its CRI socket.

    holder: a mount namespace, private directories in the place of the machine's
      kubelet --unix socket--> python -m oracle.cri, outside of the namespace

A kubelet writes below /var/lib/kubelet and /var/log/pods, and sets kernel parameters: it finds
copies of its own there, which end with the holder. The holder outlives a kubelet that is killed, as
the mounts of a machine do. Who starts this marks it (see guard.py): nothing of it outlives a test.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml
from e2e.free_ports import free_port

from oracle.cgroups import make_root, remove_root
from oracle.plugins.csi_plugin import CsiPlugin
from oracle.plugins.server import Plugin

Json = dict[str, Any]

SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""Source: container_manager_linux.go, setupKernelTunables."""
INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
INSTANCES_MIN = 1024
PRIORITY = -15
"""As nice(1) counts, where root asks; all that a play runs takes a quarter of a processor."""
HIDDEN = ("/var/lib", "/var/log")
SERVES_S = 30.0
ENDS_S = 20.0
POLL_S = 0.05
CONFIGURATION: Json = {
    "kind": "KubeletConfiguration",
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "failSwapOn": False,
    "failCgroupV1": False,
    "address": "127.0.0.1",
    "healthzPort": 0,
    "resolvConf": "",
    "clusterDNS": ["10.96.0.10"],
    "clusterDomain": "cluster.local",
    "makeIPTablesUtilChains": False,
    "cgroupDriver": "cgroupfs",
}
"""What a kubelet needs to run beside everything else of a machine."""
WITHOUT_CGROUPS: Json = {"cgroupsPerQOS": False, "enforceNodeAllocatable": []}
"""Where a machine gives it none. Resizing a pod in place then ends this kubelet with a panic."""


def why_not() -> str:
    """Return why no real kubelet can run here, "" if one can."""
    if os.geteuid() != 0:
        return "a real kubelet needs root"
    for program in ("unshare", "nsenter", "mount"):
        if shutil.which(program) is None:
            return f"a real kubelet is confined with {program}, which is missing"
    try:
        machine_address()
    except OSError as error:
        return f"a real kubelet needs an address that is not of the loopback interface: {error}"
    tried = subprocess.run(
        ("unshare", "--mount", "--propagation", "private", "true"),
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if tried.returncode == 0 else f"no mount namespace: {tried.stderr.strip()}"


def raise_limits() -> str:
    """Let this machine run more kubelets and API servers at once; return why it does not.

    An API server, a controller manager and a kubelet have six inotify instances each; Linux gives
    a user 128.
    The limit is only raised, and stays: it costs nothing, and others may need it meanwhile.
    Source: inotify(7); apiserver/pkg/server/dynamiccertificates, which watches each file by itself.
    """
    try:
        if int(INSTANCES.read_text()) < INSTANCES_MIN:
            INSTANCES.write_text(str(INSTANCES_MIN))
    except OSError as error:
        return f"fs.inotify.max_user_instances stays {INSTANCES.read_text().strip()}: {error}"
    return ""


@contextlib.contextmanager
def going_first() -> Iterator[None]:
    """Run this thread, and what it starts, before other work of the machine.

    What is compared is when nodes act, and one that waits for a processor is late.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    own = Path("/proc/self/autogroup")
    # Empty for a session as old as the machine, which has no group of its own.
    session = own.read_text().split()[-1:] if own.exists() else []
    os.setpriority(os.PRIO_PROCESS, 0, min(PRIORITY, before))
    sessions_go_first()
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)
        with contextlib.suppress(OSError):
            for nice in session:
                own.write_text(nice)


def sessions_go_first() -> None:
    """Do the same for the sessions that were begun: a control plane has one for each program.

    Where Linux shares processors between sessions, a priority counts within a session alone.
    Source: sched(7), the autogroup feature.
    """
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(OSError):  # it has ended, or this Linux does not group
            Path(f"/proc/{process.pid}/autogroup").write_text(str(PRIORITY))


def _free_network() -> str:
    """Name addresses that another run on this machine hardly has."""
    return f"127.{random.randrange(64, 128)}.{random.randrange(256)}.0/24"


@dataclass(slots=True)
class RealKubelet:
    """A kubelet of one node, its runtime, and the directories of both."""

    program: Path
    name: str
    directory: Path
    kubeconfig: Path
    profile: Path
    """What the runtime does: images, behaviours, pulls."""
    seed: int = 0
    pod_cidr: str = field(default_factory=_free_network)
    """Of the loopback interface."""
    options: Mapping[str, object] = field(default_factory=dict)
    """More keys of its KubeletConfiguration."""
    flags: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    """What it finds below HIDDEN, by the path."""
    plugins: Sequence[Plugin] = ()
    """They run before it does, and while it does not."""
    port: int = 0
    read_only_port: int = 0
    cgroup_root: str = ""
    """"" without cgroups."""
    _holder: subprocess.Popen[bytes] | None = None
    _runtime: subprocess.Popen[bytes] | None = None
    _kubelet: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return self.directory / "cri.sock"

    @property
    def log(self) -> str:
        """What the kubelet has to say."""
        return (self.directory / "kubelet.log").read_text(errors="replace")

    @property
    def manifests(self) -> Path:
        """Where it looks for static pods."""
        return self.directory / "manifests"

    @property
    def _root(self) -> Path:
        return self.directory / "root"

    @property
    def _read_only(self) -> str:
        return f"http://127.0.0.1:{self.read_only_port}"

    def start(self) -> None:
        """Start the runtime and the kubelet. Raises AssertionError if one of them ends."""
        self.directory.mkdir()
        self.manifests.mkdir()
        self.port = free_port(2)
        self.read_only_port = self.port + 1
        self.cgroup_root = make_root()
        self._write_configuration()
        self._hold()
        self.start_runtime()
        for plugin in self.plugins:
            plugin.start(self._root)
        self.start_kubelet()

    def stop(self) -> None:
        """End everything."""
        for process in (self._kubelet, self._runtime, self._holder):
            if process is not None:
                _end(process, signal.SIGKILL)
        for plugin in self.plugins:
            plugin.stop()
        if self.cgroup_root:
            remove_root(self.cgroup_root)

    # ---- the parts ----

    def start_runtime(self) -> None:
        command = (sys.executable, "-m", "oracle.cri", f"--socket={self.socket}")
        own = (f"--profile={self.profile}", f"--seed={self.seed}", f"--pod-cidr={self.pod_cidr}")
        network = (f"--host-ip={machine_address()}", f"--kubelet={self._read_only}")
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        self._runtime = self._start("cri.log", (*command, *own, *network), environment)
        self._until(self.socket.exists, self._runtime, "cri.log")

    def start_kubelet(self) -> None:
        """Start the kubelet, the first time or again; it knows no plug-in yet."""
        for plugin in self.plugins:
            plugin.withdraw()
        assert self._holder is not None
        into = ("nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--")
        own = (
            f"--config={self.directory / 'kubelet.yaml'}",
            f"--kubeconfig={self.kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={machine_address()}",
            f"--root-dir={self._root}",
            f"--cert-dir={self.directory / 'pki'}",
            "--v=2",
        )
        environment = os.environ | {"TMPDIR": str(self.directory)}
        self._kubelet = self._start(
            "kubelet.log", (*into, str(self.program), *own, *self.flags), environment
        )
        self._until(lambda: _listens(self.read_only_port), self._kubelet, "kubelet.log")

    def register_plugins(self) -> None:
        """Let the kubelet find its plug-ins, as their pods do once they see that it runs."""
        for plugin in self.plugins:
            if not isinstance(plugin, CsiPlugin):
                plugin.register(self._root)

    def register_drivers(self) -> None:
        """Let the kubelet find its CSI drivers, one after the other: each writes to its CSINode.

        No cluster may have them before a fleet starts that simulates drivers of these names.
        """
        for plugin in self.plugins:
            if isinstance(plugin, CsiPlugin):
                plugin.register(self._root)
                assert plugin.is_taken.wait(SERVES_S), plugin.name

    def kill_kubelet(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the kubelet; its pods run on."""
        assert self._kubelet is not None
        _end(self._kubelet, number)

    def assert_runs(self) -> None:
        for process, log in ((self._kubelet, "kubelet.log"), (self._runtime, "cri.log")):
            assert process is not None
            assert process.poll() is None, (self.directory / log).read_text()[-2000:]

    def _start(
        self, log: str, command: tuple[str, ...], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self.directory / log).open("ab") as file:
            return subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )

    def _until(
        self, is_true: Callable[[], bool], process: subprocess.Popen[bytes], log: str
    ) -> None:
        deadline = time.monotonic() + SERVES_S
        while not is_true():
            said = (self.directory / log).read_text(errors="replace")[-2000:]
            assert process.poll() is None, f"{log} ends: {said}"
            assert time.monotonic() < deadline, f"nobody serves: {said}"
            time.sleep(POLL_S)

    def _hold(self) -> None:
        """Make the mount namespace, and wait until all is in its place."""
        lines = ["set -eu", "mount --make-rprivate /"]
        for place in HIDDEN:
            own = self.directory / place.strip("/").replace("/", "-")
            own.mkdir()
            for path, content in self.files.items():
                if path.startswith(f"{place}/"):
                    own.joinpath(path.removeprefix(f"{place}/")).write_text(content)
            lines.append(f"mount --bind {own} {place}")
        sysctls = self.directory / "sysctl"
        sysctls.mkdir()
        for name in SYSCTLS:
            parameter = Path("/proc/sys", name)
            if parameter.exists():
                own = sysctls / name.replace("/", ".")
                own.write_text(parameter.read_text())
                lines.append(f"mount --bind {own} {parameter}")
        done = self.directory / "held"
        lines += [f"touch {done}", "exec sleep infinity"]
        command = ("unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(lines))
        self._holder = self._start("holder.log", command, os.environ)
        self._until(done.exists, self._holder, "holder.log")

    def _write_configuration(self) -> None:
        endpoint = f"unix://{self.socket}"
        cgroups = {"cgroupRoot": self.cgroup_root} if self.cgroup_root else WITHOUT_CGROUPS
        configuration = CONFIGURATION | {
            **cgroups,
            "containerRuntimeEndpoint": endpoint,
            "imageServiceEndpoint": endpoint,
            "port": self.port,
            "readOnlyPort": self.read_only_port,
            "podLogsDir": str(self.directory / "pod-logs"),
            "staticPodPath": str(self.manifests),
            "volumePluginDir": str(self.directory / "volume-plugins"),
            **self.options,
        }
        (self.directory / "kubelet.yaml").write_text(yaml.safe_dump(configuration))

    def pods(self) -> list[Json]:
        """Return its pods as it shows them itself."""
        with urllib.request.urlopen(f"{self._read_only}/pods", timeout=SERVES_S) as answer:
            pods: list[Json] = json.load(answer)["items"] or []
        return pods


@contextlib.contextmanager
def running(kubelet: RealKubelet) -> Iterator[RealKubelet]:
    """Run a kubelet; whatever happens, it is gone afterwards."""
    try:
        kubelet.start()
        yield kubelet
        kubelet.assert_runs()
    finally:
        kubelet.stop()


def _end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """End a process; nsenter becomes the kubelet, and nothing else has children."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
    try:
        process.wait(ENDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def machine_address() -> str:
    """Return the address by which this machine would be known: a kubelet takes no loopback one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.1", 9))  # nothing is sent
        return str(probe.getsockname()[0])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
