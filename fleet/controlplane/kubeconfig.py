"""Kubeconfigs that fleet writes: one for each identity, and `--kubeconfig-out`.

Each is complete in itself so that it can be copied away. A file that the user names is written only
where nothing is, or over what fleet has written there before, as its first line says. What a
run needs for itself is a temporary file.
"""

import base64
import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from fleet.controlplane.directory import Pair
from fleet.errors import UsageError

CONTEXT = "fleet"  # the name of cluster and context in every kubeconfig that fleet writes
MARK = b"# Written by fleet, which overwrites it; a credential: keep it to yourself.\n"
"""The first line of a `--kubeconfig-out`; kubectl drops it when it changes the file."""


def render_kubeconfig(url: str, ca_file: Path, user: str, credentials: Pair | str) -> bytes:
    """Build a kubeconfig that authenticates with a client certificate, or with a bearer token."""
    shown = {"token": credentials}
    if isinstance(credentials, Pair):
        shown = {
            "client-certificate-data": _base64(credentials.certificate),
            "client-key-data": _base64(credentials.key),
        }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": CONTEXT,
                "cluster": {"server": url, "certificate-authority-data": _base64(ca_file)},
            }
        ],
        "users": [{"name": user, "user": shown}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": user}}],
        "current-context": CONTEXT,
    }
    return yaml.safe_dump(document, sort_keys=False).encode()


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def check_kubeconfig_out(path: Path, inputs: Sequence[Path] = ()) -> None:
    """Raise UsageError unless the file can be written and nothing but fleet's is lost by it.

    `inputs` are kubeconfigs that the run itself reads: those are never overwritten.
    """
    flag = f"--kubeconfig-out {path}"
    try:
        if any(each.exists() and path.exists() and each.samefile(path) for each in inputs):
            raise UsageError(f"{flag}: not overwritten, this run reads its credentials there")
        if path.exists() and not _is_ours(path):
            raise UsageError(f"{flag}: not overwritten, fleet did not write this file")
        with tempfile.NamedTemporaryFile(dir=path.parent):
            pass  # there is no surer way to know whether one can
    except OSError as error:
        raise _unwritable(path, error) from error


def write_kubeconfig_out(path: Path, content: bytes, inputs: Sequence[Path] = ()) -> None:
    """Write the kubeconfig where the user asked for it, whole or not at all, for its owner only.

    Raises UsageError as `check_kubeconfig_out` does.
    """
    check_kubeconfig_out(path, inputs)
    try:
        with private_file(MARK + content, path.parent) as written:
            written.replace(path)  # not written over: an older file may have a wider mode
    except OSError as error:
        raise _unwritable(path, error) from error


@contextlib.contextmanager
def private_file(content: bytes, directory: Path | None = None) -> Iterator[Path]:
    """Yield a file that only its owner may read, from its first byte on, and remove it."""
    descriptor, name = tempfile.mkstemp(prefix="fleet-", suffix=".kubeconfig", dir=directory)
    path = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        yield path
    finally:
        path.unlink(missing_ok=True)


def _is_ours(path: Path) -> bool:
    """Whether fleet wrote a file; an empty one is nobody's."""
    if not path.is_file():
        return False  # a directory, a pipe: nothing to read from
    with path.open("rb") as file:
        return file.read(len(MARK)) in {MARK, b""}


def _unwritable(path: Path, error: OSError) -> UsageError:
    reason = error.strerror if path.parent.is_dir() else f"there is no folder {path.parent}"
    return UsageError(f"--kubeconfig-out {path}: {reason}")
