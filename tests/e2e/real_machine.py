"""A machine of somebody else in the cluster: Ready, large, without a taint. Nothing runs on it."""

import contextlib
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

from e2e.e2e_world import Json, World, eventually

NAME = "machine"
RENEW_S = 4.0
RESOURCES = {"cpu": "512", "memory": "4Ti", "pods": "5000", "nvidia.com/gpu": "64"}


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


def _taints(world: World) -> list[Json]:
    found: list[Json] = world.get("nodes", NAME)["spec"].get("taints") or []
    return found


@contextlib.contextmanager
def real_machine(world: World) -> Iterator[str]:
    """Have a Node that the scheduler likes best; at the end no pod must ever have been put on it.

    Its kubelet is a thread that renews its Lease.
    """
    lease: Json = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": NAME, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": NAME, "leaseDurationSeconds": 40, "renewTime": _now()},
    }
    world.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}}, lease)
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "is posting"}
    times = {key: _now()[:19] + "Z" for key in ("lastHeartbeatTime", "lastTransitionTime")}
    status = {
        "status": {
            "capacity": RESOURCES,
            "allocatable": RESOURCES,
            "conditions": [{**ready, **times}],
        }
    }
    world.kubectl("patch", "node", NAME, "--subresource=status", f"--patch={json.dumps(status)}")
    over = threading.Event()

    def renew() -> None:
        while not over.wait(RENEW_S):
            patch = f"--patch={json.dumps({'spec': {'renewTime': _now()}})}"
            where = ("-n", "kube-node-lease", "patch", "lease", NAME, "--type=merge")
            world.kubectl(*where, patch, check=False)

    kubelet = threading.Thread(target=renew)
    kubelet.start()
    try:
        eventually(lambda: not _taints(world), "its taint is gone")
        yield NAME
        assert not _taints(world)
        told = [each["message"] for each in world.items("events", "-A") if "message" in each]
        assert not [each for each in told if each.endswith(f" to {NAME}")]
    finally:
        over.set()
        kubelet.join()
        world.kubectl("delete", "node", NAME)
        world.kubectl("-n", "kube-node-lease", "delete", "lease", NAME, "--ignore-not-found")
