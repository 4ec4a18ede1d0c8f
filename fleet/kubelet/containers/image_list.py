"""The list of images in the status of a Node: a cache of what the runtime has, read every 30 s.

    a pull, or a deletion --> the next refresh --> the next status tick that finds it different

Source: pkg/kubelet/images/image_gc_manager.go, Start, imageCache; nodestatus/setters.go, Images.
Differs: what a profile preloads is in the first status patch, with an empty cache it would be in
the next one; after a restart of fleet only the images of the pods that are left are known.
"""

from fleet.clock import NS_PER_S
from fleet.k8s.effects import Timer
from fleet.kubelet.turn import Turn

LIST_PERIOD_NS = 30 * NS_PER_S  # image_gc_manager.go, Start: the cache is filled so often
LIST_KEY = "list"
PHASE_KEY = "phase"
ASKED = -1  # a refresh is due, but the phase is not known yet
LIST_KEYS = (LIST_KEY, PHASE_KEY)


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
    if not entry.list_due_ns:
        entry.list_due_ns = ASKED
        turn.arm(turn.now_ns, Timer.IMAGES, PHASE_KEY)  # the kubelet knows its start
    elif entry.list_due_ns != ASKED and entry.list_due_ns <= turn.now_ns:
        _arm(entry.list_due_ns, turn)


def _arm(phase_ns: int, turn: Turn) -> None:
    entry = turn.env.images.node(turn.node)
    assert entry is not None, turn.node
    entry.list_due_ns = turn.now_ns + LIST_PERIOD_NS - (turn.now_ns - phase_ns) % LIST_PERIOD_NS
    turn.arm(entry.list_due_ns, Timer.IMAGES, LIST_KEY)


def on_list_timer(key: str, turn: Turn) -> bool:
    """Refresh the list; return whether the timer was one that counts."""
    entry = turn.env.images.node(turn.node)
    if key == PHASE_KEY:
        if entry is not None and entry.list_due_ns == ASKED:
            _arm(turn.facts.started_ns, turn)
        return False
    if entry is None or entry.list_due_ns <= 0 or turn.now_ns < entry.list_due_ns:
        return False
    entry.listed = entry.present
    return True
