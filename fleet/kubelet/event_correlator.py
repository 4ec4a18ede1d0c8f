"""EventCorrelator: which events are combined, counted or dropped before they are sent.

Source: client-go/tools/record/events_cache.go: EventAggregator, eventLogger,
EventSourceObjectSpamFilter.
Differs: keys are kept as 64-bit hashes, since an idle node would else hold more event texts than
everything else together.
"""

import struct

from fleet.clock import NS_PER_S
from fleet.k8s.effects import COMBINED
from fleet.k8s.pods import ObjectRef

GROUP_MESSAGES_MAX = 10  # different messages of one kind before they are combined
GROUP_INTERVAL_NS = 600 * NS_PER_S  # defaultAggregateIntervalInSeconds
SPAM_BURST = 25  # defaultSpamBurst, for each source and object
SPAM_REFILL_NS = 300 * NS_PER_S  # one more event per source and object
KEYS_MAX = 4096  # maxLruCacheEntries
COUNT_MAX = (1 << 32) - 1  # of its field in a record
_KEY = struct.Struct("<q")
_SEEN = struct.Struct("<qqI")  # hash of an exact event, first wall time in ns, count


class SeenEvents:
    """The events that were counted, least recently used first.

    In one array of 20 bytes an event: a dict of ints takes 120, and an idle node remembers seven
    events for ever. That one of 4,096 is not there is known after 32 microseconds, of 550 after 4.
    """

    __slots__ = ("_records",)

    def __init__(self) -> None:
        self._records = bytearray()

    def __len__(self) -> int:
        return len(self._records) // _SEEN.size

    def take(self, key: int) -> tuple[int, int]:
        """Take out what is known of an event: its first wall time and its count, 0 if it is new."""
        wanted = _KEY.pack(key)
        at = self._records.find(wanted)
        while at % _SEEN.size and at >= 0:  # the same bytes, but not those of a key
            at = self._records.find(wanted, at + 1)
        if at < 0:
            return 0, 0
        _, first_ns, count = _SEEN.unpack_from(self._records, at)
        del self._records[at : at + _SEEN.size]
        return first_ns, count

    def put(self, key: int, first_ns: int, count: int) -> None:
        """Note an event as the one used last; the one used least recently makes room."""
        if len(self) >= KEYS_MAX:
            del self._records[: _SEEN.size]
        self._records += _SEEN.pack(key, first_ns, min(count, COUNT_MAX))


class _Bucket:
    """Tokens of the spam filter."""

    __slots__ = ("filled_ns", "tokens")

    def __init__(self, now_ns: int) -> None:
        self.tokens = SPAM_BURST
        self.filled_ns = now_ns


class RecentEvents:
    """What is remembered for a while: groups of similar events, and what the spam filter took."""

    __slots__ = ("_buckets", "_groups")

    def __init__(self) -> None:
        self._groups: dict[int, tuple[int, ...]] = {}  # last ns, hashes of the messages
        self._buckets: dict[int, _Bucket] = {}

    def __len__(self) -> int:
        return len(self._groups) + len(self._buckets)

    def group(
        self, about: ObjectRef, reason: tuple[str, bool], message: str, now_ns: int
    ) -> tuple[str, int]:
        """Return the message to send and the key of its count.

        Source: EventAggregator.EventAggregate: the tenth different message within the interval is
        sent as a combined one.
        """
        key = hash((about.kind, about.namespace, about.name, about.uid, reason))
        group = self._groups.get(key, (0,))
        messages = group[1:] if now_ns - group[0] <= GROUP_INTERVAL_NS else ()
        digest = hash(message)
        if digest not in messages:
            if len(messages) >= GROUP_MESSAGES_MAX - 1:
                self._groups[key] = (now_ns, *messages)
                return COMBINED + message, key
            messages = (*messages, digest)
        self._groups[key] = (now_ns, *messages)
        return message, hash((about, reason, digest))

    def admit(self, about: ObjectRef, now_ns: int, *, warning: bool) -> bool:
        """Take one token. Source: EventSourceObjectSpamFilter.Filter."""
        key = hash((about.kind, about.namespace, about.name, about.uid, warning))
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(now_ns)
        refill = (now_ns - bucket.filled_ns) // SPAM_REFILL_NS
        if refill:
            bucket.tokens = min(SPAM_BURST, bucket.tokens + refill)
            bucket.filled_ns += refill * SPAM_REFILL_NS
        if not bucket.tokens:
            return False
        bucket.tokens -= 1
        return True

    def forget(self, now_ns: int) -> None:
        """Drop groups and buckets that would start anew: long silent, or full again.

        New dicts: one that was emptied keeps the room of all it ever held.
        """
        self._groups = {
            key: group
            for key, group in self._groups.items()
            if now_ns - group[0] <= GROUP_INTERVAL_NS
        }
        self._buckets = {
            key: bucket
            for key, bucket in self._buckets.items()
            if bucket.tokens + (now_ns - bucket.filled_ns) // SPAM_REFILL_NS < SPAM_BURST
        }
