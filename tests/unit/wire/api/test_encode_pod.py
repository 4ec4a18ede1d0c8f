"""The status patch against the bodies that real kubelet code sent."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from fleet.k8s.effects import PodStatusPatch
from fleet.k8s.pods import (
    ContainerStatus,
    PodCondition,
    PodStatus,
    RunningState,
    TerminatedState,
    WaitingState,
)
from fleet.k8s.times import parse_rfc3339
from fleet.wire.api.requests import pod_status_patch

UID = "c84cf446-785b-43ca-8c39-7c23f2472da7"
START_S = parse_rfc3339("2026-11-21T02:07:37Z")
END_S = parse_rfc3339("2026-11-21T02:07:52Z")
TYPES = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
ID = f"fakeRuntime://plain_default_{UID}_0_c_0"
MOUNTS = (
    b'[{"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount",'
    b'"name":"kube-api-access-00000","readOnly":true,"recursiveReadOnly":"Disabled"}]'
)

TRACED = Path(__file__).with_name("patches_of_a_pod.jsonl").read_text().splitlines()
"""The five bodies of a pod `plain`, from hollow-kubelet-1.36.3.jsonl, in order.

A hollow kubelet knows neither `started` nor `user`, and calls pending containers ready.
"""


def conditions(
    sandbox: str = "False", ready: str = "True", reason: str = "", at_s: int = START_S, gen: int = 1
) -> tuple[PodCondition, ...]:
    moved = {"PodReadyToStartContainers", "Ready", "ContainersReady"}
    status = {"PodReadyToStartContainers": sandbox, "Ready": ready, "ContainersReady": ready}
    told = {"Initialized", "Ready", "ContainersReady"}
    return tuple(
        PodCondition(
            name,
            status.get(name, "True"),
            reason if name in told else "",
            "",
            at_s if name in moved else START_S,
            gen,
        )
        for name in TYPES
    )


WAITING = ContainerStatus(
    "c",
    WaitingState("ContainerCreating"),
    None,
    ready=True,
    started=False,
    restart_count=0,
    image="nginx:1",
    image_id="",
    container_id="",
    volume_mounts_json=MOUNTS,
)
RUNNING = WAITING._replace(
    state=RunningState(START_S), image_id="nginx:1", container_id=ID, resources_json=b"{}"
)
ENDED = RUNNING._replace(state=TerminatedState(0, "", "", START_S, END_S, ID))
CREATED = PodStatus(phase="Pending", qos_class="BestEffort")
PENDING = CREATED._replace(
    conditions=conditions(),
    containers=(WAITING,),
    host_ips="192.0.2.2",
    observed_generation=1,
    resources_json=b"{}",
    start_time_s=START_S,
)
SANDBOX = PENDING._replace(conditions=conditions("True"))
UP = SANDBOX._replace(phase="Running", containers=(RUNNING,), pod_ips="192.168.192.168")
DELETED = UP._replace(conditions=conditions("True", gen=2), observed_generation=2)
DONE = DELETED._replace(
    phase="Succeeded",
    containers=(ENDED,),
    conditions=conditions("False", "False", "PodCompleted", END_S, 2),
)


def body(old: PodStatus, new: PodStatus, suffix: str = "b5d55") -> dict[str, Any]:
    payload = PodStatusPatch("default", "plain", UID, old, new, suffix)
    parsed: dict[str, Any] = orjson.loads(pod_status_patch(payload))
    return parsed


def without_started(patch: dict[str, Any]) -> dict[str, Any]:
    for status in patch["status"].get("containerStatuses", ()):
        del status["started"]
    return patch


@pytest.mark.parametrize(
    ("old", "new", "traced"),
    [
        (CREATED, PENDING, TRACED[0]),
        (PENDING, SANDBOX, TRACED[1]),
        (SANDBOX, UP, TRACED[2]),
        (UP, DELETED, TRACED[3]),
        (DELETED, DONE, TRACED[4]),
    ],
)
def test_the_bodies_are_those_of_a_real_kubelet(
    old: PodStatus, new: PodStatus, traced: str
) -> None:
    assert without_started(body(old, new)) == json.loads(traced)


def test_nothing_changed_is_an_empty_patch() -> None:
    assert body(UP, UP._replace(conditions=tuple(UP.conditions))) == {
        "metadata": {"uid": UID},
        "status": {},
    }


def test_a_condition_that_was_there_stays_in_the_order_only() -> None:
    scheduled = PodCondition("PodScheduled", "True", "", "", START_S - 1, 1)
    status = body(CREATED._replace(conditions=(scheduled,)), PENDING)["status"]
    assert [each["type"] for each in status["$setElementOrder/conditions"]] == list(TYPES)
    assert status["conditions"][-1] == {
        "type": "PodScheduled",
        "lastTransitionTime": "2026-11-21T02:07:37Z",
    }


def test_what_became_empty_is_null() -> None:
    told = UP.conditions[2]._replace(reason="ContainersNotReady", message='not "ready"')
    old = UP._replace(conditions=(told,), reason="Evicted", message="m", pod_ips="1.2.3.4")
    new = UP._replace(conditions=(UP.conditions[2],), pod_ips="")
    status = body(old, new)["status"]
    assert status["conditions"] == [{"message": None, "reason": None, "type": "Ready"}]
    assert (status["reason"], status["message"]) == (None, None)
    assert (status["podIP"], status["podIPs"]) == (None, None)


def test_a_condition_that_went_is_deleted_by_its_key() -> None:
    gone = PodCondition("PodResizePending", "True")
    status = body(UP._replace(conditions=(*UP.conditions, gone)), UP)["status"]
    assert status["conditions"] == [{"$patch": "delete", "type": "PodResizePending"}]


def test_of_resources_only_what_differs_is_told_and_what_went_is_null() -> None:
    limits = b'"limits":{"cpu":"1","example.com/gpu":"1"}'
    old = UP._replace(resources_json=b'{%b,"requests":{"cpu":"1","memory":"1Gi"}}' % limits)
    new = UP._replace(resources_json=b'{"requests":{"cpu":"2","memory":"1Gi"}}')
    told = body(old, new)["status"]
    assert told == {"resources": {"limits": None, "requests": {"cpu": "2"}}}
    told = body(old, old._replace(resources_json=b'{"limits":{"cpu":"1"}}'))["status"]
    assert told == {"resources": {"limits": {"example.com/gpu": None}, "requests": None}}


def test_another_address_replaces_the_old_one() -> None:
    status = body(UP, UP._replace(pod_ips="10.0.0.9"))["status"]
    assert status == {
        "$setElementOrder/podIPs": [{"ip": "10.0.0.9"}],
        "podIP": "10.0.0.9",
        "podIPs": [{"ip": "10.0.0.9"}, {"$patch": "delete", "ip": "192.168.192.168"}],
    }


def test_addresses_of_two_families_are_merged_by_ip() -> None:
    status = body(UP._replace(pod_ips=""), UP._replace(pod_ips="10.0.0.9,fd00::9"))["status"]
    assert status == {"podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.9"}, {"ip": "fd00::9"}]}
    one, both = UP._replace(host_ips="192.0.2.2"), UP._replace(host_ips="192.0.2.2,2001:db8::2")
    listed = [{"ip": "192.0.2.2"}, {"ip": "2001:db8::2"}]
    assert body(one, both)["status"] == {
        "$setElementOrder/hostIPs": listed,
        "hostIPs": [{"ip": "2001:db8::2"}],
    }
    gone = [{"$patch": "delete", "ip": "2001:db8::2"}]
    assert body(both, one)["status"] == {
        "$setElementOrder/hostIPs": listed[:1],
        "hostIPs": gone,
    }
    turned = body(both, UP._replace(host_ips="2001:db8::2,192.0.2.2"))["status"]
    assert turned == {"hostIP": "2001:db8::2", "$setElementOrder/hostIPs": listed[::-1]}


def test_a_container_has_all_that_the_api_shows() -> None:
    last = TerminatedState(137, "OOMKilled", 'a "quoted" end', START_S, END_S, ID)
    full = RUNNING._replace(
        last_state=last,
        restart_count=3,
        started=True,
        user_json=b'{"linux":{"gid":0,"supplementalGroups":[0],"uid":0}}',
        allocated_json=b'{"cpu":"1"}',
        resources_json=b'{"requests":{"cpu":"1"}}',
    )
    (shown,) = body(UP, UP._replace(containers=(full,)), "")["status"]["containerStatuses"]
    assert shown == {
        "allocatedResources": {"cpu": "1"},
        "containerID": ID,
        "image": "nginx:1",
        "imageID": "nginx:1",
        "lastState": {
            "terminated": {
                "containerID": ID,
                "exitCode": 137,
                "finishedAt": "2026-11-21T02:07:52Z",
                "message": 'a "quoted" end',
                "reason": "OOMKilled",
                "startedAt": "2026-11-21T02:07:37Z",
            }
        },
        "name": "c",
        "ready": True,
        "resources": {"requests": {"cpu": "1"}},
        "restartCount": 3,
        "started": True,
        "state": {"running": {"startedAt": "2026-11-21T02:07:37Z"}},
        "user": {"linux": {"gid": 0, "supplementalGroups": [0], "uid": 0}},
        "volumeMounts": orjson.loads(MOUNTS),
    }


def test_nobody_says_whether_an_ephemeral_container_has_started() -> None:
    shown = body(UP, UP._replace(ephemeral_containers=(RUNNING,)), "")["status"]
    [found] = shown["ephemeralContainerStatuses"]
    assert "started" not in found
    assert found["ready"] is RUNNING.ready


def test_waiting_and_unknown_ends_are_rendered() -> None:
    waiting = WAITING._replace(state=WaitingState("CrashLoopBackOff", "back-off 10s"))
    lost = RUNNING._replace(state=TerminatedState(137, "ContainerStatusUnknown", "m", 0, 0, ""))
    new = UP._replace(containers=(waiting, lost), init_containers=(waiting,))
    status = body(UP, new)["status"]
    assert status["containerStatuses"][0]["state"] == {
        "waiting": {"message": "back-off 10s", "reason": "CrashLoopBackOff"}
    }
    assert status["containerStatuses"][1]["state"]["terminated"] == {
        "exitCode": 137,
        "finishedAt": None,
        "message": "m",
        "reason": "ContainerStatusUnknown",
        "startedAt": None,
    }
    assert len(status["initContainerStatuses"]) == 1


def test_lists_that_became_empty_are_null() -> None:
    old = UP._replace(ephemeral_containers=(RUNNING,), allocated_json=b'{"cpu":"1"}')
    status = body(old, UP)["status"]
    assert status == {"ephemeralContainerStatuses": None, "allocatedResources": None}
