"""What a comparison of values must find: a trace with one thing changed, each by a function.

A trace that has nothing which a mutation could change stays the same object.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from oracle.exchange import NODE_SCOPE, Exchange, Trace
from oracle.identities import owner_of_request
from oracle.left_out import LEFT_OUT, READ_OF_A_GONE_POD, REPORT
from oracle.normalisation import Leaf, is_time
from oracle.oracle_limits import LIMITS
from oracle.orders import is_watch_of_certificates
from oracle.request_streams import BACK_OFF, SILENT, is_renewal
from oracle.totals import BIAS, IDLE_DEVIATIONS, LEAST, READS, counted

Mutation = Callable[[Trace], Trace]
MORE = 500
LATE_S = 3 * LIMITS["offset_s"][0]
"""More than twice what may part two nodes: the other may have been late before."""
[MERGED_MAX_S] = LIMITS["merged_s"]


def with_exchanges(trace: Trace, exchanges: list[Exchange]) -> Trace:
    return trace._replace(exchanges=sorted(exchanges, key=lambda each: each.at_s))


def last_at(trace: Trace, path: str, *, events: bool = False) -> int:
    """Return the place of the last status, or Event, that has a path which ends so.

    A status of a moment is none: the other node may have told it with the next, so that a
    comparison has nothing to compare it with.
    """
    return max(
        at
        for at, each in enumerate(trace.exchanges)
        if any(name.endswith(path) for name in (each.body if events else each.state))
        and (each.resource == "events") is events
        and each.scene != "node"
        and (events or not _is_of_a_moment(each, trace.exchanges[at + 1 :]))
    )


def _is_of_a_moment(each: Exchange, rest: Sequence[Exchange]) -> bool:
    """Return whether another status of the object followed at once."""
    for other in rest:
        if other.at_s - each.at_s >= MERGED_MAX_S:
            return False
        if other.state and (other.scene, other.stream) == (each.scene, each.stream):
            return True
    return False


def changed(
    values: Mapping[str, Leaf], path: str, change: Callable[[Leaf], Leaf]
) -> dict[str, Leaf]:
    return {name: change(value) if name.endswith(path) else value for name, value in values.items()}


def of_status(path: str, change: Callable[[Leaf], Leaf]) -> Mutation:
    """Change a value in the last status that has it."""

    def mutate(trace: Trace) -> Trace:
        at = last_at(trace, path)
        each = trace.exchanges[at]
        other = dataclasses.replace(
            each, state=changed(each.state, path, change), body=changed(each.body, path, change)
        )
        return with_exchanges(trace, [*trace.exchanges[:at], other, *trace.exchanges[at + 1 :]])

    return mutate


def of_event(path: str, change: Callable[[Leaf], Leaf]) -> Mutation:
    """Change a value in all requests about the Event that has it last."""

    def mutate(trace: Trace) -> Trace:
        chosen = trace.exchanges[last_at(trace, path, events=True)]
        about = (chosen.name, chosen.scene, chosen.stream)
        return with_exchanges(
            trace,
            [
                dataclasses.replace(each, body=changed(each.body, path, change))
                if (each.name, each.scene, each.stream) == about and each.resource == "events"
                else each
                for each in trace.exchanges
            ],
        )

    return mutate


def without_key(path: str) -> Mutation:
    """Drop a key from the last status that has it."""

    def mutate(trace: Trace) -> Trace:
        at = last_at(trace, path)
        each = trace.exchanges[at]
        other = dataclasses.replace(
            each,
            state={name: value for name, value in each.state.items() if not name.endswith(path)},
        )
        return with_exchanges(trace, [*trace.exchanges[:at], other, *trace.exchanges[at + 1 :]])

    return mutate


def later(seconds: float) -> Callable[[Leaf], Leaf]:
    def change(value: Leaf) -> Leaf:
        assert isinstance(value, str)
        if not is_time(value):
            return value
        moved = datetime.fromisoformat(value) + timedelta(seconds=seconds)
        return moved.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    return change


def first_of(trace: Trace, verb: str, resource: str, without: Container[str] = ()) -> int:
    """Return the place of the first request of a kind, in scenes that are not left out."""
    return next(
        at
        for at, each in enumerate(trace.exchanges)
        if (each.verb, each.resource) == (verb, resource)
        and each.scene != "node"
        and each.scene not in without
    )


def retrying(trace: Trace) -> set[str]:
    """Return the scenes in which a retry may be late by chance, and what follows it, too.

    None if that may be so in all of them.
    """
    waits = (BACK_OFF, *SILENT)
    scenes = {each.scene for each in trace.exchanges if each.scene != "node"}
    found = {each.scene for each in trace.exchanges if any(v in waits for v in each.state.values())}
    return found if found < scenes else set()


def without(verb: str, resource: str) -> Mutation:
    """Drop the last request of a kind."""

    def mutate(trace: Trace) -> Trace:
        found = [
            at
            for at, each in enumerate(trace.exchanges)
            if (each.verb, each.resource) == (verb, resource) and each.scene != "node"
        ]
        return with_exchanges(
            trace, [each for at, each in enumerate(trace.exchanges) if at != found[-1]]
        )

    return mutate


def twice(verb: str, resource: str) -> Mutation:
    """Send a request again at once."""

    def mutate(trace: Trace) -> Trace:
        each = trace.exchanges[first_of(trace, verb, resource)]
        again = dataclasses.replace(each, at_s=each.at_s + 0.01)
        return with_exchanges(trace, [*trace.exchanges, again])

    return mutate


def late(verb: str, resource: str, by_s: float) -> Mutation:
    """Send a request, and nothing else, later."""

    def mutate(trace: Trace) -> Trace:
        at = first_of(trace, verb, resource, retrying(trace))
        other = dataclasses.replace(trace.exchanges[at], at_s=trace.exchanges[at].at_s + by_s)
        return with_exchanges(trace, [*trace.exchanges[:at], other, *trace.exchanges[at + 1 :]])

    return mutate


def more_events(trace: Trace) -> Trace:
    """Send many Events more, each with a message of its own."""
    each = trace.exchanges[first_of(trace, "create", "events")]
    more = [
        dataclasses.replace(each, body={**each.body, "message": f"told {at} times"})
        for at in range(MORE)
    ]
    return with_exchanges(trace, [*trace.exchanges, *more])


def more_reads(trace: Trace) -> Trace:
    """Read a pod five times more."""
    each = trace.exchanges[first_of(trace, "get", "pods")]
    return with_exchanges(trace, [*trace.exchanges, *[each] * 5])


def with_header(name: str, value: str) -> Mutation:
    def mutate(trace: Trace) -> Trace:
        at = first_of(trace, "patch", "pods/status")
        each = trace.exchanges[at]
        other = dataclasses.replace(each, headers={**each.headers, name: value})
        return with_exchanges(trace, [*trace.exchanges[:at], other, *trace.exchanges[at + 1 :]])

    return mutate


def longer(value: Leaf) -> Leaf:
    return f"{value}."


def replaced(trace: Trace, at: int, other: Exchange) -> Trace:
    return with_exchanges(trace, [*trace.exchanges[:at], other, *trace.exchanges[at + 1 :]])


def of_last(is_one: Callable[[Exchange], bool], change: Callable[[Exchange], Exchange]) -> Mutation:
    """Change the last request of a kind."""

    def mutate(trace: Trace) -> Trace:
        found = [at for at, each in enumerate(trace.exchanges) if is_one(each)]
        return replaced(trace, found[-1], change(trace.exchanges[found[-1]])) if found else trace

    return mutate


def with_values(each: Exchange, values: Mapping[str, Leaf]) -> Exchange:
    """Give a status, and the patch of it, other values where they have some."""
    return dataclasses.replace(
        each,
        body={path: values.get(path, value) for path, value in each.body.items()},
        state={path: values.get(path, value) for path, value in each.state.items()},
    )


def of_body(verb: str, resource: str, path: str, value: str) -> Mutation:
    """Send another value with the last request of a kind that has one."""
    return of_last(
        lambda each: (each.verb, each.resource) == (verb, resource) and path in each.body,
        lambda each: dataclasses.replace(each, body={**each.body, path: value}),
    )


def has_address(each: Exchange) -> bool:
    return "status.podIP" in each.state and "status.podIP" in each.body


def address_of_the_node(each: Exchange) -> Exchange:
    return with_values(each, {"status.podIP": each.state["status.hostIP"]})


def kept_id(trace: Trace) -> Trace:
    """Let the last container that was restarted keep the ID that it had."""
    for at in reversed(range(len(trace.exchanges))):
        each = trace.exchanges[at]
        for path, value in each.state.items():
            place, is_last, _ = path.partition(".lastState.terminated.containerID")
            if is_last and not _is_of_a_moment(each, trace.exchanges[at + 1 :]):
                paths = (f"{place}.containerID", f"{place}.state.terminated.containerID")
                if each.state.get(paths[0]) != value:  # it does not wait for its next start
                    return replaced(trace, at, with_values(each, dict.fromkeys(paths, value)))
    return trace


def swapped_ids(trace: Trace) -> Trace:
    """Let two containers of a pod have each the ID of the other."""
    for at in reversed(range(len(trace.exchanges))):
        each = trace.exchanges[at]
        paths = [path for path in each.state if path.endswith("].containerID")]
        if len(paths) > 1 and not _is_of_a_moment(each, trace.exchanges[at + 1 :]):
            first, second = (each.state[path] for path in paths[:2])
            other = f"{first} of other", f"{second} of other"
            return replaced(trace, at, with_values(each, dict(zip(paths, other, strict=False))))
    return trace


def without_a_read(trace: Trace) -> Trace:
    """Write the last status of a pod without reading the pod."""
    for at in reversed(range(len(trace.exchanges))):
        if trace.exchanges[at].resource == "pods/status":
            name, scene = trace.exchanges[at].name, trace.exchanges[at].scene
            read = next(
                place
                for place in reversed(range(at))
                if trace.exchanges[place].verb == "get"
                and (trace.exchanges[place].name, trace.exchanges[place].scene) == (name, scene)
            )
            rest = [each for place, each in enumerate(trace.exchanges) if place != read]
            return with_exchanges(trace, rest)
    return trace


def biased(trace: Trace) -> Trace:
    """Read each pod once or twice more, as its row allows.

    Few pods make no bias that is sure to lie beyond chance: before it, one node may have read a
    deviation less.
    """
    last = {
        (each.scene, each.name): each
        for each in trace.exchanges
        if (each.verb, each.resource, each.code) == ("get", "pods", 200)
    }
    more = int(LIMITS["idle_gets_of_a_pod"][0])
    counts = counted(trace.exchanges)
    both = 2 * (counts[READS] - counts["patch pods/status"])
    chance = IDLE_DEVIATIONS * math.sqrt(both + len(last) * more) + math.sqrt(both)
    if len(last) * more <= max(2 * LEAST, chance):
        return trace
    return with_exchanges(trace, [*trace.exchanges, *[*last.values()] * more])


def more_of(is_one: Callable[[Exchange], bool], times: int, **changes: object) -> Mutation:
    """Send the last request of a kind many times more."""

    def mutate(trace: Trace) -> Trace:
        found = [each for each in trace.exchanges if is_one(each)]
        if not found:
            return trace
        again = dataclasses.replace(found[-1], **changes)  # type: ignore[arg-type]
        return with_exchanges(trace, [*trace.exchanges, *[again] * times])

    return mutate


def moved_behind(
    is_one: Callable[[Exchange], bool],
    is_other: Callable[[Exchange], bool],
    *,
    of_scene: bool = False,
) -> Mutation:
    """Send the first request of a kind a second after what comes behind it, for some pod.

    What lies closest behind is chosen: the request shall not be late, but out of order.
    """

    def mutate(trace: Trace) -> Trace:
        found = []
        firsts: dict[tuple[str, str], int] = {}
        behind: set[tuple[str, str]] = set()
        for at, each in enumerate(trace.exchanges):
            about = each.scene, "" if of_scene else owner_of_request(each).name
            if each.scene == NODE_SCOPE or about in behind:
                continue
            if is_one(each):
                firsts.setdefault(about, at)
            elif is_other(each) and about in firsts:
                behind.add(about)
                found.append((each.at_s - trace.exchanges[firsts[about]].at_s, firsts[about]))
        if not found:
            return trace
        gap_s, at = min(found)
        each = trace.exchanges[at]
        return replaced(trace, at, dataclasses.replace(each, at_s=each.at_s + gap_s + AFTER_S))

    return mutate


def is_event(*reasons: str) -> Callable[[Exchange], bool]:
    return lambda each: each.resource == "events" and each.body.get("reason") in reasons


def is_of(verb: str, resource: str) -> Callable[[Exchange], bool]:
    return lambda each: (each.verb, each.resource) == (verb, resource)


def is_start(each: Exchange) -> bool:
    return is_event("Pulling", "Pulled", "Created", "Started")(each)


def with_other_accept(each: Exchange) -> Exchange:
    return dataclasses.replace(each, headers={**each.headers, "accept": "text/plain"})


def has_run(each: Exchange) -> bool:
    return any(path.endswith("state.running.startedAt") for path in each.state)


def with_time_again(trace: Trace) -> Trace:
    """Say in a patch the time of a condition that has not changed."""
    path = "status.conditions[type=PodScheduled].lastTransitionTime"
    return of_last(
        lambda each: each.resource == "pods/status" and path in each.state,
        lambda each: dataclasses.replace(each, body={**each.body, path: each.state[path]}),
    )(trace)


def news(name: str, before: Container[str], after: Collection[str]) -> list[str]:
    """Return what a comparison found of a mutation: not only that a node sends more of a kind."""
    return [
        line
        for line in after
        if line not in before and (name == ONE_SIDED or not line.startswith(BIAS))
    ]


AFTER_S = LIMITS["event_lag_s"][0] + 0.2
ONE_SIDED = "a bias to one side"

MUTATIONS: dict[str, Mutation] = {
    "phase": of_status("status.phase", lambda _: "Unknown"),
    "condition": of_status("[type=Ready].status", lambda _: "Unknown"),
    "condition that is new": of_status("[type=Initialized].type", lambda _: "Made"),
    "reason of a condition": of_status("[type=Ready].reason", longer),
    "reason of an end": of_status("state.terminated.reason", longer),
    "exit code": of_status("state.terminated.exitCode", lambda value: int(str(value)) + 1),
    "image ID": of_status("imageID", longer),
    "restart count": of_status("restartCount", lambda value: int(str(value)) + 1),
    "type of a value": of_status("restartCount", str),
    "start of a container": of_status("state.running.startedAt", later(3600)),
    "start of a container by seconds": of_status("state.running.startedAt", later(-8)),
    "transition of a condition": of_status("[type=Ready].lastTransitionTime", later(60)),
    "message of an Event": of_event("message", longer),
    "reason of an Event": of_event("reason", longer),
    "count of an Event": of_event("count", lambda value: int(str(value)) + 5),
    "type of an Event": of_event("type", longer),
    "source of an Event": of_event("source.component", longer),
    "object of an Event": of_event("involvedObject.fieldPath", longer),
    "time of an Event": of_event("lastTimestamp", later(3600)),
    "dropped key": without_key("status.qosClass"),
    "dropped key of a container": without_key("imageID"),
    "500 Events more": more_events,
    "an Event less": without("create", "events"),
    "a status less": without("patch", "pods/status"),
    "a status twice": twice("patch", "pods/status"),
    "a deletion less": without("delete", "pods"),
    "a deletion twice": twice("delete", "pods"),
    "a token less": without("create", "serviceaccounts/token"),
    "a watch less": without("watch", "configmaps"),
    "reads more": more_reads,
    "a late status": late("patch", "pods/status", LATE_S),
    "a late deletion": late("delete", "pods", LATE_S),
    "a late Event": late("create", "events", LATE_S),
    "a header": with_header("accept", "application/json"),
    "a priority": with_header("answer x-kubernetes-pf-prioritylevel-uid", "other"),
    "the node's address for a pod": of_last(has_address, address_of_the_node),
    "the address of another pod": of_status("status.podIP", lambda _: "IP-1 of other"),
    "a restart that keeps its ID": kept_id,
    "swapped IDs": swapped_ids,
    "a wrong UID to delete": of_body("delete", "pods", "preconditions.uid", "UID-9"),
    "a wrong UID of a status": of_body("patch", "pods/status", "metadata.uid", "UID-9"),
    "a wrong UID of an Event": of_event("involvedObject.uid", lambda _: "UID-9"),
    "a token for another UID": of_body(
        "create", "serviceaccounts/token", "spec.boundObjectRef.uid", "UID-9"
    ),
    "a Lease of another holder": of_last(
        is_renewal,
        lambda each: dataclasses.replace(each, body=changed(each.body, "holderIdentity", longer)),
    ),
    "resources of a status": without_key("status.resources"),
    "a read less": without_a_read,
    "a query of a read": of_last(
        is_of("get", "pods"), lambda each: dataclasses.replace(each, query=(("pretty", "true"),))
    ),
    "a read that fails": of_last(
        is_of("get", "pods"), lambda each: dataclasses.replace(each, code=500)
    ),
    "a header of a read": of_last(is_of("get", "pods"), with_other_accept),
    "a status that fails": of_last(
        is_of("patch", "pods/status"), lambda each: dataclasses.replace(each, code=500)
    ),
    "a repeat of another Event": of_last(
        is_of("patch", "events"),
        lambda each: dataclasses.replace(each, body=changed(each.body, "message", longer)),
    ),
    "a header of a repeat": of_last(is_of("patch", "events"), with_other_accept),
    "reads of a pod that is gone": more_of(
        is_of("get", "pods"),
        LEFT_OUT[READ_OF_A_GONE_POD].most + 5,
        code=404,
        led_to_nothing_told=False,
    ),
    "reports of nothing new": more_of(is_of("patch", "nodes/status"), LEFT_OUT[REPORT].most + 1),
    "more watches": more_of(lambda each: each.verb == "watch" and each.scene == NODE_SCOPE, 5),
    "a time that did not change": with_time_again,
    ONE_SIDED: biased,
    "a token after the start": moved_behind(is_of("create", "serviceaccounts/token"), is_start),
    "a token before its watch": moved_behind(
        is_watch_of_certificates, is_of("create", "serviceaccounts/token"), of_scene=True
    ),
    "an end before it is said": moved_behind(is_event("Killing"), is_of("delete", "pods")),
    "a status before its Event": moved_behind(is_event("Started"), has_run),
}
