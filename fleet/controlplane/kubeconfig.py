"""Kubeconfigs: one for each identity, complete in itself so that it can be copied away."""

import base64
from pathlib import Path

import yaml

from fleet.controlplane.certificates import Pair

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
