"""What of a status a patch has; the recorded judge compares whole bodies with a real kubelet's."""

from typing import Any

import orjson

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
WAITING = ContainerStatus("c", WaitingState("ContainerCreating"), None, ready=True, started=False)
RUNNING = WAITING._replace(state=RunningState(START_S), container_id="containerd://1")
UP = PodStatus(
    phase="Running",
    qos_class="BestEffort",
    conditions=(PodCondition("Ready", "True", "", "", START_S, 1),),
    containers=(RUNNING,),
    host_ips="192.0.2.2",
    pod_ips="192.168.192.168",
    observed_generation=1,
    resources_json=b"{}",
    start_time_s=START_S,
)


def body(old: PodStatus, new: PodStatus, suffix: str = "b5d55") -> dict[str, Any]:
    payload = PodStatusPatch("default", "plain", UID, old, new, suffix)
    parsed: dict[str, Any] = orjson.loads(pod_status_patch(payload))
    return parsed


def test_nothing_changed_is_an_empty_patch() -> None:
    assert body(UP, UP._replace(conditions=tuple(UP.conditions))) == {
        "metadata": {"uid": UID},
        "status": {},
    }


def test_what_became_empty_is_null() -> None:
    told = UP.conditions[0]._replace(reason="ContainersNotReady", message='not "ready"')
    old = UP._replace(conditions=(told,), reason="Evicted", message="m", pod_ips="1.2.3.4")
    new = UP._replace(conditions=(UP.conditions[0],), pod_ips="")
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
