"""What a comparison of values must find: a trace with one thing changed, each by a function."""

import dataclasses
from collections.abc import Callable, Container, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from exchange import Exchange, Trace
from normalisation import Leaf, is_time
from oracle_limits import LIMITS
from request_streams import BACK_OFF, SILENT

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
}
