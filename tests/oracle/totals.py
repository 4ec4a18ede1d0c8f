"""How many requests each node sent: by verb and resource, of each scene and of the whole run.

Many rows of differences.md allow one node a request more here and there. If that is chance, the
other node has one more elsewhere. A node that sends more of a kind all over is biased.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from oracle.exchange import Exchange, Trace
from oracle.oracle_limits import LIMITS
from oracle.request_streams import is_of_fresh_node

[SHARE] = LIMITS["bias"]
[LEAST] = LIMITS["bias_min"]
[IDLE_DEVIATIONS] = LIMITS["bias_of_idle_reads"]
[GONE_READS_MAX] = LIMITS["reads_of_a_gone_node"]
[BACKOFF_S] = LIMITS["outage_backoff_s"]
GONE = frozenset(LIMITS["reads_of_a_gone_pod"])
BIAS = "all: requests: "
GONE_PODS = "get pods (none)"
"""These are left out, by a row of their own: a kubelet reads a pod that is gone more often."""
GONE_NODES = "get nodes (none)"
READS = "get pods"
IDLE_READS = "get pods that no patch follows"


def kind(each: Exchange) -> str:
    """Return verb and resource; reads that found nothing are a kind of their own."""
    is_miss = each.verb == "get" and each.code in GONE
    return f"{each.verb} {each.resource}{' (none)' if is_miss else ''}"


def counted(exchanges: Iterable[Exchange]) -> Counter[str]:
    """Count requests; a read of which the patch is left out is left out with it."""
    return Counter(kind(each) for each in exchanges if not each.led_to_nothing_told)


def biases(real: Trace, fleet: Trace) -> list[str]:
    """Return a line for each kind of which one node sends too many more in the whole run.

    What may wait for an API server that ended is not counted: when it comes is random. Nor is what
    `looks_before_the_informer` limits by itself.
    """
    ours, theirs = (
        counted(each for each in _apart_from_outages(trace) if not is_of_fresh_node(each))
        for trace in (real, fleet)
    )
    most = max(LEAST, SHARE * max(ours.total(), theirs.total()))
    for counts in (ours, theirs):
        counts[IDLE_READS] = counts.pop(READS, 0) - counts["patch pods/status"]
    return [
        f"requests: {name}: {'real' if ours[name] > theirs[name] else 'fleet'} sends more"
        for name in sorted({*ours, *theirs} - {GONE_PODS})
        if abs(ours[name] - theirs[name]) > max(most, _by_chance(name, ours, theirs, most))
    ]


def _by_chance(name: str, ours: Counter[str], theirs: Counter[str], most: float) -> float:
    """Return the difference that chance explains, in requests: 0 where upstream's order decides.

    One try more to report the status of a Node that is gone is five reads at once.
    Whether a read finds nothing new depends on which of two changes the status manager sees first.
    Of two counts of such rare, independent reads the variance of the difference is their sum.
    """
    if name == GONE_NODES:
        return most + GONE_READS_MAX
    if name != IDLE_READS:
        return 0
    return IDLE_DEVIATIONS * math.sqrt(max(0, ours[name] + theirs[name]))


def _apart_from_outages(trace: Trace) -> list[Exchange]:
    return [
        each
        for each in trace.exchanges
        if not any(
            since_s <= each.at_s <= until_s + BACKOFF_S for since_s, until_s in trace.outages_s
        )
    ]


def totals(real: Trace, fleet: Trace, scenes: Sequence[str]) -> list[str]:
    """Return lines with both totals: of each kind in the run, and of each kind in each scene."""
    ours, theirs = (counted(trace.exchanges) for trace in (real, fleet))
    share = 100 * (ours.total() - theirs.total()) / max(ours.total(), theirs.total(), 1)
    values = (
        sum(len(each.body) + len(each.state) + len(each.headers) for each in trace.exchanges)
        for trace in (real, fleet)
    )
    lines = [
        f"requests: real {ours.total()}, fleet {theirs.total()} ({share:+.1f} % more of real)",
        "values: real {}, fleet {}".format(*values),
    ]
    lines += [
        f"requests: {name}: real {ours[name]}, fleet {theirs[name]}"
        for name in sorted({*ours, *theirs})
    ]
    for scene in scenes:
        counts = [
            counted(each for each in trace.exchanges if each.scene == scene)
            for trace in (real, fleet)
        ]
        told = (
            f"{name} {counts[0][name]}/{counts[1][name]}"
            for name in sorted({*counts[0], *counts[1]})
        )
        lines.append(f"requests of {scene} (real/fleet): {', '.join(told)}")
    return lines
