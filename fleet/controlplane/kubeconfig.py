"""Kubeconfigs: one for each identity, complete in itself so that it can be copied away."""

import base64
from pathlib import Path
from typing import cast

import yaml

from fleet.controlplane.certificates import Pair, write_private
from fleet.errors import UsageError

CONTEXT = "fleet"
"""The name of cluster and context in every kubeconfig that fleet writes."""


def certificate_kubeconfig(url: str, ca_file: Path, user: str, pair: Pair) -> bytes:
    """Build a kubeconfig that authenticates with a client certificate."""
    credentials = {
        "client-certificate-data": _base64(pair.certificate),
        "client-key-data": _base64(pair.key),
    }
    return _kubeconfig(url, ca_file, user, credentials)


def token_kubeconfig(url: str, ca_file: Path, user: str, token: str) -> bytes:
    """Build a kubeconfig that authenticates with a bearer token."""
    return _kubeconfig(url, ca_file, user, {"token": token})


def write_kubeconfig_out(path: Path, content: bytes) -> None:
    """Write the kubeconfig where the user asked for it.

    Raises UsageError rather than overwrite a file that names other clusters, such as
    `~/.kube/config`.
    """
    check_kubeconfig_out(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, content)


def check_kubeconfig_out(path: Path) -> None:
    """Raise UsageError if the file is there and not fleet's."""
    if not path.exists() or (path.is_file() and path.stat().st_size == 0):
        return
    try:
        document = yaml.safe_load(path.read_text())
        clusters = cast("list[dict[str, object]]", document["clusters"])
        is_ours = all(cluster["name"] == CONTEXT for cluster in clusters)
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        is_ours = False
    if not is_ours:
        raise UsageError(f"--kubeconfig-out {path}: not overwritten, fleet did not write this file")


def _kubeconfig(url: str, ca_file: Path, user: str, credentials: dict[str, str]) -> bytes:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": CONTEXT,
                "cluster": {"server": url, "certificate-authority-data": _base64(ca_file)},
            }
        ],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": user}}],
        "current-context": CONTEXT,
    }
    return yaml.safe_dump(document, sort_keys=False).encode()


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
