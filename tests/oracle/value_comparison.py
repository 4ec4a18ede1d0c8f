"""Two nodes against each other, value by value: what differs, in lines that name the scene."""

from collections import Counter
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from itertools import pairwise
from typing import NamedTuple

from oracle.exchange import NODE_SCOPE, Exchange, Trace
from oracle.left_out import READ_AT_A_START, READ_FOR_A_DRIVER, UNNOTED, WATCH, Ledger, used
from oracle.normalisation import Leaf, is_time, seconds
from oracle.oracle_limits import LIMITS
from oracle.orders import misordered
from oracle.request_streams import (
    aligned,
    brief,
    changes,
    event_key,
    field_of,
    goes_on,
    idle_reads,
    is_failure,
    is_image,
    is_of_fresh_node,
    is_renewal,
    is_told_by_syncs,
    is_unordered,
    last_counts,
    once,
    once_told,
    queries,
    retries_silently,
    says_alone,
    state_before,
    streams,
    tells_back_off,
    tells_new_mirror,
    times_told_again,
    told_in_patch,
    told_of,
    unread,
    waits_for_a_look,
    without_chance,
    without_images,
    without_late_deletions,
    without_reads_of_nothing,
    without_ready,
    without_status,
    words,
)

[OFFSET_MAX_S] = LIMITS["offset_s"]
[NODE_OFFSET_MAX_S] = LIMITS["node_offset_s"]
[VALUE_MAX_S] = LIMITS["time_value_s"]
[JITTER] = LIMITS["retry_jitter"]
[RETRY_MIN_S] = LIMITS["retry_min_s"]
[RETRY_MAX_S] = LIMITS["retry_max_s"]
[MERGED_MAX_S] = LIMITS["merged_s"]
[MERGED_OF_OBJECT_MAX] = LIMITS["merged_of_an_object"]
[LOOK_S] = LIMITS["deletion_of_an_ended_pod_s"]
[MIRROR_STATUS_S] = LIMITS["mirror_status_s"]
[GONE_MIRRORS_MAX] = LIMITS["deletions_of_a_gone_mirror"]
[GETS_MAX] = LIMITS["idle_gets_of_a_pod"]
[CLAIM_READS_MAX] = LIMITS["reads_of_a_claim"]
[REPEATS_MAX] = LIMITS["repeats_of_an_event"]
[RENEWAL_MIN_S] = LIMITS["renewal_min_s"]
[RENEWAL_MAX_S] = LIMITS["renewal_max_s"]
[STALLED_MAX_S] = LIMITS["renewal_stalled_s"]
[STALLS_MAX] = LIMITS["stalled_renewals"]
[REGISTRATION_S] = LIMITS["registration_s"]
[LOOKS_MAX] = LIMITS["looks_before_the_informer"]
[GONE_READS_MAX] = LIMITS["reads_of_a_gone_node"]
[BACKOFF_S] = LIMITS["outage_backoff_s"]
CLAIMS = ("persistentvolumeclaims ", "persistentvolumes ", "resourceclaims ")
REGISTERS_S = 1.0
"""A driver is written to a CSINode so soon after the Node was read for it."""
SECOND_S = 1.0
CUT_S = 2.0
"""A time is cut to its second, and a kubelet says that it starts before it asks for anything."""
GET = "get pods"
REPORT = "patch nodes/status"
READ_FOR_A_LEASE = "get nodes NODE?timeout=10s 200"
"""So a Lease is made with its Node as owner; if that is not there yet, it is tried after 10 s."""
LAST = "lastTimestamp"
SIMILAR = "(combined from similar events)"
"""So begins the message of an Event that stands for others. Source: client-go/tools/record."""
PATCHED_EVENT = "body of patch events "
"""How often it was repeated is compared by itself."""


class Counts(NamedTuple):
    """How much was compared."""

    requests: int = 0
    events: int = 0
    values: int = 0
    merged_real: int = 0
    """Statuses that the other node told with the next one."""
    merged_fleet: int = 0


class Comparison:
    """Compares what two nodes asked; `lines` are the differences, each once."""

    def __init__(self, real: Trace, fleet: Trace) -> None:
        self._traces = real, fleet
        self._ledgers = Ledger("real"), Ledger("fleet")
        self._found: Counter[str] = Counter()
        self._before: tuple[Exchange, Exchange] | None = None
        self._drifts_s = [0.0]
        """By how much later the retries of the scene came to fleet's node."""
        self._late_s = 0.0
        """By how much later fleet's request of the pair came that is looked at."""
        self._requests = self._events = self._values = 0
        self._merged = [0, 0]

    @property
    def lines(self) -> list[str]:
        return list(self._found)

    @property
    def found(self) -> Counter[str]:
        """How often each line was found."""
        return self._found

    @property
    def left_out(self) -> list[str]:
        """Lines that say what was left out, by the rows of differences.md."""
        sides = zip(self._traces, self._ledgers, strict=True)
        return used(*(Counter(trace.left_out) + ledger.totals for trace, ledger in sides))

    @property
    def counts(self) -> Counts:
        return Counts(self._requests, self._events, self._values, *self._merged)

    def add(self, scene: str, lines: Iterable[str]) -> None:
        """Add differences that were found otherwise."""
        for each in lines:
            self._add(scene, each)

    def run(self, scenes: Iterable[str]) -> "Comparison":
        """Compare all that belongs to some scenes."""
        for scene in scenes:
            ours, theirs = (
                [each for each in trace.exchanges if each.scene == scene] for trace in self._traces
            )
            self._scene(scene, ours, theirs)
        return self

    def _scene(self, scene: str, real: list[Exchange], fleet: list[Exchange]) -> None:
        by_name = streams(real), streams(fleet)
        self._drifts_s = [0.0]
        names = dict.fromkeys((*by_name[0], *by_name[1]))
        # Pods first: they tell of the retries that all else follows.
        for name in sorted(names, key=lambda each: not each.startswith("pods ")):
            one, other = (each.get(name, []) for each in by_name)
            if name.startswith("events "):
                self._event_stream(scene, one, other)
            elif name.startswith("watch "):
                self._watches(scene, one, other)
            elif name.startswith("pods "):
                self._pod_stream(scene, one, other)
            elif name.startswith("leases "):
                self._leases(scene, one, other)
            elif name.startswith(CLAIMS):
                self._claim_reads(scene, one, other)
            elif name == "nodes NODE":
                self._node_stream(scene, one, other)
            elif name == "nodes get":
                self._node_reads(scene, one, other)
            else:
                self._stream(scene, one, other)
        self.add(scene, misordered(scene, real, fleet))
        for what in ("identity", "user-agent"):
            self._sets(what, real, fleet)

    def _add(self, scene: str, line: str) -> None:
        self._found[f"{scene}: {line}"] += 1

    def _sets(self, what: str, real: list[Exchange], fleet: list[Exchange]) -> None:
        """Compare what all requests of a node have in common."""

        def told(some: list[Exchange]) -> list[str]:
            return sorted(
                {
                    each.identity if what == "identity" else each.headers.get(what, "")
                    for each in some
                }
            )

        if told(real) != told(fleet) and real and fleet:
            self._found[f"all: {what}: real {told(real)}, fleet {told(fleet)}"] = 1

    # Streams

    def _pod_stream(self, scene: str, real: list[Exchange], fleet: list[Exchange]) -> None:
        """Compare the writes of a pod in their order, and how often it was read for nothing."""
        idle, reads = [], []
        for who, some, ledger in zip(("real", "fleet"), (real, fleet), self._ledgers, strict=True):
            found = without_reads_of_nothing(some, ledger)
            idle.append(idle_reads(found))
            reads.append([each for each in found if each.verb == "get"])
            for line in unread(some):
                self._add(scene, f"only {who}: {line} without a GET before it")
        (least, most), (others_least, others_most) = idle
        if max(least - others_most, others_least - most) > GETS_MAX:
            name = (real or fleet)[0].name
            self._add(scene, f"idle GETs of {name}: real {most}, fleet {others_most}")
        self._alike(scene, *reads)
        real, fleet = ([each for each in some if each.verb != "get"] for some in (real, fleet))
        self._stream(scene, *without_late_deletions(real, fleet, int(GONE_MIRRORS_MAX)))

    def _stream(self, scene: str, real: list[Exchange], fleet: list[Exchange]) -> None:
        self._before = None
        again = [
            Counter(
                f"{each.token}: {path}" for each in some for path in times_told_again(each, some)
            )
            for some in (real, fleet)
        ]
        for who, lines in (("real", again[0] - again[1]), ("fleet", again[1] - again[0])):
            self.add(scene, (f"time again only {who}: {line}" for line in lines))
        for ours, theirs in self._paired(real, fleet):
            if ours is not None and theirs is not None:
                # What a patch of a status has depends on the status before it.
                same = state_before(ours, real) == state_before(theirs, fleet)
                self._pair(scene, ours, theirs, has_body=same or not ours.state)
            else:
                who, only = ("real", ours) if ours is not None else ("fleet", theirs)
                assert only is not None
                self._add(scene, f"only {who}: {only.token}{told_of(only)}")

    def _event_stream(self, scene: str, real: list[Exchange], fleet: list[Exchange]) -> None:
        """Compare the events about an object: their order as they first come, and how often.

        The containers of a pod are killed at once, so that only each by itself has an order, and
        so it is with what goroutines of their own tell at a start.
        """
        real, fleet = without_chance(real, fleet)
        self._events += len(real)
        first = [[each for each in some if each.verb == "create"] for some in (real, fleet)]
        for field in dict.fromkeys(field_of(each) for some in first for each in some):
            ours, theirs = ([each for each in some if field_of(each) == field] for some in first)
            self._event_order(scene, ours, theirs)
        orders = [[event_key(each) for each in some if not is_unordered(each)] for some in first]
        if sorted(orders[0]) == sorted(orders[1]) and orders[0] != orders[1]:
            self._add(scene, f"order of events: real {orders[0]}, fleet {orders[1]}")
        self._event_counts(scene, real, fleet)

    def _event_order(self, scene: str, real: list[Exchange], fleet: list[Exchange]) -> None:
        keys = [[event_key(each) for each in some] for some in (real, fleet)]
        matcher = SequenceMatcher(None, keys[0], keys[1], autojunk=False)
        for tag, a, b, c, d in matcher.get_opcodes():
            if tag == "equal":
                for ours, theirs in zip(real[a:b], fleet[c:d], strict=True):
                    self._pair(scene, ours, theirs)
                continue
            for who, only, others in (
                ("real", keys[0][a:b], keys[1]),
                ("fleet", keys[1][c:d], keys[0]),
            ):
                for each in only:
                    moved = each in others
                    self._add(scene, f"event {'moved' if moved else f'only {who}'}: {each}")

    def _event_counts(self, scene: str, real: list[Exchange], fleet: list[Exchange]) -> None:
        self._patched_events(scene, real, fleet)
        ours, theirs = (last_counts(some) for some in (real, fleet))
        last = [{event_key(each): each for each in some} for some in (real, fleet)]
        for key in [key for key in ours if key in theirs]:
            one, other_one = (each[key] for each in last)
            if one.verb == other_one.verb == "patch":
                self._repeat(scene, one, other_one)
            (count, sent, codes), (other, other_sent, other_codes) = ours[key], theirs[key]
            is_of_a_pod = scene != NODE_SCOPE or is_told_by_syncs(one)
            repeats_max = REPEATS_MAX if is_of_a_pod else 0
            if scene == NODE_SCOPE and is_of_fresh_node(one):
                repeats_max = LOOKS_MAX
            if abs(count - other) > repeats_max:
                self._add(scene, f"event count: {key}: real {count}, fleet {other}")
            if abs(sent - other_sent) > repeats_max:
                self._add(scene, f"event requests: {key}: real {sent}, fleet {other_sent}")
            if sent != other_sent:  # one of them may have been repeated
                codes, other_codes = ([*filter(is_failure, each)] for each in (codes, other_codes))
            if codes != other_codes:
                self._add(scene, f"event codes: {key}: real {codes}, fleet {other_codes}")

    def _patched_events(self, scene: str, real: list[Exchange], fleet: list[Exchange]) -> None:
        """Compare all patches of Events: each says what its Event said when it was created.

        Of an Event that stands for similar ones each patch has another message.
        """
        made = [
            {event_key(each) for each in some if each.verb == "create"} for some in (real, fleet)
        ]
        patches = [[each for each in some if each.verb == "patch"] for some in (real, fleet)]
        keys = [dict.fromkeys(map(event_key, some)) for some in patches]
        for who, side, other in (("real", 0, 1), ("fleet", 1, 0)):
            lone = [
                key for key in keys[side] if key not in {*keys[other], *made[other], *made[side]}
            ]
            similar = [key for key in lone if SIMILAR in key]
            for key in lone:
                if key not in similar[: int(REPEATS_MAX)]:
                    self._add(scene, f"event only {who}: {key}, in a patch")
        for key in {**keys[0], **keys[1]}:
            some = [[each for each in side if event_key(each) == key] for side in patches]
            if all(some):
                self._headers_of_all(scene, *some)
                self._value_sets(scene, f"query: {brief(some[0][0])}", *map(queries, some))
            told = [[each for each in side if event_key(each) == key] for side in (real, fleet)]
            if all(told):
                self._bodies_of_all(scene, *told)

    def _bodies_of_all(self, scene: str, real: list[Exchange], fleet: list[Exchange]) -> None:
        """Compare which values an Event has in all requests, but for times and the count."""
        for path in sorted({path for each in (*real, *fleet) for path in each.body} - {"count"}):
            values = (
                {words(v) for each in some if not is_time(v := each.body.get(path))}
                for some in (real, fleet)
            )
            self._value_sets(scene, f"value: body of events: {event_key(real[0])}: {path}", *values)

    def _value_sets(self, scene: str, what: str, real: set[str], fleet: set[str]) -> None:
        """Compare what some requests have in common, however many there are."""
        self._values += 1
        if real != fleet:
            self._add(scene, f"{what}: real {sorted(real)}, fleet {sorted(fleet)}")

    def _alike(self, scene: str, real: list[Exchange], fleet: list[Exchange]) -> None:
        """Compare how something is read, if not how often: queries, codes and headers."""
        tokens = [dict.fromkeys(each.token for each in some) for some in (real, fleet)]
        for token in dict.fromkeys((*tokens[0], *tokens[1])):
            if token not in tokens[0] or token not in tokens[1]:
                self._add(scene, f"only {'real' if token in tokens[0] else 'fleet'}: {token}")
                continue
            self._requests += 1
            some = [[each for each in side if each.token == token] for side in (real, fleet)]
            self._headers_of_all(scene, *some)

    def _headers_of_all(self, scene: str, real: list[Exchange], fleet: list[Exchange]) -> None:
        """Compare which values each header has in requests that are repeated."""
        noted = [[each for each in some if each.headers] for some in (real, fleet)]
        self._unnoted(scene, (*real, *fleet))
        if not all(noted):
            return
        kind = f"{real[0].verb} {real[0].resource}"
        for name in sorted({name for some in noted for each in some for name in each.headers}):
            one, other = (
                " or ".join(sorted({each.headers.get(name, "none") for each in some}))
                for some in noted
            )
            self._values += 1
            if one != other:
                self._add(scene, f"header: {kind}: {name}: real {one}, fleet {other}")

    def _repeat(self, scene: str, real: Exchange, fleet: Exchange) -> None:
        """Compare the last patch of an Event; when it came depends on how often it was repeated."""
        self._late_s = 0.0
        ages = [
            each.at_s - seconds(str(each.body[LAST])) if is_time(each.body.get(LAST)) else 0.0
            for each in (real, fleet)
        ]
        if abs(ages[0] - ages[1]) > VALUE_MAX_S:
            self._add(scene, f"time: {brief(real)}: {LAST}: ages real {ages[0]}, fleet {ages[1]}")
        bodies = [
            {path: value for path, value in each.body.items() if path != LAST}
            for each in (real, fleet)
        ]
        self._body(scene, f"body of {brief(real)}", *bodies)

    def _watches(self, scene: str, real: list[Exchange], fleet: list[Exchange]) -> None:
        """Compare how watches are asked for, and how often; a node renews its own at random."""
        ours, theirs = ({each.token: each for each in some} for some in (real, fleet))
        counts = [Counter(each.token for each in some) for some in (real, fleet)]
        for token in dict.fromkeys((*ours, *theirs)):
            both = token in ours and token in theirs
            if both:
                some = ([each for each in side if each.token == token] for side in (real, fleet))
                self._headers_of_all(scene, *some)
                self._requests += 1
            one, other = (each[token] for each in counts)
            who, ledger = ("real", self._ledgers[0]) if one > other else ("fleet", self._ledgers[1])
            watch = ours.get(token) or theirs[token]
            may_differ = scene == NODE_SCOPE and (both or goes_on(watch))
            if all(
                may_differ and ledger.takes(WATCH, watch.stream) for _ in range(abs(one - other))
            ):
                continue
            if both:
                self._add(scene, f"watches: {token}: real {one}, fleet {other}")
            else:
                self._add(scene, f"only {who}: {token}")

    def _claim_reads(self, scene: str, real: list[Exchange], fleet: list[Exchange]) -> None:
        """Compare how a claim or a volume is read, and about how often."""
        self._alike(scene, real, fleet)
        ours, theirs = (Counter(each.token for each in some) for some in (real, fleet))
        for token in ours:
            if token in theirs and abs(ours[token] - theirs[token]) > CLAIM_READS_MAX:
                self._add(scene, f"reads: {token}: real {ours[token]}, fleet {theirs[token]}")

    def _leases(self, scene: str, real: list[Exchange], fleet: list[Exchange]) -> None:
        """Compare one of each kind of renewal, and how far apart they are."""
        for who, some, trace in zip(("real", "fleet"), (real, fleet), self._traces, strict=True):
            renewals = [each for each in some if is_renewal(each)]
            gaps_s = [
                other.at_s - one.at_s
                for one, other in pairwise(renewals)
                if not trace.is_parted(one.at_s, other.at_s)
            ]
            stalls = sum(RENEWAL_MAX_S < gap_s <= STALLED_MAX_S for gap_s in gaps_s)
            max_s = STALLED_MAX_S if stalls <= STALLS_MAX else RENEWAL_MAX_S
            for gap_s in gaps_s:
                if not RENEWAL_MIN_S <= gap_s <= max_s:
                    self._add(scene, f"time: {who} renewed its Lease after {gap_s:.1f} s")
        self._headers_of_all(
            scene, *([each for each in some if is_renewal(each)] for some in (real, fleet))
        )
        sides = zip((real, fleet), self._ledgers, strict=True)
        self._stream(scene, *(once(some, ledger) for some, ledger in sides))

    def _node_stream(self, scene: str, real: list[Exchange], fleet: list[Exchange]) -> None:
        """Compare what a node tells of itself: its images all in all, the rest as it changes.

        The list of images is looked at every 30 s, so that it is told sooner or later.
        """
        told = [
            {(path, value) for each in some for path, value in each.state.items() if is_image(path)}
            for some in (real, fleet)
        ]
        for who, only in (("real", told[0] - told[1]), ("fleet", told[1] - told[0])):
            for path, value in sorted(only, key=str):
                self._add(scene, f"images only {who}: {path} = {words(value)}")
        self._values += len(told[0])
        self._stream(
            scene,
            *(
                once_told([without_ready(without_images(each), ledger) for each in some], ledger)
                for some, ledger in zip((real, fleet), self._ledgers, strict=True)
            ),
        )

    def _node_reads(self, scene: str, real: list[Exchange], fleet: list[Exchange]) -> None:
        for token in {each.token for each in real} & {each.token for each in fleet}:
            some = ([each for each in side if each.token == token] for side in (real, fleet))
            self._headers_of_all(scene, *some)
        ours, theirs = (
            Counter(each.token for each in some if not takes_read(each, trace, ledger))
            for some, trace, ledger in zip((real, fleet), self._traces, self._ledgers, strict=True)
        )
        for token in dict.fromkeys((*ours, *theirs)):
            reads_max = GONE_READS_MAX if token.endswith(" 404") else 0
            if abs(ours[token] - theirs[token]) > reads_max:
                self._add(scene, f"reads: {token}: real {ours[token]}, fleet {theirs[token]}")

    # Pairs

    def _paired(
        self, real: list[Exchange], fleet: list[Exchange]
    ) -> list[tuple[Exchange | None, Exchange | None]]:
        """Pair requests: those of one shape, then those that look alike, then what has one side."""
        pairs: list[tuple[Exchange | None, Exchange | None]] = []
        merged = [0, 0]
        for ours, theirs, equal in aligned(real, fleet, "shape"):
            for one, other, alike in (
                [(ours, theirs, True)] if equal else aligned(ours, theirs, "outline")
            ):
                if alike or [changes(each, real) for each in one] == [
                    changes(each, fleet) for each in other
                ]:
                    pairs += zip(one, other, strict=True)
                    continue
                left = (
                    self._without_moments(one, (real, fleet), 0, merged),
                    self._without_moments(other, (fleet, real), 1, merged),
                )
                for again, others, same in aligned(*left, "token"):
                    if same:
                        pairs += zip(again, others, strict=True)
                    else:
                        pairs += [(each, None) for each in again]
                        pairs += [(None, each) for each in others]
        return pairs

    def _without_moments(
        self,
        some: list[Exchange],
        streams: tuple[list[Exchange], list[Exchange]],
        side: int,
        merged: list[int],
    ) -> list[Exchange]:
        """Leave out statuses that another followed within a moment, so many of an object.

        Two changes within a relist may be told as one, and a busy API server lets a kubelet wait.
        Each value of such a status another one has as well, of whichever node.
        """
        kept = []
        stream = streams[0]
        for each in some:
            at = next(place for place, other in enumerate(stream) if other is each)
            after = next((other for other in stream[at + 1 :] if other.state), None)
            is_moment = (
                after is not None
                and each.state
                and each.token == after.token
                and each.shape != after.shape  # a kubelet does not say a thing twice
                and after.at_s - each.at_s < MERGED_MAX_S
            )
            is_moment = is_moment and not says_alone(each, (*streams[0], *streams[1]))
            if is_moment and merged[side] < MERGED_OF_OBJECT_MAX:
                merged[side] += 1
                self._merged[side] += 1
            else:
                kept.append(each)
        return kept

    def _pair(self, scene: str, real: Exchange, fleet: Exchange, *, has_body: bool = True) -> None:
        """Compare two requests that are meant to be the same one."""
        self._requests += 1
        token = brief(real)
        if real.query != fleet.query:
            self._add(scene, f"query: {token}: real {real.query}, fleet {fleet.query}")
        if real.path != fleet.path:
            self._add(scene, f"path: {token}: real {real.path}, fleet {fleet.path}")
        self._time(scene, token, real, fleet)
        self._headers(scene, real, fleet)
        is_patch = bool(real.state and fleet.state)
        ours, theirs = (
            told_in_patch(each.body) if is_patch else each.body for each in (real, fleet)
        )
        if not has_body:
            ours, theirs = (without_status(each) for each in (ours, theirs))
        self._body(scene, f"body of {token}", ours, theirs)
        if real.state or fleet.state:
            self._body(scene, f"status after {token}", real.state, fleet.state)

    def _time(self, scene: str, token: str, real: Exchange, fleet: Exchange) -> None:
        """Compare when a request came.

        A retry comes after its delay or up to half as much later, and all that follows it comes by
        so much later, too.
        """
        late_s = self._late_s = self._offset(fleet, 1) - self._offset(real, 0)
        limit_s = NODE_OFFSET_MAX_S if scene == NODE_SCOPE else OFFSET_MAX_S
        before = self._before
        if not tells_back_off(real):  # what follows does not follow from it
            self._before = real, fleet
        # It follows what a user asked for, and no retry.
        is_asked_for = real.verb == "delete" and not real.is_of_mirror
        drifts_s = [0.0] if is_asked_for else self._drifts_s
        if any(abs(late_s - drift_s) <= limit_s for drift_s in drifts_s):
            is_edge = abs(late_s) > limit_s - SECOND_S
            if is_edge and before is not None and is_retry(before, (real, fleet)):
                self._drifts_s.append(late_s)  # times that are cut to seconds differ by more
            return
        if tells_back_off(real) and abs(late_s) <= RETRY_MAX_S:
            return
        is_over = before is not None and waits_for_a_look(before[0], real)
        if is_over and abs(late_s) <= limit_s + LOOK_S:
            return
        if before is not None:
            gaps = real.at_s - before[0].at_s, fleet.at_s - before[1].at_s
            jitter_s = JITTER * max(gaps) if min(gaps) > RETRY_MIN_S else 0
            if self._traces[0].backs_off(before[0].at_s, real.at_s):
                jitter_s = max(jitter_s, BACKOFF_S)
            if retries_silently(before[0]):
                jitter_s = max(jitter_s, RETRY_MAX_S)
            if tells_new_mirror(before[0], real):
                jitter_s = max(jitter_s, MIRROR_STATUS_S)
            if is_asked_for:
                jitter_s = 0
            if abs(gaps[1] - gaps[0]) <= limit_s + jitter_s:
                self._drifts_s.append(late_s)
                return
        word = "later" if late_s > 0 else "sooner"
        self._add(scene, f"time: {token}: fleet {word} by {abs(late_s):.1f} s")

    def _offset(self, each: Exchange, side: int) -> float:
        trace = self._traces[side]
        return trace.since_start_s(each.at_s) if each.scene == NODE_SCOPE else each.at_s

    def _headers(self, scene: str, real: Exchange, fleet: Exchange) -> None:
        if not real.headers or not fleet.headers:
            self._unnoted(scene, (real, fleet))
            return
        for name in sorted({*real.headers, *fleet.headers}):
            one, other = (each.headers.get(name, "none") for each in (real, fleet))
            self._values += 1
            if one != other:
                kind = f"{real.verb} {real.resource}"
                self._add(scene, f"header: {kind}: {name}: real {one}, fleet {other}")

    def _unnoted(self, scene: str, some: Iterable[Exchange]) -> None:
        """Leave out the headers of a request that no proxy noted, though it noted others."""
        for each in some:
            if each.headers:
                continue
            for who, trace, ledger in zip(
                ("real", "fleet"), self._traces, self._ledgers, strict=True
            ):
                is_its_own = any(other is each for other in trace.exchanges)
                is_noted = not any(other.headers for other in trace.exchanges)
                if is_its_own and not is_noted and not ledger.takes(UNNOTED):
                    self._add(scene, f"header: of {who} none was noted: {brief(each)}")

    def _body(
        self, scene: str, what: str, real: Mapping[str, Leaf], fleet: Mapping[str, Leaf]
    ) -> None:
        for path in dict.fromkeys((*real, *fleet)):
            self._values += 1
            if path not in fleet:
                self._add(scene, f"only real: {what}: {path} = {words(real[path])}")
            elif path not in real:
                self._add(scene, f"only fleet: {what}: {path} = {words(fleet[path])}")
            elif (difference := self._differs(scene, real[path], fleet[path])) and not (
                path == "count" and what.startswith(PATCHED_EVENT)
            ):
                self._add(scene, f"value: {what}: {path}: {difference}")

    def _differs(self, scene: str, real: Leaf, fleet: Leaf) -> str:
        if is_time(real) and is_time(fleet):
            times = [seconds(str(each)) for each in (real, fleet)]
            limit_s = VALUE_MAX_S
            if scene == NODE_SCOPE:
                limit_s = NODE_OFFSET_MAX_S
                times = [
                    trace.since_start_s(at_s, cut_s=CUT_S)
                    for trace, at_s in zip(self._traces, times, strict=True)
                ]
            late_s = times[1] - times[0]
            drifts_s = (*self._drifts_s, self._late_s)
            is_near = any(abs(late_s - drift_s) <= limit_s for drift_s in drifts_s)
            return "" if is_near else f"fleet {late_s:+.1f} s"
        same = real == fleet and type(real) is type(fleet)
        return "" if same else f"real {words(real)}, fleet {words(fleet)}"


def is_retry(before: tuple[Exchange, Exchange], now: tuple[Exchange, Exchange]) -> bool:
    """Whether requests of both nodes came after the delay of a sync that failed."""
    return all(each.at_s - last.at_s > RETRY_MIN_S for last, each in zip(before, now, strict=True))


def takes_read(read: Exchange, trace: Trace, ledger: Ledger) -> bool:
    """Leave a read of the Node out, if a row allows that."""
    new_s = RENEWAL_MAX_S if read.token == READ_FOR_A_LEASE else REGISTRATION_S
    if trace.since_start_s(read.at_s) <= new_s:
        return ledger.takes(READ_AT_A_START, str(trace.start_before(read.at_s)))
    registers = any(
        0 <= each.at_s - read.at_s < REGISTERS_S
        for each in trace.exchanges
        if each.token.startswith("update csinodes ")
    )
    return registers and ledger.takes(READ_FOR_A_DRIVER)
