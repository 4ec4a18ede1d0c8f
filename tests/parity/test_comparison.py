"""The comparison itself, without a control plane."""

import asyncio
import dataclasses
import re
from collections.abc import Callable

import pytest
from hpack import Encoder
from support.header_tap import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PREFACE,
    PRIORITY,
    HeaderReader,
    Headers,
    Holder,
)
from support.listed_differences import Listed, judge, read_listed, too_often, unlisted

from parity.audit_trace import Json, Request, parse, trace
from parity.comparison import compare, fold, uneven
from parity.differences import LIMITS, PAGE

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


def report(at: float, **ready: str) -> Json:
    body = {"status": {"conditions": [{"type": "Ready", **ready}]}}
    made = event(f"{at:09.6f}", "patch", "/n", "nodes", "n1", requestObject=body)
    made["objectRef"]["subresource"] = "status"
    return made


def test_why_a_new_node_is_not_ready_yet_is_told_at_once_or_bit_by_bit() -> None:
    reason, ready = report(0, message="no CSINode"), report(0.2, status="True", message="ready")
    later = report(LIMITS["registration_s"][0] + 1, message="other")
    ends = [ready, later]
    bit_by_bit, at_once = (trace(some, "n1", "ns") for some in ([reason, *ends], ends))
    assert compare(bit_by_bit, at_once, [at_once[0].at_s]) == []
    assert len(at_once) == len(ends), "a later report stands for itself"
    never = trace([reason, later], "n1", "ns")
    assert compare(bit_by_bit, never, [never[0].at_s]), "the condition itself must be told"


def test_statuses_are_paired_by_what_they_tell() -> None:
    """One more of them must not make all that follow look different."""

    def patch(at: int, **status: object) -> Request:
        body = {"status": status}
        made = event(f"{at:02d}.000000", "patch", "/p", "pods", "web", requestObject=body)
        made["objectRef"]["subresource"] = "status"
        [found] = trace([made], "n1", "ns")
        return found

    def states(name: str) -> list[Json]:
        return [{"name": "c", "state": {name: {"reason": "x"}}}]

    waits = patch(0, containerStatuses=states("waiting"))
    runs = patch(1, phase="Running", podIP="1.2.3.4", containerStatuses=states("running"))
    ready = patch(2, containerStatuses=states("running"))
    ends = patch(3, phase="Succeeded", containerStatuses=states("terminated"))
    hollow, fleet = [waits, runs, ends], [waits, runs, ready, ends]
    assert compare(hollow, fleet, [waits.at_s]) == ["only fleet: patch pods/status web 200"]
    assert compare(fleet, hollow, [waits.at_s]) == ["only hollow: patch pods/status web 200"]


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


def test_an_alternative_that_nothing_needs_fails() -> None:
    listed = [Listed(r"only (fleet|hollow): (get|patch) x( y)?", "r", "s")]
    lines = ["only fleet: get x", "only fleet: patch x y"]
    assert judge(lines, listed) == ["unused: only (hollow): (get|patch) x( y)?"]
    assert judge([*lines, "only hollow: get x"], listed) == []


def test_every_row_of_the_list_is_read() -> None:
    listed = read_listed(PAGE)
    assert len(listed) + len(LIMITS) == PAGE.read_text().count("\n| `")
    for each in listed:
        re.compile(each.match)
        assert each.reason
        assert re.search(r"[\w/-]+\.go\b|[\w/-]+/impersonation$", each.source), each


READY = "patch pods/status plain 200: status.conditions[type=Ready]"


@pytest.mark.parametrize(
    "line",
    [
        f"body only hollow: {READY}.status",
        f"body only fleet: {READY}.lastProbeTime",
        f"body only fleet: {READY.replace('Ready', 'DisruptionTarget')}.status",
        f"body only fleet: {READY.replace('Ready', 'Initialized')}.status",
        f"body only fleet: {READY.replace('plain', 'other')}.status",
        f"body only fleet: {READY.replace('plain', 'init')}.status",
        "identity: hollow ['itself in system:nodes'], fleet ['impersonated in system:nodes']",
        "costs: probed starts: patch pods/status: hollow 3, fleet 5",
        "costs: plain starts: patch pods/status: hollow 3, fleet 4",
    ],
)
def test_a_row_allows_one_condition_of_one_side_of_one_pod(line: str) -> None:
    assert unlisted([line], read_listed(PAGE)) == [line]


def test_who_asks_is_compared() -> None:
    user = {"username": "system:node:n1", "groups": ["system:nodes", "a"]}
    admin = {"username": "admin", "groups": ["system:masters"]}
    own = trace([event("01.000000", "get", "/p", "pods", user=user)], "n1", "ns")
    made = event("01.000000", "get", "/p", "pods", user=admin, impersonatedUser=user)
    other = trace([made], "n1", "ns")
    assert compare(own, other, [own[0].at_s]) == [
        "identity: hollow ['itself in a system:nodes'], fleet ['impersonated in a system:nodes']"
    ]
    both = [*other, *own]
    assert compare(both, both, [own[0].at_s]) == []


def moved(request: Request, by_s: float) -> Request:
    return dataclasses.replace(request, at_s=request.at_s + by_s)


def renewals(*at_s: float) -> list[Request]:
    [made] = trace([event("00.000000", "update", "/l", "leases", "n1")], "n1", "ns")
    return [moved(made, each) for each in at_s]


def late_by(by_s: float) -> list[str]:
    hollow = pod_requests("get", "patch")
    return compare(hollow, [hollow[0], moved(hollow[1], by_s)], [hollow[0].at_s])


def renewed_after(by_s: float) -> list[str]:
    return compare(renewals(0, 10), renewals(0, by_s), [renewals(0)[0].at_s])


def read_at(by_s: float) -> list[str]:
    made = [event("00.000000", "get", "/p", "pods", "web")]
    early = event(f"{by_s:09.6f}", "get", "/n?timeout=10s", "nodes", "n1")
    hollow, fleet = trace(made, "n1", "ns"), trace([*made, early], "n1", "ns")
    return compare(hollow, fleet, [hollow[0].at_s])


def read_idly(times: float) -> list[str]:
    hollow = pod_requests("get", "get", "delete")
    fleet = pod_requests(*["get"] * (2 + int(times)), "delete")
    return uneven(hollow, fleet, {"all": hollow[0].at_s - 9})


def refused_with(code: float) -> list[str]:
    [before, after] = pod_requests("watch", "watch")
    refused = dataclasses.replace(after, code=int(code))
    return compare([before], [before, refused], [before.at_s], before.at_s + 0.5)


def looked_for_in_outage(times: float) -> list[str]:
    [before] = pod_requests("get")
    made = [event(f"{at + 1:02d}.000000", "get", "/l", "leases", "n1") for at in range(int(times))]
    looks = trace(made, "n1", "ns")
    return compare([before], [before, *looks], [before.at_s], before.at_s + 0.5)


def reconnected_after(by_s: float) -> list[str]:
    hollow = pod_requests("watch", "watch")
    fleet = [hollow[0], moved(hollow[1], by_s)]
    return compare(hollow, fleet, [hollow[0].at_s], hollow[0].at_s + 0.5)


EXAMPLES: dict[str, tuple[Callable[[float], list[str]], float]] = {
    "offset_s": (late_by, 0.1),
    "renewal_min_s": (renewed_after, -0.1),
    "renewal_max_s": (renewed_after, 0.1),
    "registration_s": (read_at, 0.1),
    "gets_of_a_pod": (read_idly, 1),
    "refused_in_outage": (refused_with, 1),
    "lease_gets_in_outage": (looked_for_in_outage, 1),
    "backoff_s": (reconnected_after, 0.1),
    "replays_of_a_scene": (lambda times: too_often({"one": int(times)}, LIMITS), 1),
    "replays": (lambda times: too_often(dict.fromkeys("abcdefgh"[: int(times)], 1), LIMITS), 1),
}
"""What each limit is for: a trace just within it, and the step that leads beyond."""


def test_every_limit_has_an_example() -> None:
    assert EXAMPLES.keys() == LIMITS.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_chance_is_allowed_up_to_its_limit(name: str) -> None:
    found, step = EXAMPLES[name]
    for limit in LIMITS[name]:
        within = limit if step == 1 else limit - step / 2
        assert not found(within)
        assert found(limit + step)


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


def frame(kind: int, stream: int, payload: bytes, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


async def passed_on(hold_s: float, *parts: bytes, until: int) -> bytes:
    """Return what a node gets of some frames as soon as it has so many bytes."""
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.set_result(await reader.readexactly(until))
        writer.close()

    async with await asyncio.start_server(read, "127.0.0.1", 0) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        holder = Holder(writer, hold_s)
        holder.on_asked(1, {":path": f"{WATCH}&fieldSelector=spec.nodeName%3Dn1"})
        holder.on_asked(3, {":path": "/api/v1/pods?limit=500"})
        for part in parts:
            holder.feed(part[:5])
            holder.feed(part[5:])
        found = await got
        writer.close()
    return found


def test_what_a_watch_of_pods_tells_is_held_and_nothing_else_is() -> None:
    first, second, third = frame(HEADERS, 1, b"a"), frame(DATA, 3, b"b"), frame(4, 0, b"")
    held, more = (frame(DATA, 1, text) for text in (b"first", b"second"))
    trailers = frame(HEADERS, 1, b"end", END_STREAM)
    mixed = (first, held, second, more, third)
    at_once, whole = b"".join((first, second, third)), b"".join((first, second, third, held, more))
    assert asyncio.run(passed_on(3600, *mixed, until=len(at_once))) == at_once
    assert asyncio.run(passed_on(0.05, *mixed, until=len(whole))) == whole
    ended = asyncio.run(passed_on(3600, *mixed, trailers, until=len(whole + trailers)))
    assert ended == whole + trailers
    assert asyncio.run(passed_on(0, *mixed, until=len(whole))) == b"".join(mixed)
