"""What a user can ask of a local control plane, and what it says about itself."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from fleet.k8s.well_known import NODES_GROUP

ETCD = "etcd"
APISERVER = "kube-apiserver"
SCHEDULER = "kube-scheduler"
CONTROLLER_MANAGER = "kube-controller-manager"
KUBECTL = "kubectl"

COMPONENTS = (ETCD, APISERVER, SCHEDULER, CONTROLLER_MANAGER)  # in the order in which they start

SIGNING = "system:certificates.k8s.io:certificatesigningrequests"

# Binding, role, kind of subject, subject.
NODE_BINDINGS = (
    ("fleet:kubelet-bootstrap", "system:node-bootstrapper", "Group", "system:bootstrappers"),
    ("fleet:node-autoapprove-bootstrap", f"{SIGNING}:nodeclient", "Group", "system:bootstrappers"),
    ("fleet:node-autoapprove-rotation", f"{SIGNING}:selfnodeclient", "Group", NODES_GROUP),
)
"""What lets bootstrap tokens become nodes, and nodes renew their certificates."""

Progress = Callable[[str], None]
"""Takes one line about what is going on, to be shown in place of the last one."""


def no_progress(_line: str) -> None:
    """Show nothing."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneOptions:
    """How a control plane is started."""

    directory: Path | None = None
    """Where certificates, logs and etcd's data live; a new temporary directory if not given."""
    keep: bool | None = None
    """Whether `directory` survives the stop; by default exactly if it was given."""
    binaries: Path | None = None
    """`--controlplane-bin`: a directory with the programs, or the one binary of all."""
    release: str = ""
    """`--kubernetes-version`, as `v1.36.3`; "" takes what is there, else the default."""
    kubeconfig_out: Path | None = None
    """Where to write one more copy of the administrator's kubeconfig."""
    audit_log: Path | None = None
    """Where the API server logs one line of metadata a request; no log if not given."""
    fsync: bool = False  # whether etcd waits for the disk
    extra_flags: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    """Flags by component, as `name=value`, `--name=value` or `name`; they replace fleet's own."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneInfo:
    """Where a running control plane is and how to speak to it."""

    directory: Path
    url: str
    kubeconfig: Path  # the administrator's, with a client certificate; group system:masters
    token_kubeconfig: Path  # the same administrator with a bearer token
    ca_file: Path
    admin_certificate: Path
    admin_key: Path
    server_version: str
    kubectl: tuple[str, ...] = ()
    """The command that starts kubectl; empty if the binaries have none."""
    etcd_fsync: bool = False
    pids: Mapping[str, int] = dataclasses.field(default_factory=dict)
    ports: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The secure port of each component; etcd's has its metrics and health only, as plain HTTP."""
    logs: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    owner_pid: int = 0  # the process with which this control plane dies


@dataclasses.dataclass(frozen=True, slots=True)
class ComponentDeath:
    """A component that ended although nobody stopped it."""

    component: str
    returncode: int
    log: Path
    last_lines: tuple[str, ...]

    def __str__(self) -> str:
        """Say it in one line, and the log's end below."""
        how = (
            f"was killed by signal {-self.returncode}"
            if self.returncode < 0
            else f"exited with code {self.returncode}"
        )
        return "\n  ".join((f"{self.component} {how}; its log is {self.log}:", *self.last_lines))


T = TypeVar("T")


def to_json(value: ControlPlaneOptions | ControlPlaneInfo) -> str:
    """Write options or info as JSON, for another process."""
    return msgspec.json.encode(value, enc_hook=str).decode()


def from_json(kind: type[T], text: str) -> T:
    """Read what `to_json` wrote. Raises ValueError."""
    return msgspec.json.decode(text, type=kind, dec_hook=lambda path, value: path(value))
