"""Keeps the pauses of Python's garbage collector short while a run holds millions of objects.

    young --20,000 more objects than before--> middle --five times--> old --OLD_MAX--> frozen

A collection looks at all objects of its generation, so a pause is as long as a generation is large:
after all kubelets of 2,000 nodes had restarted it took 220 ms, with generations of a million. What
is frozen is never looked at again. It is freed as usual when nobody refers to it, and a fleet makes
few cycles (`test_pod_churn_leaves_no_garbage`).
"""

import gc

YOUNG_MAX = 20_000
"""700, Python's own, would look at every node's objects for nothing."""
TIMES = 4
OLD_MAX = 100_000
_PYTHONS = gc.get_threshold()


def begin() -> None:
    """Keep pauses short from now on."""
    gc.set_threshold(YOUNG_MAX, TIMES, 50)
    gc.callbacks.append(_freeze)


def end() -> None:
    """Let Python collect as it does by itself, all objects."""
    gc.callbacks.remove(_freeze)
    gc.set_threshold(*_PYTHONS)
    gc.unfreeze()


def _freeze(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] and len(gc.get_objects(generation=2)) > OLD_MAX:
        gc.freeze()
