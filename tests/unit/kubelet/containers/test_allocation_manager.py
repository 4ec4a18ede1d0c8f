"""What pods and containers are given: limits of the pod, what statuses say, what differs."""

import orjson

from fleet.k8s.pods import Pod
from fleet.kubelet.containers.allocation_manager import (
    WHOLE,
    actuated_by_status,
    allocated_by_status,
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


def told(whole: Json, container: Json, **fields: object) -> Json:
    """Return the status of a pod that runs."""
    each: Json = {"name": "c", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    each |= {"containerID": "containerd://1", "resources": container, "image": "", "imageID": ""}
    each |= {"ready": True, "restartCount": 0, "allocatedResources": container.get("requests", {})}
    return {"phase": "Running", "containerStatuses": [each], "resources": whole, **fields}


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


def test_a_status_says_what_was_allocated_without_the_overhead() -> None:
    overhead: Json = {"cpu": "250m"}
    status = told(
        {"limits": amounts("1250m", "64Mi"), "requests": amounts("1250m", "64Mi")},
        {},
        allocatedResources=amounts("1250m", "64Mi"),
    )
    asked = pod(resources("3", "64Mi"), overhead=overhead, status=status)
    given = allocated_by_status(asked)
    assert given is not None
    assert orjson.loads(given.spec.own_json) == resources("1", "64Mi")
    assert given.spec.admission.requests == (("cpu", 1250), ("memory", 64 * MI))
    assert orjson.loads(asked.spec.own_json) == resources("3", "64Mi")


def test_a_pod_that_has_what_it_asks_for_is_as_it_is() -> None:
    container = resources("1", "64Mi")
    status = told(container, container, allocatedResources=container["requests"])
    assert allocated_by_status(pod(None, container, status=status)) is None
    assert allocated_by_status(pod(None, container)) is None  # nothing of it runs yet


def test_containers_of_an_older_kubelet_are_known_by_themselves() -> None:
    had = resources("1", "64Mi")
    status = told({}, had)
    given = allocated_by_status(pod(None, resources("2", "64Mi"), status=status))
    assert given is not None
    [spec] = given.spec.containers
    assert orjson.loads(spec.resources_json) == had
    assert given.spec.admission.requests == (("cpu", 1000), ("memory", 64 * MI))


def test_a_status_says_what_is_applied() -> None:
    had = resources("1", "64Mi")
    status = told(had, {}, allocatedResources=amounts("2", "64Mi"))
    given = pod(resources("2", "64Mi"), status=status)
    before, has = actuated_by_status(given)
    assert orjson.loads(has[WHOLE]) == had
    assert orjson.loads(has["c"])["limits"] == had["limits"]
    assert orjson.loads(before.spec.running_json) == had
