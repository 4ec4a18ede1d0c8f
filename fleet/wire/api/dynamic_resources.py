"""ResourceClaims and ResourceSlices of resource.k8s.io/v1: what is read, what is sent.

Source: dynamic-resource-allocation/resourceslice/resourceslicecontroller.go, syncPool.
"""

from typing import Any

import orjson

from fleet.k8s.admission import ClaimDevice, ResourceClaimView, ResourceSliceView
from fleet.k8s.effects import PodTarget, ResourceSlices
from fleet.profile.device_behavior import DraDriver

SLICES = b"/apis/resource.k8s.io/v1/resourceslices"
CLAIM = b"/apis/resource.k8s.io/v1/namespaces/%b/resourceclaims/%b"


def claim_path(target: PodTarget) -> bytes:
    """Return the path of a ResourceClaim."""
    return CLAIM % (target.namespace.encode(), target.name.encode())


def slices_selector(node: bytes, driver: bytes = b"") -> bytes:
    """Return the encoded field selector of a node's slices, or of those of one driver."""
    selector = b"fieldSelector=spec.nodeName%3D" + node
    return selector + b"%2Cspec.driver%3D" + driver if driver else selector


def resource_slice_json(node: str, slices: ResourceSlices, drivers: tuple[DraDriver, ...]) -> bytes:
    """Render the one slice that holds all devices of a driver on a node."""
    driver = next(each for each in drivers if each.driver == slices.driver)
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node,
        "uid": slices.node_uid,
        "controller": True,
    }
    return orjson.dumps(
        {
            "kind": "ResourceSlice",
            "apiVersion": "resource.k8s.io/v1",
            "metadata": {
                "generateName": f"00000-{driver.driver}-{node}-",
                "ownerReferences": [owner],
            },
            "spec": {
                "driver": driver.driver,
                "pool": {"name": node, "generation": slices.generation, "resourceSliceCount": 1},
                "nodeName": node,
                "devices": [_device(node, driver, index) for index in range(driver.count)],
            },
        }
    )


def _device(node: str, driver: DraDriver, index: int) -> dict[str, object]:
    device: dict[str, object] = {"name": f"{driver.name_prefix}{index}"}
    if driver.attributes:
        device["attributes"] = {
            each.name: {
                each.kind: each.value.replace("{{name}}", node).replace("{{index}}", str(index))
                if isinstance(each.value, str)
                else each.value
            }
            for each in driver.typed_attributes
        }
    if driver.capacity:
        device["capacity"] = {
            name: {"value": str(amount)} for name, amount in sorted(driver.capacity.items())
        }
    return device


def decode_resource_claim(body: bytes | dict[str, Any]) -> ResourceClaimView:
    """Return what the DRA manager reads of a ResourceClaim."""
    obj = orjson.loads(body) if isinstance(body, bytes) else body
    meta, status = obj["metadata"], obj.get("status") or {}
    owners = (each for each in meta.get("ownerReferences") or () if each.get("controller"))
    allocation = status.get("allocation")
    results = ((allocation or {}).get("devices") or {}).get("results") or ()
    devices = tuple(
        ClaimDevice(each["request"], each["driver"], each["pool"], each["device"])
        for each in results
    )
    return ResourceClaimView(
        name=meta["name"],
        uid=meta["uid"],
        owner_uid=next((each["uid"] for each in owners), ""),
        reserved_for=tuple(each["uid"] for each in status.get("reservedFor") or ()),
        devices=None if allocation is None else devices,
    )


def decode_resource_slice(body: bytes | dict[str, Any]) -> ResourceSliceView:
    """Return what a driver reads of its ResourceSlices."""
    obj = orjson.loads(body) if isinstance(body, bytes) else body
    meta, pool = obj["metadata"], obj["spec"]["pool"]
    return ResourceSliceView(meta["name"], meta["resourceVersion"], pool["generation"])
