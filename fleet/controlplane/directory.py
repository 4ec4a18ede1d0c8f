"""A control plane's directory: what lies where, who holds it, and what becomes of it.

Its owner holds a file lock, which goes with the process however that ends. So a directory whose
lock is free belongs to nobody, and the temporary one of a run that got SIGKILL is swept by the next
start. Only what fleet wrote is ever removed: a user may have named a directory with other files.
"""

import contextlib
import dataclasses
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from fleet.errors import SetupError

TEMPORARY_PREFIX = "fleet-controlplane-"
LOCK_TRIES = 5  # somebody who asks `is_held` has the lock for a moment
LOCK_PAUSE_S = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Where everything lies in a control plane's directory."""

    root: Path

    @property
    def pki(self) -> Path:
        """Certificates and keys."""
        return self.root / "pki"

    @property
    def etcd(self) -> Path:
        """The data of etcd."""
        return self.root / "etcd"

    @property
    def certificates(self) -> Path:
        """The nodes' own, with `--identity csr`."""
        return self.root / "certificates"

    @property
    def logs(self) -> Path:
        """One log for each component."""
        return self.root / "logs"

    @property
    def supervisor_log(self) -> Path:
        """What the supervisor of a standing control plane has to say."""
        return self.logs / "supervisor.log"

    @property
    def volume_plugins(self) -> Path:
        """An empty place for the controller-manager to look for plug-ins in."""
        return self.root / "volume-plugins"

    @property
    def lock(self) -> Path:
        """Locked by the process that runs the control plane."""
        return self.root / "lock"

    @property
    def state(self) -> Path:
        """What a standing control plane tells about itself."""
        return self.root / "controlplane.json"

    @property
    def ports(self) -> Path:
        """The ports of the last start."""
        return self.root / "ports.json"

    @property
    def tokens(self) -> Path:
        """The static token of the administrator, as the API server reads it."""
        return self.root / "tokens.csv"

    @property
    def audit_policy(self) -> Path:
        """What the audit log has."""
        return self.root / "audit-policy.yaml"

    def kubeconfig(self, user: str) -> Path:
        """Name the kubeconfig of a component or of the administrator."""
        return self.root / f"{user}.kubeconfig"


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
            with contextlib.suppress(OSError):  # not empty
                self.layout.root.rmdir()
        os.close(self._descriptor)


def hold_directory(directory: Path | None, *, keep: bool | None = None) -> HeldDirectory:
    """Take a directory, or make a temporary one; a given one is kept if not said otherwise.

    One that is not to be kept starts empty, whatever an earlier run left there. Raises SetupError
    if another control plane runs in it or it cannot be written.
    """
    keep = directory is not None if keep is None else keep
    try:
        if directory is None:
            sweep_temporary()
            root = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX))
        else:
            root = directory.expanduser().absolute()
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        layout = Layout(root)
        descriptor = _hold(layout)
        if not keep:
            _clear(layout)
        layout.etcd.mkdir(mode=0o700, exist_ok=True)
        layout.logs.mkdir(exist_ok=True)
    except OSError as error:
        raise SetupError(f"{error.filename or directory}: {error.strerror}") from error
    return HeldDirectory(layout, descriptor, keep=keep)


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
    for path in (*files, *layout.root.glob("*.kubeconfig")):
        path.unlink(missing_ok=True)
