"""What of /metrics is about setting volumes and claims up and taking them down.

Source: pkg/volume/util/metrics.go; pkg/volume/util/operationexecutor; cm/dra/manager.go.
Differs: each step takes the time that it took an idle machine; volumes of claims are not counted,
and a resync that would find nothing is not run, so that it mounts nothing again.
"""

from collections.abc import Sequence
from itertools import groupby

from fleet.kubelet.stats.exposition import Family, steady_lines
from fleet.kubelet.stats.pod_metrics import PLUGINS
from fleet.kubelet.tally import MOUNTED, NodeTally

STEPS = Family(
    "storage_operation_duration_seconds", "[ALPHA] Storage operation duration", "histogram"
)
STEP_TAKES_S = 0.001
MOUNTS = Family(
    "volume_operation_total_seconds",
    "[ALPHA] Storage operation end to end duration in seconds",
    "histogram",
)
MOUNT_TAKES_S = 0.1
"""Most of it is the wait for the loop of the reconciler."""
BOUNDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600)
CLAIMS = Family(
    "dra_operations_duration_seconds",
    "[ALPHA] Latency histogram in seconds for the duration of handling all ResourceClaims "
    "referenced by a pod when the pod starts or stops. Identified by the name of the operation "
    "(PrepareResources or UnprepareResources) and separated by the success of the operation. The "
    "number of failed operations is provided through the histogram's overall count.",
    "histogram",
)
CLAIM_TAKES_S = 0.001
CLAIM_BOUNDS = (
    *(0.1, 0.1534127404634391, 0.23535468936502524, 0.36106407876409946, 0.5539182980610752),
    *(0.849781240983936, 1.303672689737678, 1.9999999999999993, 3.0682548092687805),
    *(4.7070937873005025, 7.221281575281985, 11.078365961221499, 16.995624819678714),
    *(26.07345379475354, 39.99999999999997),
)
"""Source: metrics.go, DRADurationBuckets."""


def volume_texts(tally: NodeTally) -> Sequence[str]:
    """Return the text of both histograms; "" before anything was mounted."""
    rows = sorted(
        (operation, f"kubernetes.io/{PLUGINS[kind]}", count)
        for (operation, kind), count in tally.volumes.items()
        if kind in PLUGINS
    )
    steps: list[str] = []
    mounts: list[str] = []
    for (operation, plugin), found in groupby(rows, key=lambda row: row[:2]):
        count = sum(row[2] for row in found)
        name, _, status = operation.partition("/")
        label = (
            f'migrated="false",operation_name="{name}",status="{status or "success"}",'
            f'volume_plugin="{plugin}"'
        )
        steps += steady_lines(STEPS.name, count, STEP_TAKES_S, BOUNDS, label)
        if operation == MOUNTED:
            label = f'operation_name="overall_{operation}",plugin_name="{plugin}"'
            mounts += steady_lines(MOUNTS.name, count, MOUNT_TAKES_S, BOUNDS, label)
    return _text(STEPS, steps), _text(MOUNTS, mounts)


def claim_text(prepared: int, unprepared: int) -> str:
    """Return how often claims of pods were prepared; every pod is asked for its own, if none."""
    lines: list[str] = []
    for name, count in (("PrepareResources", prepared), ("UnprepareResources", unprepared)):
        if count:
            label = f'is_error="false",operation_name="{name}"'
            lines += steady_lines(CLAIMS.name, count, CLAIM_TAKES_S, CLAIM_BOUNDS, label)
    return _text(CLAIMS, lines)


def _text(family: Family, lines: Sequence[str]) -> str:
    return family.head() + "".join(lines) if lines else ""
