"""Whether the Nodes of a run may register with what the controllers would give them.

They may on a local control plane that nobody else uses: ranges of pods that two give out would
meet. A run that begins while another lives, or where any Node is, leaves it to the controllers.
"""

import ipaddress
from collections.abc import Mapping

import psutil

from fleet.cluster.api_client import Cluster
from fleet.cluster.ownership import NODES
from fleet.cluster.runs import find_holders
from fleet.controlplane.options import CONTROLLER_MANAGER, ControlPlaneInfo
from fleet.profile.addresses import ClusterRange, ControllerPreset
from fleet.profile.settings import Fidelity, Settings

NODE_MASKS = {4: 24, 6: 64}
"""Source: cmd/kube-controller-manager/app/core.go, defaultNodeMaskCIDRIPv4 and its sister."""


async def find_preset(
    cluster: Cluster, local: ControlPlaneInfo | None, settings: Settings, run_id: str
) -> ControllerPreset | None:
    """Return what the controllers would do, None where it is theirs. The run holds its Lease."""
    if local is None or settings.fidelity is not Fidelity.LIGHT or settings.shard is not None:
        return None
    preset = _preset_of(local.pids.get(CONTROLLER_MANAGER, 0))
    if preset is None:
        return None
    api = cluster.api("preflight")
    listed = await api.get(NODES, "nodes", limit=1)
    held = await find_holders(api)
    is_alone = all(each.run == run_id for each in held if each.is_alive)
    return preset if is_alone and not listed.get("items") else None


def _preset_of(pid: int) -> ControllerPreset | None:
    """Read it from the controller manager's flags; None if they say no ranges that it takes."""
    try:
        command = psutil.Process(pid).cmdline()
        flags = dict(each.lstrip("-").partition("=")[::2] for each in command)
        ranges = cluster_ranges(flags)
    except (psutil.Error, KeyError, ValueError):
        return None
    if flags.get("allocate-node-cidrs") != "true":
        return None
    if any(not each.whole.prefixlen <= each.mask < each.whole.max_prefixlen for each in ranges):
        return None
    return ControllerPreset(ranges)


def cluster_ranges(flags: Mapping[str, str]) -> tuple[ClusterRange, ...]:
    """Return how a controller manager gives ranges out. Raises KeyError or ValueError.

    Source: cmd/kube-controller-manager/app/core.go, setNodeCIDRMaskSizes.
    """
    wholes = [ipaddress.ip_network(each) for each in flags["cluster-cidr"].split(",")]
    found = []
    for whole in wholes:
        own = flags.get(f"node-cidr-mask-size-ipv{whole.version}")
        mask = flags.get("node-cidr-mask-size") or own or NODE_MASKS[whole.version]
        found.append(ClusterRange(whole, int(mask)))
    return tuple(found)
