"""The comparison itself, without a control plane."""

import dataclasses
import re
from pathlib import Path

from audit_trace import Json, Request, parse, trace
from comparison import Listed, compare, fold, judge, read_listed
from header_tap import (
    CONTINUATION,
    END_HEADERS,
    HEADERS,
    PADDED,
    PREFACE,
    PRIORITY,
    HeaderReader,
    Headers,
)
from hpack import Encoder

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


def test_every_row_of_the_list_is_read() -> None:
    page = Path(__file__).with_name("differences.md")
    listed = read_listed(page)
    assert len(listed) == page.read_text().count("\n| `")
    for each in listed:
        re.compile(each.match)
        assert each.reason
        assert re.search(r"[\w/-]+\.go\b", each.source), each


def test_a_condition_that_only_has_new_times_is_chance() -> None:
    def body(**condition: str) -> frozenset[str]:
        conditions = [{"type": "Ready", "lastHeartbeatTime": "t", **condition}]
        order = [{"type": "Ready"}]
        status = {"$setElementOrder/conditions": order, "conditions": conditions}
        made = event("01.000000", "patch", "/p", "nodes", requestObject={"status": status})
        return parse(made, {}).body

    assert not body()
    assert len(body(status="True")) == 3


def test_a_header_that_differs_is_found() -> None:
    [hollow] = pod_requests("patch")
    hollow = dataclasses.replace(hollow, headers=(("accept", "application/json"),))
    fleet = dataclasses.replace(hollow, headers=(("accept", "*/*"),))
    [line] = compare([hollow], [fleet], [hollow.at_s])
    assert line == "header: patch pods web 200: accept: hollow application/json, fleet */*"


def test_what_a_starting_api_server_refuses_is_chance_and_so_is_the_back_off() -> None:
    [before, refused, after] = pod_requests("watch", "watch", "watch")
    refused = dataclasses.replace(refused, code=403)
    late = dataclasses.replace(after, at_s=after.at_s + 20)
    hollow, fleet = [before, after], [before, refused, late]
    assert compare(hollow, fleet, [before.at_s])
    assert not compare(hollow, fleet, [before.at_s], before.at_s + 0.5)


def test_a_renewal_may_fall_into_the_outage_and_nowhere_else() -> None:
    made = [
        event(f"{at}.000000", "update", "/l", "leases", "n1", auditID=at)
        for at in ("00", "10", "26")
    ]
    late = trace(made, "n1", "ns")
    hollow = [late[0], late[1], dataclasses.replace(late[2], at_s=late[1].at_s + 10)]
    assert compare(hollow, late, [late[0].at_s]) == ["time: fleet renewed its Lease after 16.0 s"]
    assert not compare(hollow, late, [late[0].at_s], late[1].at_s + 5)


def test_headers_are_read_along_wherever_the_bytes_are_cut() -> None:
    block = Encoder().encode([(":method", "GET"), ("accept", "application/json")])
    padded = bytes([2, 0, 0, 0, 0, 16]) + block[:3] + bytes(2)  # padding and priority
    frames = b"".join(
        len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload
        for kind, flags, stream, payload in (
            (4, 0, 0, bytes(6)),
            (HEADERS, PADDED | PRIORITY, 1, padded),
            (CONTINUATION, END_HEADERS, 1, block[3:]),
            (0, 1, 1, b"data"),
        )
    )
    for size in (1, 7, 1000):
        found: dict[int, Headers] = {}
        reader = HeaderReader(found.__setitem__, preface=PREFACE)
        sent = PREFACE + frames
        for at in range(0, len(sent), size):
            reader.feed(sent[at : at + size])
        assert found == {1: {":method": "GET", "accept": "application/json"}}
