"""A control plane's directory: what lies where, who holds it, and what becomes of it.

Its owner holds a file lock, which goes with the process however that ends. So a directory whose
lock is free belongs to nobody, and the temporary one of a run that got SIGKILL is swept by the next
start. A directory is marked as fleet's (`MARK`) while it is empty; one that holds anything else is
refused, as its files would be taken for a control plane's. It is the user's alone (mode 0700): the
sockets in it give the whole cluster to every user who reaches them.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from fleet.errors import SetupError, UsageError

ADMIN_USER = "kubernetes-admin"
ADMIN_GROUP = "system:masters"
KUBELET_CLIENT_USER = "kube-apiserver-kubelet-client"
FRONT_PROXY_USER = "front-proxy-client"
TEMPORARY_PREFIX = "fleet-controlplane-"
MARK = ".fleet-controlplane"
SOCKET_PATH_MAX = 107
"""Bytes that the path of a Unix socket may have; Linux, include/uapi/linux/un.h."""
ETCD_SOCKET, PEER_SOCKET = "etcd.sock", "peer.sock"
LOCK_TRIES = 5  # somebody who asks `is_held` has the lock for a moment
LOCK_PAUSE_S = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, as PEM files."""

    certificate: Path
    key: Path

    def exists(self) -> bool:
        """Return whether both were written."""
        return self.certificate.exists() and self.key.exists()


@dataclasses.dataclass(frozen=True, slots=True)
class Certificates:
    """The files that the components are started with: one identity for each component.

    The names decide what the API server grants: `system:kube-scheduler` and
    `system:kube-controller-manager` get their RBAC roles and their share of priority-and-fairness.
    An administrator's certificate in their place would be exempt from it and falsify every
    measurement.
    Differs: the API server's kubelet client is in no administrators' group; it gets the role
    system:kubelet-api-admin.
    """

    ca: Pair
    front_proxy_ca: Pair
    service_account: Pair
    """The key pair that signs service account tokens; `certificate` is the public key."""
    apiserver: Pair
    kubelet_client: Pair
    front_proxy_client: Pair
    admin: Pair
    scheduler: Pair
    scheduler_serving: Pair
    controller_manager: Pair
    controller_manager_serving: Pair

    @classmethod
    def within(cls, directory: Path) -> "Certificates":
        """Name all the files in a directory."""
        names = [field.name.replace("_", "-") for field in dataclasses.fields(cls)]
        return cls(*(Pair(directory / f"{name}.crt", directory / f"{name}.key") for name in names))


class Layout:
    """Where everything lies in a control plane's directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pki = root / "pki"  # certificates and keys
        self.etcd = root / "etcd"  # its data
        self.certificates = root / "certificates"  # the nodes' own, with `--identity csr`
        self.logs = root / "logs"  # one for each component
        self.supervisor_log = self.logs / "supervisor.log"
        # An empty place for the controller-manager to look for plug-ins in.
        self.volume_plugins = root / "volume-plugins"
        self.lock = root / "lock"  # held by the process that runs the control plane
        self.state = root / "controlplane.json"  # what a standing control plane says of itself
        self.ports = root / "ports.json"  # of the last start
        self.tokens = root / "tokens.csv"  # the administrator's, as the API server reads it
        self.audit_policy = root / "audit-policy.yaml"

    def kubeconfig(self, user: str) -> Path:
        """Name the kubeconfig of a component or of the administrator."""
        return self.root / f"{user}.kubeconfig"

    def socket(self, name: str) -> Path:
        """Name a Unix socket of etcd, which asks for no credentials.

        A directory with a long path has its sockets in one of its own with a short path.
        """
        path = self.root / name
        if len(os.fsencode(path)) <= SOCKET_PATH_MAX:
            return path
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]
        return Path(f"/tmp/fleet-{os.geteuid()}-{digest}") / name  # noqa: S108 - see `hold_directory`


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    path.unlink(missing_ok=True)  # an older file may have a wider mode
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


class HeldDirectory:
    """A directory that this process holds until `release`."""

    def __init__(self, layout: Layout, descriptor: int, *, keep: bool) -> None:
        self.layout = layout
        self.keep = keep
        self._descriptor = descriptor

    def release(self, *, with_logs: bool = True) -> None:
        """Let go of the directory, and remove it (but for the logs) unless it is to be kept."""
        if not self.keep:
            _clear(self.layout)
            if with_logs:
                shutil.rmtree(self.layout.logs, ignore_errors=True)
            self.layout.lock.unlink(missing_ok=True)
            if [each.name for each in self.layout.root.iterdir()] == [MARK]:
                (self.layout.root / MARK).unlink()
                self.layout.root.rmdir()
        os.close(self._descriptor)


def hold_directory(directory: Path | None, *, keep: bool | None = None) -> HeldDirectory:
    """Take a directory, or make a temporary one; a given one is kept if not said otherwise.

    One that is not to be kept starts empty, whatever an earlier run left there. Raises UsageError
    if it holds files of others, SetupError if another control plane runs in it or it cannot be
    written.
    """
    keep = directory is not None if keep is None else keep
    try:
        if directory is None:
            sweep_temporary()
            root = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX))
        else:
            root = directory.expanduser().absolute()
        claim_directory(root)
        layout = Layout(root)
        descriptor = _hold(layout)
        layout.state.unlink(missing_ok=True)  # of a holder that was killed: it counts with the lock
        if not keep:
            _clear(layout)
        layout.etcd.mkdir(mode=0o700, exist_ok=True)
        layout.logs.mkdir(exist_ok=True)
        sockets = layout.socket(ETCD_SOCKET).parent
        if sockets != root:
            _make(sockets)
            sockets.chmod(0o700)  # only this user may enter
    except OSError as error:
        raise SetupError(f"{error.filename or directory}: {error.strerror}") from error
    return HeldDirectory(layout, descriptor, keep=keep)


def state_home() -> Path:
    """Name fleet's place among the user's state."""
    base = os.environ.get("XDG_STATE_HOME")
    home = Path(base) if base and Path(base).is_absolute() else Path.home() / ".local" / "state"
    return home / "fleet"


def claim_directory(root: Path) -> None:
    """Make a directory, or take an empty one, for a control plane, and mark it.

    Raises UsageError for one that has other files or another owner, OSError if it cannot be
    written. What is refused keeps its mode.
    """
    _make(root)
    if any(root.iterdir()) and not (root / MARK).exists():
        raise UsageError(
            f"--dir {root} is not empty, and no control plane of fleet is in it; name an empty or "
            "new directory"
        )
    root.chmod(0o700)
    (root / MARK).touch(mode=0o600)


def is_own(root: Path) -> bool:
    """Return whether a directory is this user's, and no link to one of somebody else's choice."""
    try:
        found = root.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _make(root: Path) -> None:
    """Make a directory unless it is there. Raises UsageError if it is another user's, OSError."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_own(root):
        raise UsageError(f"{root} belongs to another user, or is a link; name a new directory")


def is_held(layout: Layout) -> bool:
    """Whether a living process holds the directory."""
    try:
        descriptor = os.open(layout.lock, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two may ask at once
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def sweep_temporary() -> None:
    """Remove the temporary directories of this user's control planes that died by SIGKILL.

    One without etcd's data is left alone: its owner has not locked it yet, or it is the logs of a
    failed start.
    """
    for root in Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*"):
        layout = Layout(root)
        with contextlib.suppress(OSError):
            if root.stat().st_uid != os.getuid() or not layout.etcd.is_dir():
                continue
            if not is_held(layout):
                shutil.rmtree(root, ignore_errors=True)


def _hold(layout: Layout) -> int:
    """Take the lock; Python's descriptors are closed in children. Raises SetupError if it is taken.

    Somebody who asks `is_held` has the lock for a moment, hence the tries.
    """
    for _ in range(LOCK_TRIES):
        descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino == layout.lock.stat().st_ino:
                return descriptor
        except (BlockingIOError, FileNotFoundError):
            time.sleep(LOCK_PAUSE_S)
        os.close(descriptor)  # taken, or removed by its last holder while we waited
    raise SetupError(f"{layout.root}: another control plane is running there")


def _clear(layout: Layout) -> None:
    """Remove what fleet wrote, but for the logs and the lock."""
    for path in (layout.etcd, layout.pki, layout.certificates, layout.volume_plugins):
        shutil.rmtree(path, ignore_errors=True)
    files = (layout.state, layout.ports, layout.tokens, layout.audit_policy)
    sockets = [layout.socket(name) for name in (ETCD_SOCKET, PEER_SOCKET)]
    for path in (*files, *sockets, *layout.root.glob("*.kubeconfig")):
        path.unlink(missing_ok=True)
    if sockets[0].parent != layout.root:
        with contextlib.suppress(OSError):  # it was never made
            sockets[0].parent.rmdir()
