"""The comparison itself, without a control plane."""

import dataclasses

from audit_trace import Json, Request, parse, trace
from comparison import Listed, compare, fold, judge

WATCH = "/api/v1/pods?timeout=7m3s&timeoutSeconds=423&watch=true"


def event(at: str, verb: str, uri: str, resource: str, name: str = "", **more: object) -> Json:
    return {
        "auditID": f"{at}{uri}{verb}",
        "requestReceivedTimestamp": f"2026-11-21T08:00:{at}Z",
        "verb": verb,
        "requestURI": uri,
        "user": {"username": "system:node:n1"},
        "userAgent": "kubelet/v1.36.3 (linux/amd64) kubernetes/abc123",
        "objectRef": {"resource": resource, "name": name, "namespace": "ns"},
        "responseStatus": {"code": 200},
        **more,
    }


def pod_requests(*verbs: str) -> list[Request]:
    made = [event(f"{i:02d}.000000", verb, "/p", "pods", "web") for i, verb in enumerate(verbs)]
    return trace(made, "n1", "ns", ())


def test_random_timeouts_are_compared_by_their_range() -> None:
    request = parse(event("01.000000", "watch", WATCH, "pods"), {})
    expected = {"timeout": "timeoutSeconds", "timeoutSeconds": "300..600", "watch": "true"}
    assert dict(request.query) == expected
    other = parse(event("01.000000", "watch", WATCH.replace("7m3s", "7m4s"), "pods"), {})
    assert dict(other.query)["timeout"] == "7m4s"


def test_an_item_of_a_list_goes_by_its_merge_key() -> None:
    body = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}, "empty": {}}
    request = parse(event("01.000000", "patch", "/p", "pods", requestObject=body), {})
    ready = "status.conditions[type=Ready]"
    assert request.body == {f"{ready}.type", f"{ready}.status", "empty"}


def test_reads_that_changed_nothing_are_chance() -> None:
    folded = [
        each.verb for each in fold(pod_requests("get", "get", "patch", "get", "delete", "get"))
    ]
    assert folded == ["get", "patch", "get", "delete"]


def test_others_and_what_fleet_asks_for_itself_are_left_out() -> None:
    others = event("01.000000", "get", "/p", "pods", user={"username": "system:node:n2"})
    own = event("02.000000", "get", "/p", "pods", userAgent="fleet/0.1 (preflight)")
    assert trace([others, own], "n1", "ns", ()) == []


def test_a_lost_request_a_lost_key_and_a_late_request_are_found() -> None:
    hollow = pod_requests("get", "patch", "get", "delete")
    steps = [hollow[0].at_s]
    assert compare(hollow, hollow, steps) == []
    assert compare(hollow, [*hollow[:1], *hollow[2:]], steps)
    late = dataclasses.replace(hollow[-1], at_s=hollow[-1].at_s + 4)
    [line] = compare(hollow, [*hollow[:-1], late], steps)
    assert line.startswith("time: fleet later by 4.0 s")
    wider = dataclasses.replace(hollow[1], body=frozenset({"status.phase"}))
    [line] = compare(hollow, [hollow[0], wider, *hollow[2:]], steps)
    assert line == "body only fleet: patch pods web 200: status.phase"


def test_what_is_not_listed_fails_and_so_does_an_entry_that_nothing_needs() -> None:
    listed = [Listed("only fleet: .*", "r", "s"), Listed("only hollow: .*", "r", "s")]
    assert judge(["only fleet: x", "time: y"], listed) == [
        "not listed: time: y",
        "unused: only hollow: .*",
    ]
