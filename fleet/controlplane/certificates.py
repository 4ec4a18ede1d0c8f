"""The files of the control plane's certificates: one identity for each component.

The names decide what the API server grants: `system:kube-scheduler` and
`system:kube-controller-manager` get their RBAC roles and their share of priority-and-fairness. An
administrator's certificate in their place would be exempt from it and falsify every measurement.
Source: cmd/kubeadm/app/phases/certs/certlist.go.
Differs: the API server's kubelet client is in no administrators' group; it gets the role
system:kubelet-api-admin (see bootstrap.py).
"""

import dataclasses
import os
from pathlib import Path

ADMIN_USER = "kubernetes-admin"
ADMIN_GROUP = "system:masters"
KUBELET_CLIENT_USER = "kube-apiserver-kubelet-client"
FRONT_PROXY_USER = "front-proxy-client"


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, as PEM files."""

    certificate: Path
    key: Path


@dataclasses.dataclass(frozen=True, slots=True)
class Certificates:
    """All the files that the components are started with."""

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


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    path.unlink(missing_ok=True)  # an older file may have a wider mode
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
