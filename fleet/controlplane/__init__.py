"""The local control plane: real etcd, API server, scheduler and controller-manager.

`ControlPlane` runs one as children of this process. `up`, `down`, `status` and `attach` are about
one that stands on its own. `provide_binaries` finds or makes the programs that both need.
"""

from fleet.controlplane.binaries import Binaries, find_binaries
from fleet.controlplane.build import provide_binaries
from fleet.controlplane.controlplane import NODE_BINDINGS, ControlPlane
from fleet.controlplane.directory import Layout
from fleet.controlplane.options import (
    APISERVER,
    COMPONENTS,
    CONTROLLER_MANAGER,
    ETCD,
    SCHEDULER,
    ComponentDeath,
    ControlPlaneInfo,
    ControlPlaneOptions,
    Progress,
)
from fleet.controlplane.standing import attach, down, state_home, status, up

__all__ = [
    "APISERVER",
    "COMPONENTS",
    "CONTROLLER_MANAGER",
    "ETCD",
    "NODE_BINDINGS",
    "SCHEDULER",
    "Binaries",
    "ComponentDeath",
    "ControlPlane",
    "ControlPlaneInfo",
    "ControlPlaneOptions",
    "Layout",
    "Progress",
    "attach",
    "down",
    "find_binaries",
    "provide_binaries",
    "state_home",
    "status",
    "up",
]
