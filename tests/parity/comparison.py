"""Two traces against each other: what differs, as lines."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import pairwise

from parity.audit_trace import GENERATED, Request
from parity.differences import LIMITS

NEVER = float("inf")
[RENEWAL_MIN_S] = LIMITS["renewal_min_s"]
[RENEWAL_MAX_S] = LIMITS["renewal_max_s"]
[OFFSET_MAX_S] = LIMITS["offset_s"]
[BACKOFF_MAX_S] = LIMITS["backoff_s"]
[GETS_MAX] = LIMITS["gets_of_a_pod"]
[OUTAGE_GETS_MAX] = LIMITS["lease_gets_in_outage"]
[REPLAYS_OF_SCENE_MAX] = LIMITS["replays_of_a_scene"]
REFUSED = frozenset(LIMITS["refused_in_outage"])
AT_ONCE_S = 0.5
"""Two renewals that are nearer are told as one word, so that two traces that have them agree."""
RENEWAL = "update leases"
PERIODIC = ("get nodes ", "get leases ", "create leases ", RENEWAL)
"""What comes with a renewal, which has its own times."""
GET = "get pods"
PATCH = "patch pods/status"


def compare(
    hollow: Sequence[Request],
    fleet: Sequence[Request],
    steps: Sequence[float],
    outage_s: float = NEVER,
) -> list[str]:
    """Return how two traces differ, each difference once.

    `steps` are when the script went on, `outage_s` when it restarted the API server.
    """
    lines: list[str] = []
    hollow, fleet = (without_outage(some, outage_s) for some in (hollow, fleet))
    for one, other in _pairs(streams(hollow), streams(fleet)):
        lines += _compare_stream(one, other)
    lines += _offsets(hollow, fleet, steps, outage_s)
    ours, theirs = (_renewals(each, outage_s) for each in (hollow, fleet))
    for who, odd in (("hollow", ours - theirs), ("fleet", theirs - ours)):
        lines += [f"time: {who} renewed its Lease {each}" for each in odd]
    identities = [sorted({each.identity for each in requests}) for requests in (hollow, fleet)]
    if identities[0] != identities[1]:
        lines.append(f"identity: hollow {identities[0]}, fleet {identities[1]}")
    agents = [sorted({each.agent for each in requests}) for requests in (hollow, fleet)]
    if agents[0] != agents[1]:
        lines.append(f"user agent: hollow {agents[0]}, fleet {agents[1]}")
    connections = [len({each.connection for each in requests}) for requests in (hollow, fleet)]
    if connections[0] != connections[1]:
        lines.append(f"connections: hollow {connections[0]}, fleet {connections[1]}")
    return list(dict.fromkeys(lines))


def without_outage(requests: Sequence[Request], outage_s: float) -> list[Request]:
    """Leave out what an API server that has just started refuses, and looks for a Lease then.

    A renewal that falls into the outage begins with a GET; whose does is a matter of luck.
    """
    kept, gets = [], 0
    for each in requests:
        if each.at_s >= outage_s:
            gets += each.token.startswith("get leases ")
            is_get = each.token.startswith("get leases ") and gets <= OUTAGE_GETS_MAX
            if is_get or each.code in REFUSED:
                continue
        kept.append(each)
    return kept


def streams(requests: Sequence[Request]) -> dict[str, list[Request]]:
    """Sort requests by what they are about; objects with a made-up name by their order."""
    by_name: dict[str, list[Request]] = {}
    for each in requests:
        by_name.setdefault(each.stream, []).append(each)
    found: dict[str, list[Request]] = {}
    for name, stream in by_name.items():
        plain = GENERATED.sub("-X", name) if name.startswith("pods ") else name
        count = sum(key.partition("#")[0] == plain for key in found)
        found[f"{plain}#{count}" if plain != name else name] = fold(stream)
    return found


def fold(stream: Sequence[Request]) -> list[Request]:
    """Leave out reads of pods that changed nothing, repeated renewals and reads of the Node."""
    if all(each.verb == "watch" for each in stream):
        return sorted(stream, key=lambda each: each.token)  # new or resumed, as pods overlap
    kept: list[Request] = []
    for each in stream:
        if kept and each.token == kept[-1].token:
            if each.token.startswith(PERIODIC):
                continue
            if each.token.startswith("get pods "):
                kept.pop()
        kept.append(each)
    while kept and kept[-1].token.startswith("get pods "):
        kept.pop()  # of a pod that stays as it is
    return kept


def _pairs(
    hollow: dict[str, list[Request]], fleet: dict[str, list[Request]]
) -> Iterator[tuple[list[Request], list[Request]]]:
    for name in dict.fromkeys((*hollow, *fleet)):
        yield hollow.get(name, []), fleet.get(name, [])


def _compare_stream(hollow: list[Request], fleet: list[Request]) -> list[str]:
    lines = []
    for tag, ours, theirs in _aligned(hollow, fleet):
        if tag == "equal":
            for one, other in zip(ours, theirs, strict=True):
                lines += _compare_bodies(one, other) + _compare_headers(one, other)
            continue
        lines += [f"only hollow: {each.token}" for each in ours]
        lines += [f"only fleet: {each.token}" for each in theirs]
    return lines


def _aligned(
    hollow: list[Request], fleet: list[Request]
) -> Iterator[tuple[str, list[Request], list[Request]]]:
    one, other = ([each.shape for each in requests] for requests in (hollow, fleet))
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    for tag, start, end, start2, end2 in matcher.get_opcodes():
        yield tag, hollow[start:end], fleet[start2:end2]


def _compare_bodies(hollow: Request, fleet: Request) -> list[str]:
    what = hollow.token
    return [
        *(f"body only hollow: {what}: {path}" for path in sorted(hollow.body - fleet.body)),
        *(f"body only fleet: {what}: {path}" for path in sorted(fleet.body - hollow.body)),
    ]


def _compare_headers(hollow: Request, fleet: Request) -> list[str]:
    return [
        f"header: {hollow.token}: {name}: hollow {value}, fleet {other}"
        for (name, value), (_, other) in zip(hollow.headers, fleet.headers, strict=True)
        if value != other
    ]


def _offsets(
    hollow: Sequence[Request], fleet: Sequence[Request], steps: Sequence[float], outage_s: float
) -> list[str]:
    """Compare when requests were sent: about the node since its start, about pods since a step."""

    def offset(request: Request, start_s: float) -> float:
        if not request.is_namespaced:
            return request.at_s - start_s
        return request.at_s - steps[max(0, bisect_right(steps, request.at_s) - 1)]

    starts = hollow[0].at_s, fleet[0].at_s
    lines = []
    for one, other in _pairs(streams(hollow), streams(fleet)):
        for tag, ours, theirs in _aligned(one, other):
            for first, second in zip(ours, theirs, strict=True) if tag == "equal" else ():
                late_s = offset(second, starts[1]) - offset(first, starts[0])
                is_backed_off = first.verb == "watch" and first.at_s > outage_s
                if first.token.startswith(PERIODIC):
                    continue
                if abs(late_s) > (BACKOFF_MAX_S if is_backed_off else OFFSET_MAX_S):
                    word = "later" if late_s > 0 else "sooner"
                    lines.append(f"time: fleet {word} by {abs(late_s):.1f} s: {first.token}")
    return lines


def _renewals(requests: Sequence[Request], outage_s: float) -> Counter[str]:
    """Return the renewals that came too soon or too late; a Lease that is lost is made anew."""
    kinds = {"update leases": 200, "create leases": 201}
    times = [
        each.at_s for each in requests if kinds.get(f"{each.verb} {each.resource}") == each.code
    ]
    return Counter(
        "at once" if after - before < AT_ONCE_S else f"after {after - before:.1f} s"
        for before, after in pairwise(times)
        if not (RENEWAL_MIN_S <= after - before <= RENEWAL_MAX_S or before < outage_s < after)
    )


def costs(requests: Sequence[Request], steps: Mapping[str, float]) -> dict[str, Counter[str]]:
    """Count the requests about pods in each step of the script, by verb and resource."""
    names, times = list(steps), list(steps.values())
    found = {name: Counter[str]() for name in names}
    for each in requests:
        if each.is_namespaced and each.resource != "events" and each.at_s >= times[0]:
            found[names[bisect_right(times, each.at_s) - 1]][f"{each.verb} {each.resource}"] += 1
    return found


def uneven(
    hollow: Sequence[Request], fleet: Sequence[Request], steps: Mapping[str, float]
) -> list[str]:
    """Return in which steps pods cost one node more than the other.

    A status is read before it is patched; reads beyond those found nothing new.
    """
    lines = []
    ours, theirs = (costs(each, steps) for each in (hollow, fleet))
    for step, expected in ours.items():
        found = theirs[step]
        idle = [count.pop(GET, 0) - count[PATCH] for count in (expected, found)]
        if abs(idle[0] - idle[1]) > GETS_MAX:
            lines.append(f"costs: {step}: idle {GET}: hollow {idle[0]}, fleet {idle[1]}")
        lines += [
            f"costs: {step}: {kind}: hollow {expected[kind]}, fleet {found[kind]}"
            for kind in sorted(expected | found)
            if expected[kind] != found[kind]
        ]
    return lines
