"""Everyday workloads, in the shapes of public charts, and what a real cluster makes of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DIRECTORY = Path(__file__).with_name("everyday_pods")


def objects_of(name: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file, such as `probes`."""
    yield from yaml.safe_load_all((DIRECTORY / f"{name}.yaml").read_text())


def pod_of(obj: dict[str, Any], uid: str) -> dict[str, Any]:
    """Return a pod, or the one that a controller would make of an object."""
    meta = {"name": obj["metadata"]["name"], "namespace": "default", "uid": uid}
    if obj["kind"] == "Pod":
        return {"metadata": meta, "spec": obj["spec"]}
    owner = {"kind": obj["kind"], "name": meta["name"], "uid": "owner", "controller": True}
    return {
        "metadata": {**meta, "ownerReferences": [owner]},
        "spec": obj["spec"]["template"]["spec"],
    }
