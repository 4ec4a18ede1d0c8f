"""A fleet in pods: the StatefulSet that each shard belongs to, asked and scaled in its own cluster.

SIGTERM does not say why a pod ends. A pod that only moves or is upgraded must leave its nodes, for
its successor adopts them; one that is scaled away or deleted with its StatefulSet must remove them.
Its StatefulSet knows: it still wants the pod's ordinal, or it does not.
Source: kubernetes/pkg/controller/statefulset/stateful_set_utils.go, podInOrdinalRange.

The StatefulSet is in the cluster that the pod runs in, which need not be the cluster under test.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from fleet.cluster.api_client import Api, Cluster, Json, Sleep, expect
from fleet.cluster.credentials import ClusterSelection
from fleet.errors import FleetError, SetupError, UsageError
from fleet.profile.option_types import StatefulSet

GONE_CODES = frozenset({403, 404})
"""Answers about a StatefulSet that is deleted: the right to read it goes with its release."""
STOP_POLL_S = 1.0
STOP_S_MAX = 900.0


@contextlib.asynccontextmanager
async def home_api() -> AsyncIterator[Api]:
    """Yield requests to the cluster that this pod runs in. Raises UsageError outside of a pod."""
    credentials = await ClusterSelection(in_cluster=True).load()
    async with Cluster(credentials) as channel:
        yield channel.api("statefulset")


async def check(owner: StatefulSet) -> None:
    """Raise SetupError unless we may ask, so that a refusal later means that it is gone."""
    async with home_api() as api:
        await api.get(owner.path, f"StatefulSet {owner}")


async def will_return(owner: StatefulSet | None, ordinal: int | None) -> bool:
    """Return whether the shard of this ordinal is started again after SIGTERM."""
    if owner is None or ordinal is None:
        return False
    try:
        async with home_api() as api:
            return await is_wanted(api, owner, ordinal)
    except FleetError:
        # No answer: nodes that are left can be removed later, those that are gone have lost pods.
        return True


async def is_wanted(api: Api, owner: StatefulSet, ordinal: int) -> bool:
    """Return whether a StatefulSet has, and will have, a pod of this ordinal."""
    answer = await api.request("GET", owner.path)
    if answer.code in GONE_CODES:
        return False
    return not answer.ok or is_in_range(answer.body, ordinal)


def is_in_range(statefulset: Json, ordinal: int) -> bool:
    """Return whether a StatefulSet that is not being deleted has a pod of this ordinal."""
    if statefulset["metadata"].get("deletionTimestamp"):
        return False
    spec = statefulset["spec"]
    first = int((spec.get("ordinals") or {}).get("start") or 0)
    return first <= ordinal < first + int(spec.get("replicas", 1))


async def stop_pods(text: str, note: Callable[[str], None]) -> None:
    """End the pods of the StatefulSet NAMESPACE/NAME in our own cluster, and wait for it."""
    try:
        owner = StatefulSet.parse(text)
    except ValueError as error:
        raise UsageError(f"--statefulset: {error}") from error
    async with home_api() as api:
        await stop(api, owner, note)


async def stop(
    api: Api,
    owner: StatefulSet,
    note: Callable[[str], None],
    *,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Scale it to zero and wait until its pods have ended; one that is gone needs nothing.

    Raises SetupError if it may not be scaled, or if pods do not end.
    """
    scale = {"spec": {"replicas": 0}}
    answer = await api.request("PATCH", f"{owner.path}/scale", body=scale)
    if answer.code == 404:
        return
    expect(answer, f"cannot scale StatefulSet {owner}")
    waited_s, before = 0.0, -1
    while waited_s < STOP_S_MAX:
        answer = await api.request("GET", owner.path)
        if answer.code == 404:
            return
        found = expect(answer, f"cannot read StatefulSet {owner}")
        pods = int(found.get("status", {}).get("replicas") or 0)
        is_observed = found.get("status", {}).get("observedGeneration") == found["metadata"].get(
            "generation"
        )
        if is_observed and pods == 0:
            return
        if pods != before:
            note(f"waiting for {pods} pods of StatefulSet {owner} to end")
            before = pods
        await sleep(STOP_POLL_S)
        waited_s += STOP_POLL_S
    raise SetupError(f"the pods of StatefulSet {owner} did not end within {STOP_S_MAX:.0f} s")
