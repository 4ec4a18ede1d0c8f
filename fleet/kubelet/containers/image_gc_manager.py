"""The images of a node: their list in the Node's status, and what is deleted when the disk is full.

    a pull, or a deletion --> the next refresh --> the next status tick that finds it different

The list is a cache of what the runtime has, read every 30 s. Every five minutes the kubelet looks
at the disk; above the high threshold it deletes unused images, the longest unused first, until the
low one is reached. A look that would find nothing is not armed.
Source: pkg/kubelet/images/image_gc_manager.go, Start, imageCache, GarbageCollect, freeSpace,
freeOldImages; pkg/kubelet/kubelet.go, StartGarbageCollection; nodestatus/setters.go, Images.
Differs: what a profile preloads is in the first status patch, with an empty cache it would be in
the next one; after a restart of fleet only the images of the pods that are left are known.
"""

from collections.abc import Iterable
from typing import NamedTuple

from fleet.clock import NS_PER_S
from fleet.k8s.effects import NodeId, Timer
from fleet.kubelet.containers.stats_provider import system_usage
from fleet.kubelet.environment import Environment
from fleet.kubelet.events import Reason
from fleet.kubelet.turn import Turn

GC_PERIOD_NS = 300 * NS_PER_S  # ImageGCPeriod
GC_KEY = "gc"
LIST_PERIOD_NS = 30 * NS_PER_S  # image_gc_manager.go, Start: the cache is filled so often
LIST_KEY = "list"
_STREAM_GC = 0x1A9E
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


NodeEvent = tuple[Reason, str]


def on_kubelet_start(turn: Turn) -> None:
    """Read the images that are there, and plan the next look at the disk.

    What the kubelet before this one had planned ended with it. Source: Start.
    """
    entry = turn.env.images.node(turn.node)
    if entry is not None:
        entry.listed = entry.present
        entry.list_due_ns = entry.gc_due_ns = 0
    by_age = turn.env.fidelity.pulls_images and turn.env.model.kubelet.image_maximum_gc_age_ns
    if entry is not None or by_age:
        arm_image_gc(turn)


def arm_image_gc(turn: Turn, *, is_watched: bool = False) -> None:
    """Have the images collected at the kubelet's next look, if there may be a reason to.

    `is_watched`: what pods write may fill the disk too. Else looks begin with half of the high
    threshold, so that what is not counted does not matter.
    """
    policy = turn.env.model.kubelet
    if policy.image_gc_high_threshold_percent == 100 and not policy.image_maximum_gc_age_ns:
        return
    percent = _usage_percent(*image_disk(turn.env, turn.node))
    if (
        not (policy.image_maximum_gc_age_ns or is_watched)
        and percent < policy.image_gc_high_threshold_percent // 2
    ):
        return
    entry = turn.env.images.entry(turn.node)
    if entry.gc_due_ns <= turn.now_ns:
        entry.gc_due_ns = _next_look_ns(turn.now_ns, turn)
        turn.arm(entry.gc_due_ns, Timer.IMAGES, GC_KEY)


def image_disk(env: Environment, node: NodeId, used: int | None = None) -> tuple[int, int]:
    """Return capacity and available bytes of the file system that holds a node's images.

    `used` is all that was measured there; None: the images, and the most that the machine takes.
    """
    capacity = env.model.image_disk_bytes
    if used is None:
        used = env.images.used_bytes(node) + system_usage(env.model).ephemeral.ceiling()
    return capacity, max(capacity - used, 0)


def garbage_collect(
    in_use: Iterable[str], turn: Turn, used: int | None = None
) -> tuple[int, tuple[NodeEvent, ...]]:
    """Look at the disk once; return the bytes that were freed, and the events of the Node.

    `in_use` are the full names of the images that containers have, `used` is as of `image_disk`.
    A look that fails is one event, and a second one if the look before failed too.
    """
    entry = turn.env.images.entry(turn.node)
    entry.gc_due_ns = 0
    freed, failure = _collect(tuple(in_use), used, turn)
    if failure is None:
        return freed, ()
    look, last = turn.now_ns // GC_PERIOD_NS + 1, entry.gc_failed
    entry.gc_failed = look
    again = ((Reason.IMAGE_GC_FAILED, failure[1]),) if last == look - 1 else ()
    return freed, (failure, *again)


def on_gc_timer(in_use: Iterable[str], used: int | None, turn: Turn) -> tuple[NodeEvent, ...]:
    """Look at the disk if it is time, and plan the next look; return the events of the Node."""
    entry = turn.env.images.node(turn.node)
    if entry is None or not entry.gc_due_ns or turn.now_ns < entry.gc_due_ns:
        return ()
    freed, events = garbage_collect(in_use, turn, used)
    if freed:
        arm_image_list(turn)
    arm_image_gc(turn, is_watched=used is not None)
    return events


def delete_unused_images(in_use: Iterable[str], turn: Turn) -> int:
    """Delete every image that nothing uses, as eviction asks; return the bytes it freed.

    Source: DeleteUnusedImages.
    """
    order = _eviction_order(tuple(in_use), turn)
    return _free_space(order, 1 << 62, turn)


def _collect(in_use: tuple[str, ...], used: int | None, turn: Turn) -> tuple[int, NodeEvent | None]:
    policy = turn.env.model.kubelet
    order = _eviction_order(in_use, turn)
    freed, age_max_ns = 0, policy.image_maximum_gc_age_ns
    if age_max_ns and turn.now_ns - turn.facts.started_ns > age_max_ns:  # freeOldImages
        old = [each for each in order if turn.now_ns - each.used_ns > age_max_ns]
        order = [each for each in order if each not in old]
        for each in old:
            freed += turn.env.images.image(each.number).size_bytes
            turn.env.images.remove(turn.node, each.number)
    capacity, available = image_disk(turn.env, turn.node, None if used is None else used - freed)
    if not capacity:
        return freed, (Reason.INVALID_DISK_CAPACITY, "invalid capacity 0 on image filesystem")
    percent = _usage_percent(capacity, available)
    if percent < policy.image_gc_high_threshold_percent:
        return freed, None
    wanted = capacity * (100 - policy.image_gc_low_threshold_percent) // 100 - available
    got = _free_space(order, wanted, turn)
    if got >= wanted:
        return freed + got, None
    text = turn.env.model.release.space_text.format(
        used=percent, capacity=format_size(capacity), wanted=wanted, freed=got
    )
    return freed + got, (Reason.FREE_DISK_SPACE_FAILED, text)


class _Candidate(NamedTuple):
    """An image that may be deleted; they sort as upstream's byLastUsedAndDetected."""

    used_ns: int
    seen_ns: int
    number: int


def _eviction_order(in_use: tuple[str, ...], turn: Turn) -> list[_Candidate]:
    """Return the unused images, those first that were used last the longest ago.

    The kubelet notices an image, and its use, only when it looks. Source: imagesInEvictionOrder.
    """
    entry = turn.env.images.node(turn.node)
    used = turn.env.images.numbers_of(turn.node, in_use)
    found = []
    for number in turn.env.images.numbers(turn.node):
        if number in used or turn.env.images.image(number).pinned:
            continue
        seen_ns = used_ns = 0
        if entry is not None:
            pulled_ns = entry.seen_ns.get(number, 0)
            seen_ns = min(_next_look_ns(pulled_ns, turn), turn.now_ns) if pulled_ns else 0
            gone_ns = entry.used_ns.get(number, 0)
            last_ns = _next_look_ns(gone_ns, turn) - GC_PERIOD_NS
            used_ns = last_ns if gone_ns and last_ns >= pulled_ns else 0
        found.append(_Candidate(used_ns, seen_ns, number))
    return sorted(found)


def _free_space(order: list[_Candidate], wanted: int, turn: Turn) -> int:
    """Delete images until enough is free; return how much was freed. Source: freeSpace."""
    store, age_min_ns = turn.env.images, turn.env.model.kubelet.image_minimum_gc_age_ns
    freed = 0
    for each in order:
        if turn.now_ns - each.seen_ns < age_min_ns:
            continue  # it may be about to be used
        freed += store.image(each.number).size_bytes
        store.remove(turn.node, each.number)
        if freed >= wanted:
            break
    return freed


def _usage_percent(capacity: int, available: int) -> int:
    return 100 - available * 100 // capacity if capacity else 100


def _next_look_ns(after_ns: int, turn: Turn) -> int:
    """Return the first look after an instant."""
    phase_ns = int(turn.env.draws.uniform(turn.node, _STREAM_GC, 0) * GC_PERIOD_NS)
    return after_ns + GC_PERIOD_NS - (after_ns - phase_ns) % GC_PERIOD_NS


def format_size(size_bytes: int) -> str:
    """Print a size as image_gc_manager.go does, formatSize."""
    for unit, name in _UNITS:
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} B"


def changed_images(turn: Turn) -> bytes:
    """Return the `images` of a Node's status if they differ from what was reported, else b"".

    Source: pkg/kubelet/nodestatus/setters.go, Images.
    """
    images = turn.env.images
    entry = images.node(turn.node)
    if entry is None or entry.listed == entry.reported:
        return b""
    listed = images.status_json(entry.listed)
    return b"" if listed == images.status_json(entry.reported) else listed


def on_images_reported(status_json: bytes, turn: Turn) -> None:
    """Note that the server took the images of a Node's status, if they are still those."""
    images = turn.env.images
    entry = images.node(turn.node)
    if entry is not None and images.status_json(entry.listed) in status_json:
        entry.reported = entry.listed


def arm_image_list(turn: Turn) -> None:
    """Have the list behind the node status refreshed when it is time: every 30 s since the start.

    Source: images/image_gc_manager.go, Start.
    """
    entry = turn.env.images.node(turn.node)
    assert entry is not None, turn.node
    if entry.list_due_ns <= turn.now_ns:
        past_ns = (turn.now_ns - turn.facts.started_ns) % LIST_PERIOD_NS
        entry.list_due_ns = turn.now_ns + LIST_PERIOD_NS - past_ns
        turn.arm(entry.list_due_ns, Timer.IMAGES, LIST_KEY)


def on_list_timer(turn: Turn) -> bool:
    """Refresh the list; return whether the timer was one that counts."""
    entry = turn.env.images.node(turn.node)
    if entry is None or not entry.list_due_ns or turn.now_ns < entry.list_due_ns:
        return False
    entry.listed = entry.present
    return True
