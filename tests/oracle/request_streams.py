"""The requests of one node, sorted by what they are about, and what each of them says."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import pairwise

from oracle.exchange import ENDED, FIRST, Exchange
from oracle.left_out import (
    LEASE_IN_AN_OUTAGE,
    READ_OF_A_GONE_POD,
    READY_OF_A_NODE,
    REFUSAL,
    REPEAT_OF_A_LEASE,
    REPORT,
    SNAPSHOT,
    Ledger,
)
from oracle.normalisation import Leaf, is_time
from oracle.oracle_limits import LIMITS

GONE_MIRROR = (404, 409)
"""It is gone, or another one has its name."""
GONE = frozenset(LIMITS["reads_of_a_gone_pod"])
[MISSES_MAX] = LIMITS["disks_known_at_a_start"]
DISK = "InvalidDiskCapacity"
RACES = ("NodeAllocatableEnforced", DISK)
"""Told at a start by goroutines of their own: which comes first is chance."""
WHOLE = ("resourceVersionMatch", "sendInitialEvents")
"""What a watch asks with that begins with a whole snapshot."""
REFUSED = frozenset(LIMITS["refused_in_outage"])
[BACKOFF_S] = LIMITS["outage_backoff_s"]
SILENT = ("CreateContainerConfigError", "ErrImagePull", "ImagePullBackOff")
"""While a container waits so, a retry that finds no change tells nothing."""
BACK_OFF = "CrashLoopBackOff"
_ITEM = re.compile(r"status(\.\w+\[[^\]]*\])?")
CONDITION = re.compile(r"status\.conditions\[type=\w+\]\.type")
READY = "status.conditions[type=Ready]"
OK, CREATED, CONFLICT = 200, 201, 409
RENEWAL = "update leases"
ORDER = "status.$setElementOrder/conditions"
PASSING = ("].ready", "].started", "].state.waiting.message")
"""How long a back-off is, is told as it ends, a moment before the container runs."""
PHASES = ("Pending", "Running", "Succeeded", "Failed")
WORDS_MAX = 160
"""So much of a value is told."""


def streams(exchanges: Sequence[Exchange]) -> dict[str, list[Exchange]]:
    """Sort requests by what they are about."""
    found: dict[str, list[Exchange]] = {}
    for each in exchanges:
        found.setdefault(each.stream, []).append(each)
    return found


def without_refusals(
    exchanges: Sequence[Exchange], outages_s: Sequence[tuple[float, float]], ledger: Ledger
) -> list[Exchange]:
    """Leave out what an API server refuses that has just started.

    A renewal that falls into the outage begins with a GET; whose does is a matter of luck. A watch
    that was refused begins with a whole snapshot, others go on.
    """
    kept = []
    refused = set()
    for each in exchanges:
        if any(since_s <= each.at_s <= until_s + BACKOFF_S for since_s, until_s in outages_s):
            if each.code in REFUSED and ledger.takes(REFUSAL):
                refused.add(each.stream)
                continue
            if (each.verb, each.resource) == ("get", "leases") and ledger.takes(LEASE_IN_AN_OUTAGE):
                continue
            if each.verb == "watch" and each.stream in refused and ledger.takes(SNAPSHOT):
                query = tuple(pair for pair in each.query if pair[0] not in WHOLE)
                kept.append(dataclasses.replace(each, query=query))
                continue
        kept.append(each)
    return kept


def goes_on(watch: Exchange) -> bool:
    """Return whether a watch goes on where one ended that had run for its time, which is random."""
    asked = dict(watch.query)
    return asked.get("resourceVersion") == "N" and not any(key in asked for key in WHOLE)


def without_chance(
    real: Sequence[Exchange], fleet: Sequence[Exchange]
) -> tuple[list[Exchange], list[Exchange]]:
    """Leave out of the Events about an object what one node may tell and the other not."""
    kept = [*real], [*fleet]
    for ours, theirs in (kept, kept[::-1]):
        found = [each for each in ours if is_disk(each)]
        others = sum(map(is_disk, theirs))
        for each in found[others : others + int(MISSES_MAX)]:
            ours.remove(each)
    return kept


def is_disk(each: Exchange) -> bool:
    return each.body.get("reason") == DISK


def aligned(
    real: Sequence[Exchange], fleet: Sequence[Exchange], by: str
) -> list[tuple[list[Exchange], list[Exchange], bool]]:
    """Cut two streams into runs that are equal by an attribute, and runs that are not."""
    keys = [[getattr(each, by) for each in some] for some in (real, fleet)]
    matcher = SequenceMatcher(None, keys[0], keys[1], autojunk=False)
    return [
        ([*real[a:b]], [*fleet[c:d]], tag == "equal") for tag, a, b, c, d in matcher.get_opcodes()
    ]


def state_before(
    each: Exchange, stream: Sequence[Exchange], *, timeless: bool = True
) -> dict[str, Leaf]:
    """Return the status before a write of it, without times."""
    at = next(place for place, other in enumerate(stream) if other is each)
    earlier = next((other for other in reversed(stream[:at]) if other.state), None)
    state = earlier.state if earlier is not None else {}
    return {path: "TIME" if timeless and is_time(value) else value for path, value in state.items()}


def changes(each: Exchange, stream: Sequence[Exchange]) -> tuple[str, frozenset[str]]:
    """Return which values a write of a status changes: two that change the same are meant alike.

    Else a status with a wrong value would be left out, with its like, where another follows soon.
    A first status changes all that there is, whatever it is of.
    """
    before, none = state_before(each, stream), object()
    after = {path: "TIME" if is_time(value) else value for path, value in each.state.items()}
    if not before or not after:
        return f"{each.token} {id(each)}", frozenset()
    paths = {*before, *after}
    changed = (path for path in paths if before.get(path, none) != after.get(path, none))
    return each.token, frozenset(changed)


def says_alone(each: Exchange, others: Iterable[Exchange]) -> list[tuple[str, Leaf]]:
    """Return the values that a status has and no other of its object, wherever they stand there.

    What a container was in one moment is found in its last state. A phase, whether a container is
    ready, what it waits for and conditions come and go, and are no values of their own.
    """
    found = _said(each)
    for other in others:
        if other is not each and found:
            found -= _said(other)
    return sorted(found, key=str)


def _said(each: Exchange) -> set[tuple[str, Leaf]]:
    """Return the values of a status by the thing that they are of, and by their last key."""
    return {
        (f"{_ITEM.match(path)[0]} {path.rpartition('.')[2]}", value)  # type: ignore[index]
        for path, value in each.state.items()
        if not is_time(value) and not _passes(path, value)
    }


def _passes(path: str, value: Leaf) -> bool:
    if path.startswith("status.conditions"):
        return not path.endswith("].status") or value in ("True", "False")
    return path.endswith(PASSING) or value in PHASES


def told_in_patch(body: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """Leave out times of a patch, and conditions of which nothing else has changed.

    A patch has a time if its second has changed; which it is, the status after it says. It is an
    empty object, which has no path, if nothing else has changed and no second either.
    """
    kept = {path: value for path, value in body.items() if path and not is_time(value)}
    named = {path: path.rpartition(".")[0] for path in kept if CONDITION.fullmatch(path)}
    told = {path.rpartition(".")[0] for path in kept if path not in named}
    dropped = {name for name in named.values() if name not in told}
    kept = {path: value for path, value in kept.items() if named.get(path) not in dropped}
    if "status.conditions.order" in kept or dropped:
        left = [
            name.partition("[")[2].rstrip("]") for name in named.values() if name not in dropped
        ]
        order = str(kept.pop("status.conditions.order", "")).split(", ")
        if len(left) > 1:
            kept["status.conditions.order"] = ", ".join(each for each in order if each in left)
        if not left:
            kept = {path: value for path, value in kept.items() if not path.startswith(ORDER)}
    return kept


def without_status(body: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """Return what else a patch of a status has: which object it is meant for."""
    return {path: value for path, value in body.items() if not path.startswith("status")}


def retries_silently(each: Exchange) -> bool:
    """Tell whether a pod waits for something that its next retry will find, whenever that is."""
    return any(value in SILENT for path, value in each.state.items() if path.endswith("reason"))


def without_reads_of_nothing(stream: Sequence[Exchange], ledger: Ledger) -> list[Exchange]:
    """Leave out the reads of a pod that is gone, as many as a row allows."""
    return [
        each
        for each in stream
        if each.verb != "get"
        or each.code not in GONE
        or not ledger.takes(READ_OF_A_GONE_POD, f"{each.scene} {each.name}")
    ]


def idle_reads(stream: Sequence[Exchange]) -> tuple[int, int]:
    """Count the reads of a pod that no patch followed, without and with those that may be so."""
    kinds = Counter(each.verb for each in stream)
    idle = kinds["get"] - sum(each.resource == "pods/status" for each in stream)
    return idle - sum(each.led_to_nothing_told for each in stream), idle


def tells_back_off(each: Exchange) -> bool:
    """Return whether a status says that a container waits until it is restarted."""
    return any(value == BACK_OFF for path, value in each.body.items() if path.endswith("reason"))


def tells_new_mirror(before: Exchange, each: Exchange) -> bool:
    """Tell whether a mirror that was made anew is told what its pod came to long ago."""
    is_made = before.verb == "create" and each.resource == "pods/status" and each.is_of_mirror
    return is_made and each.state.get("status.phase") != "Pending"


def waits_for_a_look(before: Exchange, each: Exchange) -> bool:
    """Return whether a pod is deleted that had ended before anybody asked to delete it.

    Its status says nothing new then, so that the kubelet finds at its next look that it may go.
    """
    is_last = before.resource == "pods/status" and before.state.get("status.phase") in ENDED
    is_over = is_last and before.state.get("status.observedGeneration") == FIRST
    return is_over and each.verb == "delete" and not each.is_of_mirror


def without_late_deletions(
    real: list[Exchange], fleet: list[Exchange], most: int
) -> tuple[list[Exchange], list[Exchange]]:
    """Leave out what one node asked more of a mirror that was gone, if it is that often at most."""
    for code in GONE_MIRROR:
        counts = [sum(is_late_deletion(each, code) for each in some) for some in (real, fleet)]
        if 0 < abs(counts[0] - counts[1]) <= most:
            real, fleet = (_first(some, code, min(counts)) for some in (real, fleet))
    return real, fleet


def is_late_deletion(each: Exchange, code: int) -> bool:
    return each.verb == "delete" and each.is_of_mirror and each.code == code


def _first(stream: list[Exchange], code: int, count: int) -> list[Exchange]:
    """Keep so many such deletions, and all else."""
    kept = []
    for each in stream:
        is_late = is_late_deletion(each, code)
        if not is_late or count > 0:
            kept.append(each)
        count -= is_late
    return kept


def unread(stream: Sequence[Exchange]) -> list[str]:
    """Return the patches of a status that no read came before."""
    return [
        other.token
        for one, other in pairwise([None, *stream])
        if other is not None
        and other.resource == "pods/status"
        and (one is None or one.verb != "get")
    ]


def once(stream: Sequence[Exchange], ledger: Ledger) -> list[Exchange]:
    """Leave out renewals that say the same: their gaps are compared; and what is repeated."""
    kept: list[Exchange] = []
    for each in stream:
        is_repeated = bool(kept) and kept[-1].shape == each.shape
        if not is_repeated or not (is_renewal(each) or ledger.takes(REPEAT_OF_A_LEASE)):
            kept.append(each)
    return kept


def is_renewal(each: Exchange) -> bool:
    return each.token.startswith(RENEWAL) and each.code == OK


def is_image(path: str) -> bool:
    return path.startswith("status.images") and not path.endswith(".order")


def without_ready(each: Exchange, ledger: Ledger) -> Exchange:
    """Leave out what the try to make a Node that exists says of Ready: whether a CSINode is."""
    if (each.verb, each.code) != ("create", CONFLICT) or not ledger.takes(READY_OF_A_NODE):
        return each
    body = {path: value for path, value in each.body.items() if not path.startswith(READY)}
    return dataclasses.replace(each, body=body)


def without_images(each: Exchange) -> Exchange:
    """Leave the images out of what a patch of a Node says and makes of it."""
    if each.verb != "patch":
        return each
    body, state = (
        {path: value for path, value in values.items() if not path.startswith("status.images")}
        for values in (each.body, each.state)
    )
    return dataclasses.replace(each, body=body, state=state)


def once_told(stream: Sequence[Exchange], ledger: Ledger) -> list[Exchange]:
    """Leave out patches after which a status is as it was before them."""
    kept: list[Exchange] = []
    for each in stream:
        is_repeated = kept and each.state and kept[-1].state and kept[-1].shape == each.shape
        if not is_repeated or not ledger.takes(REPORT):
            kept.append(each)
    return kept


def times_told_again(each: Exchange, stream: Sequence[Exchange]) -> list[str]:
    """Return the times in the patch of a status that are as they were: a patch has none of them.

    So what `told_in_patch` leaves out follows from the statuses before and after the patch. The
    statuses of containers are one value, which a patch has as a whole.
    Source: pkg/util/pod/pod.go, PatchPodStatus; component-helpers/node/util/status.go,
    preparePatchBytesForNodeStatus: both CreateTwoWayMergePatch.
    """
    if each.verb != "patch" or not each.state:
        return []
    before = state_before(each, stream, timeless=False)
    return [
        path
        for path, value in each.body.items()
        if is_time(value) and before.get(path) == value and "ontainerStatuses[" not in path
    ]


def event_key(each: Exchange) -> str:
    """Return what an Event says."""
    keys = ("involvedObject.kind", "involvedObject.name", "involvedObject.fieldPath")
    about = " ".join(str(each.body.get(key, "")) for key in keys).strip()
    told = " ".join(str(each.body.get(key, "")) for key in ("type", "reason", "message"))
    return f"{about}: {told}"


def is_of_fresh_node(each: Exchange) -> bool:
    """Return whether an Event tells what a Node that was just built has of everything."""
    return str(each.body.get("reason", "")).startswith(("NodeHasSufficient", "NodeHasNo"))


def is_told_by_syncs(each: Exchange) -> bool:
    """Return whether an Event of a Node is told by each sync of some of its pods."""
    return each.body.get("reason") == "MissingClusterDNS"


def field_of(each: Exchange) -> str:
    """Return what among Events about an object has an order: those of a container, or one race."""
    reason = str(each.body.get("reason", ""))
    return str(each.body.get("involvedObject.fieldPath", "")) or (reason if reason in RACES else "")


def is_unordered(each: Exchange) -> bool:
    return each.body.get("reason") in ("Killing", *RACES)


def last_counts(stream: Sequence[Exchange]) -> dict[str, tuple[int, int, list[int]]]:
    """Return of each Event its count, how many requests it took, and the codes of the answers."""
    found: dict[str, tuple[int, int, list[int]]] = {}
    for each in stream:
        key = event_key(each)
        _count, sent, codes = found.get(key, (0, 0, []))
        count = each.body.get("count")
        found[key] = (count if isinstance(count, int) else 1, sent + 1, sorted({*codes, each.code}))
    return found


def queries(some: Sequence[Exchange]) -> set[str]:
    return {f"{each.path}?{each.query}" for each in some}


def is_failure(code: int) -> bool:
    return code not in (OK, CREATED)


def brief(each: Exchange) -> str:
    """Name a request in a line."""
    if each.resource == "events":
        reason = each.body.get("reason", "")
        return f"{each.verb} events {each.body.get('involvedObject.name', '')} {reason}"
    return each.token


def told_of(each: Exchange) -> str:
    """Return what a status says that only one side has told."""
    told = [
        f"{path.removeprefix('status.')}={words(value)}"
        for path, value in sorted(each.body.items())
        if path.startswith("status.")
        and not is_time(value)
        and ".order" not in path
        and "$" not in path
    ]
    return f" ({'; '.join(told)})"[:600] if told else ""


def words(value: Leaf) -> str:
    return repr(value)[:WORDS_MAX]
