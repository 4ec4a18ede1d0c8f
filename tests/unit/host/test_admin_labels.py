"""Labels that NodeRestriction forbids a kubelet: fleet sets them as an administrator would."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from world.cluster_fakes import FakeApi, no_sleep

from fleet.cluster.api_client import Answer
from fleet.cluster.ownership import NODES
from fleet.errors import SetupError
from fleet.host.observed_nodes import TRIES_MAX, AdminLabels
from fleet.k8s.effects import WatchEvent, WatchKind
from fleet.k8s.pods import EventType, NodeView

ROLE = "node-role.kubernetes.io/worker"
WANTED = {ROLE: "", "pool.node-restriction.kubernetes.io/team": "a"}


def seen(api: FakeApi, name: str, kind: EventType = EventType.ADDED) -> WatchEvent:
    metadata = api.objects[f"{NODES}/{name}"]["metadata"]
    view = NodeView(
        name=name,
        uid=metadata["uid"],
        resource_version="1",
        deleting=False,
        pod_cidrs=(),
        labels=dict(metadata.get("labels", {})),
        taints=(),
        conditions=(),
        volumes_attached=(),
    )
    return WatchEvent(WatchKind.NODE, kind, view)


def label(api: FakeApi, *events: Callable[[], WatchEvent]) -> tuple[AdminLabels, list[str]]:
    """Let fleet see some events, one after the other is dealt with; return what it said."""
    labels = AdminLabels(lambda name: WANTED if name.startswith("n-") else {})
    said: list[str] = []

    async def run() -> None:
        task = asyncio.create_task(labels.run(api, said.append))
        for event in events:
            labels.on_event(event())
            await labels.settled()
        task.cancel()

    asyncio.run(run())
    return labels, said


def test_a_node_that_registered_gets_its_labels_once() -> None:
    api = FakeApi()
    for name in ("n-0", "real"):
        api.put(f"{NODES}/{name}", metadata={"labels": {"a": "b"}})

    def taken_away() -> WatchEvent:
        del api.objects[f"{NODES}/n-0"]["metadata"]["labels"][ROLE]
        return seen(api, "n-0")

    def created_again() -> WatchEvent:
        api.put(f"{NODES}/n-0")
        return seen(api, "n-0")

    _, said = label(api, lambda: seen(api, "n-0"), lambda: seen(api, "real"))
    assert api.objects[f"{NODES}/n-0"]["metadata"]["labels"] == {"a": "b", **WANTED}
    assert api.objects[f"{NODES}/real"]["metadata"]["labels"] == {"a": "b"}
    assert not said
    label(api, lambda: seen(api, "n-0"), taken_away)
    assert ROLE not in api.objects[f"{NODES}/n-0"]["metadata"]["labels"]  # by whom it may concern
    label(api, lambda: seen(api, "n-0"), created_again)
    assert api.objects[f"{NODES}/n-0"]["metadata"]["labels"] == WANTED


def test_where_fleet_may_not_change_nodes_they_are_left_out_and_it_is_said_once() -> None:
    api = FakeApi()
    for index in range(5):
        api.put(f"{NODES}/n-{index}")
    api.fail_next = [Answer(403, {"message": "nodes is forbidden"})] * 5

    _, said = label(api, *[lambda at=at: seen(api, f"n-{at}") for at in range(5)])
    assert len(said) == 1
    assert said[0].startswith(f"nodes go without the labels {ROLE}, pool.node-restr")
    assert said[0].endswith("and fleet cannot set either: nodes is forbidden")


@pytest.mark.parametrize("failure", [Answer(503, {}), Answer(429, {}), SetupError("no answer")])
@pytest.mark.parametrize("times", [2, 6])
async def test_a_server_that_is_away_for_a_while_is_asked_again(
    failure: Answer | SetupError, times: int
) -> None:
    """It was taken for a refusal: the labels were left out for the rest of the run."""
    api = FakeApi()
    for name in ("n-0", "n-1"):
        api.put(f"{NODES}/{name}")
    failures, request = [failure] * times, api.request

    async def fails_first(*args: Any, **kwargs: Any) -> Answer:
        if failures:
            failed = failures.pop()
            if isinstance(failed, SetupError):
                raise failed
            return failed
        return await request(*args, **kwargs)

    api.request = fails_first  # type: ignore[method-assign]
    labels = AdminLabels(lambda _name: WANTED)
    said: list[str] = []

    task = asyncio.create_task(labels.run(api, said.append, no_sleep))
    for name in ("n-0", "n-1"):
        labels.on_event(seen(api, name))
    await asyncio.wait_for(labels.settled(), 60)
    task.cancel()
    if times > TRIES_MAX:
        assert len(said) == 1
        assert "fleet cannot set either" in said[0]
        return
    assert not said
    for name in ("n-0", "n-1"):
        assert api.objects[f"{NODES}/{name}"]["metadata"]["labels"] == WANTED


@pytest.mark.parametrize("code", [404, 409])
def test_a_node_that_went_is_nothing_to_speak_of(code: int) -> None:
    api = FakeApi()
    api.put(f"{NODES}/n-0")
    api.fail_next = [Answer(code, {"message": "gone"})]
    _, said = label(api, lambda: seen(api, "n-0"))
    assert not said
