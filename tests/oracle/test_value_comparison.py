"""The comparison itself, on a recording: what it must find, and what it leaves to chance."""

import dataclasses
import re
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
from support.listed_differences import Listed, judge, read_listed, too_often

from oracle.built_traces import BEGIN_S, Log
from oracle.exchange import LIMITS_OF_V1, Exchange, Side, Trace, tells_no_address
from oracle.judge import Recording, load
from oracle.left_out import (
    LEASE_IN_AN_OUTAGE,
    LEFT_OUT,
    PATCH_WITHOUT_LIMIT,
    REFUSAL,
    SNAPSHOT,
    Ledger,
)
from oracle.mutations import MUTATIONS, Mutation, last_at, later, news, with_exchanges
from oracle.normalisation import TABLE, Json, Leaf, Normaliser
from oracle.oracle_limits import LIMITS, PAGE
from oracle.request_streams import tells_back_off, told_in_patch, without_refusals
from oracle.scene import SIDES
from oracle.totals import counted
from oracle.value_comparison import Comparison

RECORDED = Path(__file__).with_name("recorded.json.gz")


@cache
def recorded() -> Recording:
    return load(RECORDED)


@cache
def traces() -> tuple[Trace, Trace]:
    return recorded().traces()


def lines(real: Trace, fleet: Trace) -> set[str]:
    return set(recorded().compare_traces(real, fleet).lines)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_found(name: str) -> None:
    real, fleet = traces()
    mutate: Mutation = MUTATIONS[name]
    mutated = mutate(fleet)
    assert mutated is not fleet
    assert news(name, lines(real, fleet), lines(real, mutated))


def test_a_node_does_not_differ_from_itself() -> None:
    for trace in traces():
        assert lines(trace, trace) == set()


def by(trace: Trace, seconds: float) -> Trace:
    """Let everything come later."""
    moved = [dataclasses.replace(each, at_s=each.at_s + seconds) for each in trace.exchanges]
    return trace._replace(exchanges=moved)


def test_all_that_comes_later_by_less_than_the_limit_is_the_same() -> None:
    real, _ = traces()
    [limit_s] = LIMITS["offset_s"]
    assert not [line for line in lines(real, by(real, limit_s - 0.1)) if "time:" in line]
    assert [line for line in lines(real, by(real, limit_s + 0.1)) if "time:" in line]


def test_reads_of_a_claim_have_a_limit() -> None:
    real, _ = traces()
    read = next(each for each in real.exchanges if (each.verb, each.resource) == ("get", "pods"))
    claim = dataclasses.replace(read, resource="persistentvolumeclaims", name="data")
    [limit] = LIMITS["reads_of_a_claim"]

    def reading(times: int) -> Trace:
        return real._replace(exchanges=[*real.exchanges, *[claim] * times])

    once, most = reading(1), reading(1 + int(limit))
    assert lines(once, most) == set()
    assert lines(once, reading(2 + int(limit)))
    assert lines(real, once)


def test_deletions_of_a_mirror_that_is_gone_have_a_limit() -> None:
    real, fleet = traces()
    pod = next(each for each in real.exchanges if each.resource == "pods" and each.verb == "get")
    [limit] = LIMITS["deletions_of_a_gone_mirror"]

    def deleting(times: int, code: int, name: str = "web-NODE") -> Trace:
        gone = dataclasses.replace(pod, verb="delete", code=code, name=name)
        return real._replace(exchanges=[*real.exchanges, *[gone] * times])

    for code in (404, 409):
        once, most = deleting(1, code), deleting(1 + int(limit), code)
        assert lines(once, most) == lines(most, once) == set()
        assert lines(once, deleting(2 + int(limit), code))
        assert lines(deleting(0, code), deleting(1, code, "web"))
    assert lines(deleting(1, 200), fleet)


def test_the_deletion_of_a_pod_that_had_ended_before_has_a_limit() -> None:
    """That of a pod which ends because it is deleted has none."""
    real, _ = traces()
    patch = next(each for each in real.exchanges if each.resource == "pods/status")
    [look_s], [offset_s] = LIMITS["deletion_of_an_ended_pod_s"], LIMITS["offset_s"]

    def deleted(after_s: float, phase: str, generation: int) -> Trace:
        state: dict[str, Leaf] = {"status.phase": phase, "status.observedGeneration": generation}
        last = dataclasses.replace(patch, name="held", body=state, state=state)
        read = dataclasses.replace(last, verb="get", resource="pods", body={}, state={})
        gone = dataclasses.replace(read, verb="delete", at_s=last.at_s + after_s)
        return real._replace(exchanges=[*real.exchanges, read, last, gone])

    def is_found(late_s: float, phase: str = "Failed", generation: int = 1) -> bool:
        found = lines(deleted(1, phase, generation), deleted(1 + late_s, phase, generation))
        return any("time:" in line for line in found)

    assert not is_found(look_s + offset_s - 0.1)
    assert is_found(look_s + offset_s + 0.1)
    assert is_found(offset_s + 0.1, "Running")
    assert is_found(offset_s + 0.1, generation=2)


def test_the_status_of_a_mirror_that_was_made_anew_has_a_limit() -> None:
    """Of one that was made for a new pod it has none, nor has that of a pod."""
    real, _ = traces()
    patch = next(each for each in real.exchanges if each.resource == "pods/status")
    [tick_s], [offset_s] = LIMITS["mirror_status_s"], LIMITS["offset_s"]

    def told(after_s: float, phase: str = "Running", name: str = "web-NODE") -> Trace:
        made = dataclasses.replace(
            patch, verb="create", resource="pods", name=name, body={}, state={}
        )
        read = dataclasses.replace(made, verb="get", at_s=made.at_s + after_s)
        state = {"status.phase": phase}
        write = dataclasses.replace(
            patch, name=name, body=state, state=state, at_s=made.at_s + after_s
        )
        return real._replace(exchanges=[*real.exchanges, made, read, write])

    def is_found(late_s: float, phase: str = "Running", name: str = "web-NODE") -> bool:
        found = lines(told(0, phase, name), told(late_s, phase, name))
        return any("time:" in line for line in found)

    assert not is_found(tick_s + offset_s - 0.1)
    assert is_found(tick_s + offset_s + 0.1)
    assert is_found(offset_s + 0.1, "Pending")
    assert is_found(offset_s + 0.1, name="web")


def test_a_wrong_value_is_found_in_a_status_that_another_follows_soon() -> None:
    """It is not left out with its like as one that is told with the next."""
    real, _ = traces()
    [merged_s] = LIMITS["merged_s"]
    patch = next(each for each in real.exchanges if each.resource == "pods/status")
    phase = "status.phase"

    def told(value: str) -> Trace:
        added = [
            dataclasses.replace(
                patch, name="other", body={}, state={phase: each}, at_s=patch.at_s + late_s
            )
            for each, late_s in (("Pending", -1.0), (value, 0.0), ("Failed", merged_s / 2))
        ]
        reads = [dataclasses.replace(each, verb="get", resource="pods", state={}) for each in added]
        both = [each for pair in zip(reads, added, strict=True) for each in pair]
        return real._replace(exchanges=[*real.exchanges, *both])

    assert not lines(told("Running"), told("Running"))
    assert lines(told("Running"), told("Unknown"))


def test_a_value_that_one_status_alone_has_is_found_though_another_follows_soon() -> None:
    """What a relist tells at once or in two steps, other statuses have as well."""
    real, _ = traces()
    [merged_s] = LIMITS["merged_s"]
    patch = next(each for each in real.exchanges if each.resource == "pods/status")
    count, ready = (f"status.containerStatuses[name=c].{key}" for key in ("restartCount", "ready"))

    def told(*states: dict[str, Leaf], code: int = 200) -> Trace:
        added = [
            dataclasses.replace(
                patch,
                name="other",
                body={},
                state={"status.phase": phase, **state},
                at_s=patch.at_s + at * merged_s / 2,
                code=code if at == 1 else 200,
            )
            for at, (phase, state) in enumerate(
                zip(("Pending", "Running", "Failed"), states, strict=True)
            )
        ]
        reads = [
            dataclasses.replace(each, verb="get", resource="pods", state={}, code=200)
            for each in added
        ]
        both = [each for pair in zip(reads, added, strict=True) for each in pair]
        return real._replace(exchanges=[*real.exchanges, *both])

    often: list[dict[str, Leaf]] = [{count: 0}, {count: 3, ready: True}, {count: 1}]
    never: list[dict[str, Leaf]] = [{count: 0}, {count: 0, ready: True}, {count: 1}]
    assert lines(told(*never), told(*often))
    assert lines(told(*never), told(*never, code=500))
    assert not lines(told(*never), told(*never))


def test_replays_have_a_limit() -> None:
    [of_scene], [of_all] = LIMITS["replays_of_a_scene"], LIMITS["replays"]
    assert not too_often({"a": int(of_scene)}, LIMITS)
    assert too_often({"a": int(of_scene) + 1}, LIMITS)
    assert too_often(dict.fromkeys(map(str, range(int(of_all) + 1)), 1), LIMITS)


def test_every_row_of_the_list_is_read() -> None:
    listed = read_listed(PAGE)
    assert len(listed) + len(LIMITS) + len(LEFT_OUT) == PAGE.read_text().count("\n| `")
    for each in listed:
        re.compile(each.match)
        assert each.reason
        assert re.search(r"[\w/-]+\.go\b|/impersonation$", each.source), each


def test_every_rule_of_normalisation_is_needed() -> None:
    """A rule that changes nothing in a recording would hide what nobody has seen."""
    assert used_rules() == {rule.what for rule in TABLE} - {*NOT_RECORDED}
    for rule in TABLE:
        if rule.what in NOT_RECORDED:
            normaliser = Normaliser({})
            text = NOT_RECORDED[rule.what]
            normaliser.text(text, "spec.token" if rule.where else "message")
            assert rule.what in normaliser.used


NOT_RECORDED = {
    "token of a client": "ey.a.b",
    "hash of a static pod": f"mirror pod of {'5e' * 16}",
    "port of a connection": "read tcp 10.0.0.1:43210->10.0.0.2:80: connection reset by peer",
    "sandbox": f'failed to setup network for sandbox "{"5e" * 32}"',
}
"""What the scenes of the recording have not, and others have."""


def used_rules() -> set[str]:
    """Return the rules that changed something of what one of the nodes sent."""
    normaliser = Normaliser({})
    with mock.patch.object(Side, "normaliser", return_value=normaliser):
        recorded().traces()
    return normaliser.used


def test_names_of_both_nodes_are_one_word() -> None:
    plain = Normaliser({"real-0": "NODE", "scene-real": "SCENE"})
    assert plain.text("pod of scene-real on real-0:80") == "pod of SCENE on NODE:80"
    assert plain.text("12", "metadata.resourceVersion") == "N"
    assert plain.text("0", "metadata.resourceVersion") == "0"
    assert set(SIDES) == {"real", "fleet"}


def test_what_a_starting_api_server_refuses_is_left_out_then_and_only_then() -> None:
    real, _ = traces()
    [backoff_s] = LIMITS["outage_backoff_s"]
    refused = {int(code) for code in LIMITS["refused_in_outage"]}
    each = next(each for each in real.exchanges if each.verb == "watch")
    no = dataclasses.replace(each, code=min(refused))
    other = dataclasses.replace(each, code=404)
    lease = next(
        each for each in real.exchanges if (each.verb, each.resource) == ("update", "leases")
    )
    got = dataclasses.replace(lease, verb="get")
    outage = [(each.at_s - backoff_s - 1, each.at_s - backoff_s + 0.1)]
    ledger = Ledger("real")
    assert without_refusals([other, no, each], outage, ledger) == [other, going_on(each)]
    assert without_refusals([got], [(got.at_s, got.at_s)], ledger) == []
    assert ledger.totals == {REFUSAL: 1, SNAPSHOT: 1, LEASE_IN_AN_OUTAGE: 1}
    over = [(each.at_s - backoff_s - 1, each.at_s - backoff_s - 0.1)]
    assert without_refusals([no, each], over, ledger) == [no, each]


def test_what_a_starting_api_server_refuses_is_left_out_as_often_as_its_row_says() -> None:
    real, _ = traces()
    read = next(each for each in real.exchanges if each.token.startswith("get pods"))
    no = dataclasses.replace(read, code=int(LIMITS["refused_in_outage"][0]))
    most = LEFT_OUT[REFUSAL].most
    outage = [(no.at_s, no.at_s)]
    assert without_refusals([no] * (most + 2), outage, Ledger("real")) == [no, no]


def going_on(watch: Exchange) -> Exchange:
    """Return a watch that begins without a snapshot."""
    query = tuple(
        (key, value)
        for key, value in watch.query
        if key not in ("resourceVersionMatch", "sendInitialEvents")
    )
    return dataclasses.replace(watch, query=query)


def test_renewals_are_apart_as_they_are_unless_something_lay_between() -> None:
    real, _ = traces()
    renewals = [each for each in real.exchanges if each.token.startswith("update leases")]
    at_s = renewals[1].at_s
    trace = real._replace(
        exchanges=[
            each if each.at_s < at_s else dataclasses.replace(each, at_s=each.at_s + 7)
            for each in real.exchanges
        ]
    )
    found = [line for line in lines(trace, trace) if "renewed its Lease" in line]
    assert found
    for parted in (
        trace._replace(starts_s=(*trace.starts_s, at_s + 6)),
        trace._replace(outages_s=[(at_s, at_s + 6)]),
    ):
        assert not [line for line in lines(parted, parted) if "renewed its Lease" in line]


def test_a_few_renewals_may_be_late_since_a_node_stood_still() -> None:
    real, _ = traces()
    [most], [late_s] = LIMITS["stalled_renewals"], LIMITS["renewal_stalled_s"]
    each = next(each for each in real.exchanges if each.token.startswith("update leases"))

    def renewing(*gaps_s: float) -> set[str]:
        at_s, added = each.at_s, [each]
        for gap_s in gaps_s:
            at_s += gap_s
            added.append(dataclasses.replace(each, at_s=at_s))
        others = [other for other in real.exchanges if other.stream != each.stream]
        trace = real._replace(exchanges=[*others, *added])
        return {line for line in lines(trace, trace) if "renewed its Lease" in line}

    late = [late_s - 0.1] * int(most)
    assert not renewing(10.2, *late, 10.2)
    assert renewing(10.2, *late, late_s - 0.1)
    assert renewing(10.2, late_s + 0.1)
    assert renewing(9.5)


def test_events_that_only_one_tells_by_chance_have_a_limit() -> None:
    real, _ = traces()
    at, each = next(
        (at, each)
        for at, each in enumerate(real.exchanges)
        if (each.verb, each.resource) == ("create", "events") and each.scene != "node"
    )
    one = dataclasses.replace(each, body={**each.body, "reason": "InvalidDiskCapacity"})
    [most] = LIMITS["disks_known_at_a_start"]

    def more(count: int) -> Trace:
        added = [dataclasses.replace(one, at_s=one.at_s + place / 100) for place in range(count)]
        return real._replace(exchanges=[*real.exchanges[:at], *added, *real.exchanges[at:]])

    assert not lines(real, more(int(most)))
    assert not lines(more(int(most)), real)
    assert lines(real, more(int(most) + 1))


def test_a_patch_of_times_alone_is_as_empty_as_one_without_any() -> None:
    times = {"status.conditions[type=Ready].lastHeartbeatTime": "2026-11-23T01:09:14Z"}
    named = {"status.conditions[type=Ready].type": "Ready"}
    assert told_in_patch({"": "{}"}) == told_in_patch({**times, **named}) == {}


def test_what_waits_for_a_retry_comes_later_with_its_times() -> None:
    """A time in a body may differ by as much as its request did, and no more."""
    real, _ = traces()
    at, each = next(
        (at, each)
        for at, each in enumerate(real.exchanges)
        if (each.verb, each.resource) == ("create", "events") and each.scene != "node"
    )
    [limit_s] = LIMITS["offset_s"]

    def moved(by_s: float, told_s: float) -> set[str]:
        body = {
            path: later(told_s)(value) if path.endswith("Timestamp") else value
            for path, value in each.body.items()
        }
        other = dataclasses.replace(each, at_s=each.at_s + by_s, body=body)
        exchanges = [*real.exchanges[:at], other, *real.exchanges[at + 1 :]]
        return {line for line in lines(real, real._replace(exchanges=exchanges)) if "stamp" in line}

    assert not moved(limit_s - 0.1, limit_s + 1)
    assert moved(0, limit_s + 1)
    assert moved(limit_s - 0.1, 2 * limit_s + 1)


@pytest.mark.parametrize("gap_s", [11, 5])
def test_a_time_of_a_retry_may_differ_by_a_second_more_in_all_that_follows(gap_s: float) -> None:
    """It is cut to its second: a retry that comes 2.4 s later may be told as 3 s later."""

    def played(side: str, late_s: float, second: int) -> Trace:
        log = Log(side)
        log.reports("web", {"phase": "Running"})
        log.at_s = BEGIN_S + gap_s + late_s
        restarted = {"phase": "Running", "restarted": f"2027-01-15T08:00:{second}Z"}
        log.reports("web", restarted)
        log.at_s = BEGIN_S + 20
        log.reports("web", {**restarted, "phase": "Failed"})
        return log.trace()

    found = Comparison(played("real", 0, 11), played("fleet", 2.4, 14)).run(["scene"]).lines
    [least_s] = LIMITS["retry_min_s"]
    assert bool(found) == (gap_s < least_s)


def test_the_read_before_a_patch_that_is_left_out_may_be_idle_or_not() -> None:
    """What cgroup v1 calls no limit is told in patches of its own."""
    recording = recorded()
    nothing = {"status": {"resources": {"limits": LIMITS_OF_V1}}}
    event = next(
        each
        for each in recording.events
        if each["verb"] == "patch"
        and each["user"]["username"].endswith(recording.nodes["real"])
        and (each.get("objectRef") or {}).get("subresource") == "status"
        and each["objectRef"]["resource"] == "pods"
    )
    about = {key: value for key, value in event["objectRef"].items() if key != "subresource"}
    [limit] = LIMITS["idle_gets_of_a_pod"]
    read = {**event, "verb": "get", "objectRef": about, "requestObject": None}
    patch = {**event, "auditID": "patch", "requestObject": nothing}
    most = LEFT_OUT[PATCH_WITHOUT_LIMIT].most
    assert most > limit
    got = next(
        recording.noted[each["auditID"]]
        for each in recording.events
        if each["verb"] == "get" and each["user"] == event["user"]
    )

    def reading(*after: Json, times: int = most) -> Trace:
        """Read the pod as often as is too often, each time followed by something or nothing."""
        added: list[Json] = []
        noted = dict(recording.noted)
        for at in range(times):
            noted[f"read {at}"] = got
            added += [{**read, "auditID": f"read {at}"}, *after]
        events = [*recording.events, *added]
        return dataclasses.replace(recording, events=events, noted=noted).traces()[0]

    assert lines(reading(patch), traces()[1]) == lines(*traces())
    assert any("idle GETs" in line for line in lines(reading(), traces()[1]))
    assert lines(reading(patch, times=most + 1), traces()[1]) - lines(*traces())
    deletion = {**read, "auditID": "delete", "verb": "delete"}
    reads = counted(traces()[0].exchanges)["get pods"]
    assert counted(reading(patch, times=1).exchanges)["get pods"] == reads
    assert counted(reading(patch, deletion, times=1).exchanges)["get pods"] == reads + 1


@pytest.mark.parametrize(
    ("query", "limit"), [((), "registration_s"), ((("timeout", "10s"),), "renewal_max_s")]
)
def test_reads_of_the_node_at_a_start_have_a_limit(
    query: tuple[tuple[str, str], ...], limit: str
) -> None:
    """Whether the Node is there when its Lease is to be made is chance: else after 10 s."""
    real, _ = traces()
    [limit_s] = LIMITS[limit]
    read = next(
        each
        for each in real.exchanges
        if (each.verb, each.resource, each.query, each.code) == ("get", "nodes", query, 200)
    )

    def is_found(after_s: float) -> bool:
        again = dataclasses.replace(read, at_s=real.starts_s[0] + after_s)
        return bool(lines(real, real._replace(exchanges=[*real.exchanges, again])))

    assert not is_found(limit_s - 0.1)
    assert is_found(limit_s + 0.1)


def test_a_kubelet_may_build_its_node_anew_before_its_informer_has_it() -> None:
    real, _ = traces()
    [limit] = LIMITS["looks_before_the_informer"]

    def repeated(reason: str, times: int) -> set[str]:
        each = next(
            each
            for each in reversed(real.exchanges)
            if each.scene == "node" and each.body.get("reason") == reason
        )
        count = each.body.get("count")
        assert isinstance(count, int)
        last = dataclasses.replace(each, body={**each.body, "count": count + times})
        more = real._replace(exchanges=[*real.exchanges, *[each] * (times - 1), last])
        return {line for line in lines(more, real) if f"Node NODE: Normal {reason}" in line}

    for reason in ("NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"):
        assert not repeated(reason, int(limit))
        assert repeated(reason, int(limit) + 1)
    assert repeated("Starting", 1)


def test_what_syncs_of_pods_tell_of_a_node_may_be_repeated_as_what_they_tell_of_pods() -> None:
    """A relist more or less is a sync more or less."""
    real, _ = traces()
    [limit] = LIMITS["repeats_of_an_event"]
    each = next(
        each
        for each in reversed(real.exchanges)
        if each.scene == "node" and each.body.get("reason") == "Starting"
    )

    def repeated(reason: str, times: int) -> set[str]:
        one = dataclasses.replace(each, body={**each.body, "reason": reason})
        told = [
            real._replace(exchanges=[*real.exchanges, *[one] * count]) for count in (1, 1 + times)
        ]
        return {
            line
            for line in lines(told[1], told[0])
            if f"requests: Node NODE: Normal {reason}" in line
        }

    assert not repeated("MissingClusterDNS", int(limit))
    assert repeated("MissingClusterDNS", int(limit) + 1)
    assert repeated("Starting", 1)


def test_a_status_of_a_moment_is_none_to_be_changed() -> None:
    """Whether the other node told it by itself is chance, so that nothing may be found in it."""
    _, fleet = traces()
    path = "state.running.startedAt"
    at = last_at(fleet, path)
    each = fleet.exchanges[at]
    [merged_s] = LIMITS["merged_s"]
    again = dataclasses.replace(each, at_s=fleet.exchanges[-1].at_s + 1)
    alone = with_exchanges(fleet, [*fleet.exchanges, again])
    assert alone.exchanges[last_at(alone, path)] is again
    after = dataclasses.replace(
        again, at_s=again.at_s + merged_s / 2, state={"status.phase": "Failed"}
    )
    both = with_exchanges(fleet, [*alone.exchanges, after])
    assert both.exchanges[last_at(both, path)] is each


def test_rows_that_chance_needs_may_be_needed_by_no_run() -> None:
    rows = [
        Listed("a: .+", "by chance, 2 at most: it rains", "x.go"),
        Listed("b: .+", "it always does", "y.go"),
    ]
    assert judge([], rows) == ["unused: b: .+"]
    assert judge(["a: 1", "b: 2"], rows) == []
    assert judge(["a: 1", "a: 1", "b: 2"], rows) == []
    assert judge({"a: 1": 2, "a: 2": 1, "b: 2": 1}, rows) == ["more than by chance: a: .+: 3"]
    with pytest.raises(AssertionError, match="by chance"):
        judge([], [Listed("a: .+", "by chance: it rains", "x.go")])


[JITTER] = LIMITS["retry_jitter"]


def test_which_sync_tells_that_a_container_waits_is_chance_within_a_limit() -> None:
    real, _ = traces()
    [limit_s] = LIMITS["retry_max_s"]
    at, each = next(
        (at, each) for at, each in enumerate(real.exchanges) if tells_back_off(each) and each.state
    )

    def moved(by_s: float) -> list[str]:
        other = dataclasses.replace(each, at_s=each.at_s - by_s)
        exchanges = [*real.exchanges[:at], other, *real.exchanges[at + 1 :]]
        found = lines(real, real._replace(exchanges=exchanges))
        return [line for line in found if f"time: {each.token}" in line]

    assert not moved(limit_s - 0.1)
    assert moved(limit_s + 0.1)
    # What follows is as late as the restart is, not as what told of it.
    rest = [dataclasses.replace(other, at_s=other.at_s + 5) for other in real.exchanges[at + 1 :]]
    early = dataclasses.replace(each, at_s=each.at_s - 5)
    trace = real._replace(exchanges=[*real.exchanges[:at], early, *rest])
    assert not [line for line in lines(real, trace) if f"time: {each.token}" in line]
    # Also where it was told as if nothing were late, and the restart came by chance later.
    told = [other for other in real.exchanges if other.token == each.token and other.state]
    place = told.index(each)
    late_s = JITTER * 0.8 * (told[place + 1].at_s - told[place - 1].at_s)
    rest = [dataclasses.replace(o, at_s=o.at_s + late_s) for o in real.exchanges[at + 1 :]]
    trace = real._replace(exchanges=[*real.exchanges[: at + 1], *rest])
    assert not [line for line in lines(real, trace) if f"time: {each.token}" in line]


@pytest.mark.parametrize(
    ("told", "after", "is_left_out"),
    [
        ({"podIP": None, "podIPs": None}, {"phase": "Succeeded", "observedGeneration": 2}, True),
        ({"podIP": None, "podIPs": None}, {"phase": "Succeeded", "observedGeneration": 1}, False),
        ({"podIP": None, "podIPs": None}, {"phase": "Running", "observedGeneration": 2}, False),
        ({"podIP": None}, {"phase": "Failed", "observedGeneration": 2}, False),
        (
            {"podIP": None, "podIPs": None, "phase": "Failed"},
            {"phase": "Failed", "observedGeneration": 2},
            False,
        ),
        (
            {"podIP": None, "podIPs": None, "resources": {"limits": None}},
            {"phase": "Failed", "observedGeneration": 2},
            True,
        ),
    ],
)
def test_addresses_that_are_taken_back_of_a_deleted_pod_are_left_out(
    told: Json, after: Json, *, is_left_out: bool
) -> None:
    event = {"requestObject": {"status": told}, "responseObject": {"status": after}}
    assert tells_no_address(event) is is_left_out
