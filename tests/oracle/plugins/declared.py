"""The plug-ins of a real kubelet that do what a profile says of those of fleet's nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

from oracle.plugins.csi_plugin import CsiPlugin
from oracle.plugins.device_plugin import DevicePlugin
from oracle.plugins.dra_plugin import DraPlugin
from oracle.plugins.server import Plugin

Json = dict[str, Any]


def made(declared: Mapping[str, Sequence[Json]], node: str) -> list[Plugin]:
    """Return the plug-ins of a node."""
    found: list[Plugin] = [
        DevicePlugin(each["resource"], each["ids"]) for each in declared.get("devices", ())
    ]
    for each in declared.get("dynamicResources", ()):
        devices = {f"device-{number}": "" for number in range(each["count"])}
        for change in each.get("health", ()):
            devices |= {f"device-{at}": change["message"] for at in change["devices"]}
        found.append(DraPlugin(each["driver"], node, devices, error=each.get("prepareError", "")))
    for each in declared.get("csiDrivers", ()):
        expands = bool(each.get("nodeExpansion"))
        found.append(CsiPlugin(each["name"], node, expands=expands))
    return found
