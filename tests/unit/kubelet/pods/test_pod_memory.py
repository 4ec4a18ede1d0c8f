"""What one running pod costs, and that nothing of it is left."""

import gc
import tracemalloc
from dataclasses import replace

import orjson
import pytest
from world.pod_world import World

from fleet.clock import TimerWheel
from fleet.wire.api.decode_pod import decode_pod

PODS = 1000
BUDGET = 2150
MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def body(index: int) -> bytes:
    """Return a pod of a Deployment, as the scheduler leaves it."""
    token = f"kube-api-access-{index:05d}"
    source = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    root = {"configMap": {"name": "kube-root-ca.crt"}}
    spec = {
        "volumes": [{"name": token, "projected": {"sources": [source, root]}}],
        "containers": [
            {
                "name": "c",
                "image": "nginx:1",
                "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}},
                "volumeMounts": [{"name": token, "readOnly": True, "mountPath": MOUNT}],
            }
        ],
        "nodeName": "fleet-00000",
        "tolerations": [{"key": "fleet.emulator/fake", "operator": "Exists"}],
    }
    meta = {
        "name": f"web-7d4b9c6f5-{index:05d}",
        "namespace": "default",
        "uid": f"04c9b91f-aca5-4ecd-ab8c-{index:012d}",
        "resourceVersion": str(1_000_000 + index),
        "generation": 1,
        "creationTimestamp": "2026-11-21T02:07:37Z",
        "labels": {"app": "web"},
    }
    status = {"phase": "Pending", "qosClass": "Burstable"}
    return orjson.dumps({"metadata": meta, "spec": spec, "status": status})


@pytest.mark.parametrize("light", [True, False])
def test_a_running_pod_fits_its_budget(light: bool) -> None:  # noqa: FBT001
    world = World(light=light, pod_cidr="10.244.0.0/16")
    world.env.model = replace(world.env.model, pods_max=PODS)
    bodies = [body(index) for index in range(PODS)]
    gc.collect()
    tracemalloc.start()
    try:
        for each in bodies:
            world.create(decode_pod(each))
        world.run(60)
        assert world.loop.phases() == {"Running": PODS}
        # What is not the kubelet's: the test's server, its log, the wheel.
        for kept in (world.pods, world.calls, world.log, world.statuses, world.reports):
            kept.clear()
        world._inbox.clear()
        world.wheel = TimerWheel()
        del world.recorder
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] / PODS
    finally:
        tracemalloc.stop()
    assert used <= BUDGET, used
