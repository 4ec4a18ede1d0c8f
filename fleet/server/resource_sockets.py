"""Where the PodResources services of the nodes are: a folder each, and a socket in it.

Source: pkg/kubelet/kubelet.go, getPodResourcesDir; pkg/kubelet/util/util_unix.go, CreateListener.
"""

import contextlib
import socket
import stat
from collections.abc import Iterable
from pathlib import Path

from fleet.errors import SetupError

SOCKET = "kubelet.sock"
PATH_BYTES_MAX = 107
"""Source: unix(7), sun_path."""
FOLDER_MODE = 0o750


def socket_path(root: Path, node_name: str) -> Path:
    """Return where a node listens."""
    return root / node_name / SOCKET


def prepare_sockets(root: Path, node_names: Iterable[str]) -> None:
    """Make the folders, and remove the sockets of a run that was killed. Raises SetupError."""
    for path in (socket_path(root.absolute(), name) for name in node_names):
        if len(str(path).encode()) > PATH_BYTES_MAX:
            raise SetupError(
                f"--pod-resources: {path} is too long: a socket's path has {PATH_BYTES_MAX} bytes"
            )
        try:
            path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            if path.exists():
                if not stat.S_ISSOCK(path.stat().st_mode):
                    raise SetupError(f"--pod-resources: {path} is there, and is no socket")
                if _is_served(path):
                    raise SetupError(f"--pod-resources: somebody listens at {path}")
                path.unlink()
        except OSError as error:
            raise SetupError(f"--pod-resources: {path}: {error.strerror}") from error


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:  # whoever made it is gone
            return False
    return True


def remove_sockets(root: Path, node_names: Iterable[str]) -> None:
    """Leave nothing of ours; a folder in which somebody has put something stays."""
    for name in node_names:
        path = socket_path(root, name)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            path.parent.rmdir()
