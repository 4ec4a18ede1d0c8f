"""What pods and containers are given: limits of the pod, what statuses say, what differs."""

import orjson

from fleet.k8s.pods import Pod
from fleet.kubelet.containers.allocation_manager import (
    asks_more,
    asks_other,
    changed,
    has_other_resources,
    limited_json,
    lowered_memory_limit,
    updated_json,
)
from fleet.wire.api.decode_pod import decode_pod

Json = dict[str, object]
MI = 1 << 20


def amounts(cpu: str, memory: str) -> Json:
    return {"cpu": cpu, "memory": memory}


def resources(cpu: str, memory: str) -> Json:
    return {"limits": amounts(cpu, memory), "requests": amounts(cpu, memory)}


def pod(own: Json | None, container: Json | None = None, **fields: Json) -> Pod:
    spec: Json = {
        "containers": [{"name": "c", "image": "nginx:1", "resources": container or {}}],
        **({"resources": own} if own else {}),
        "overhead": fields.get("overhead", {}),
    }
    meta = {"namespace": "default", "name": "web", "uid": "u"}
    return decode_pod({"metadata": meta, "spec": spec, "status": fields.get("status", {})})


def test_a_container_has_the_limits_of_its_pod_where_it_has_none() -> None:
    made = pod(resources("2", "1Gi"), {"limits": {"memory": "64Mi"}})
    [spec] = made.spec.containers
    assert orjson.loads(limited_json(spec, made.spec))["limits"] == amounts("2", "64Mi")
    # One that nobody gives a limit keeps the very bytes that it has.
    made = pod({"requests": {"cpu": "1"}}, {"requests": {"cpu": "1"}})
    [spec] = made.spec.containers
    assert limited_json(spec, made.spec) is spec.resources_json


def test_what_differs_by_resource() -> None:
    had, asked = (orjson.dumps(resources("1", each)) for each in ("64Mi", "32Mi"))
    assert changed(had, had) == ()
    assert changed(had, asked) == ("memory",)
    assert changed(b"", had) == ("cpu", "memory")
    assert changed(b'{"requests":{"cpu":"0"}}', b"{}") == ()
    assert lowered_memory_limit(had, asked) == 32 * MI
    assert lowered_memory_limit(asked, had) == 0
    assert lowered_memory_limit(b"{}", asked) == 32 * MI
    assert lowered_memory_limit(had, b"{}") == 0


def test_the_pod_itself_counts_only_where_pods_are_resized() -> None:
    old, new = pod(resources("1", "64Mi")), pod(resources("2", "64Mi"))
    assert has_other_resources(old, new, whole=True)
    assert not has_other_resources(old, new, whole=False)
    assert asks_more(old, new)
    assert not asks_more(new, old)
    assert not asks_other(old, new, "cpu")  # of containers


def test_an_update_states_that_no_cpu_is_requested() -> None:
    made = pod(resources("2", "1Gi"), {"requests": {"memory": "16Mi"}})
    [spec] = made.spec.containers
    json = updated_json(spec, made.spec)
    assert json is not None
    assert orjson.loads(json)["requests"] == {"cpu": "0", "memory": "16Mi"}
    made = pod(resources("2", "1Gi"), {"requests": {"cpu": "1"}})
    [spec] = made.spec.containers
    assert updated_json(spec, made.spec) is None
