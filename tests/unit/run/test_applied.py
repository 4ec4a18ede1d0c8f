"""What a scenario creates and deletes, against an API server in memory."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from world.cluster_fakes import FakeApi, no_sleep

from fleet.cluster.api_client import Answer
from fleet.cluster.leftovers import APPLIED_BY
from fleet.errors import SetupError, UsageError
from fleet.run.applied import Applied, ready_of
from fleet.run.scenario_player import ScenarioPlayer, Stage
from fleet.scenario.scenario import Manifest, Named

RUN = "20261123-010203-abcd"
PODS = "/api/v1/namespaces/default/pods"


class Server(FakeApi):
    """Knows pods; `loses` are paths whose creation gets no answer."""

    def __init__(self) -> None:
        super().__init__()
        self.put("/api/v1", resources=[{"name": "pods", "kind": "Pod", "namespaced": True}])
        self.loses: set[str] = set()
        self.is_gone = False
        self.asked = 0  # since then

    async def request(self, method: str, path: str, **asked: Any) -> Answer:
        if self.is_gone:
            self.asked += 1
            raise SetupError("connection refused")
        answer = await super().request(method, path, **asked)
        if method == "POST" and self.loses & set(self.objects):
            raise asyncio.CancelledError
        return answer

    @property
    def pods(self) -> dict[str, dict[str, Any]]:
        return {
            path.rpartition("/")[2]: each
            for path, each in self.objects.items()
            if path.startswith(PODS)
        }


def applied(server: Server) -> Applied:
    return Applied(server, RUN, sleep=no_sleep)


def pod(name: str, image: str = "a") -> Named:
    manifest: Manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    return Named(manifest | {"spec": {"image": image}}, name)


async def test_what_was_created_is_deleted_and_nothing_else() -> None:
    server = Server()
    server.put(f"{PODS}/theirs")
    ours = applied(server)
    await ours.apply(pod("a"))
    await ours.apply(pod("b"))
    assert server.pods["a"]["metadata"]["labels"] == {APPLIED_BY: RUN}
    with pytest.raises(UsageError, match="theirs exists, and is not this run's"):
        await ours.apply(pod("theirs"))
    server.put(f"{PODS}/b")  # somebody else's
    assert await ours.clean_up() == []
    assert set(server.pods) == {"theirs", "b"}


async def test_the_same_name_is_changed_by_a_later_phase() -> None:
    server = Server()
    ours = applied(server)
    first = await ours.apply(pod("a"))
    second = await ours.apply(pod("a", image="b"))
    assert first.uid == second.uid
    assert await ours.ready() == (0, 1)
    server.objects[f"{PODS}/a"]["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    assert await ours.ready() == (1, 1)
    assert server.objects[f"{PODS}/a"]["spec"] == {"image": "b"}


async def test_what_took_the_place_of_ours_is_not_changed() -> None:
    server = Server()
    ours = applied(server)
    await ours.apply(pod("a"))
    server.put(f"{PODS}/a", spec={})
    with pytest.raises(UsageError, match="Pod a: the UID in the precondition"):
        await ours.apply(pod("a", image="b"))
    assert await ours.clean_up() == []
    assert server.objects[f"{PODS}/a"]["spec"] == {}


async def test_what_an_interrupted_run_may_have_created_is_looked_for() -> None:
    server = Server()
    server.loses.add(f"{PODS}/a")
    ours = applied(server)
    with pytest.raises(asyncio.CancelledError):
        await ours.apply(pod("a"))
    assert await ours.clean_up() == []
    assert not server.pods


async def test_another_process_takes_over_what_was_applied_and_deletes_what_nobody_would() -> None:
    """A shard that is started again goes on with the scenario; churn of before has no end else."""
    api = Server()
    first, again = applied(api), applied(api)
    for name in ("web", "churn-00007"):
        await first.apply(pod(name))
    api.put(f"{PODS}/theirs")
    await again.adopt([pod("web"), pod("later")], [pod("churn-00000")])
    assert set(api.pods) == {"web", "theirs"}
    await again.apply(pod("web", image="b"))
    assert api.pods["web"]["spec"] == {"image": "b"}
    assert await again.clean_up() == []
    assert set(api.pods) == {"theirs"}


async def test_a_server_that_is_gone_is_not_asked_for_each_object() -> None:
    """The run still ends in order, and says what may be left."""
    server, stage_notes = Server(), list[str]()
    ours = applied(server)
    for number in range(50):
        await ours.apply(pod(f"p-{number}"))
    server.is_gone = True
    stage = SimpleNamespace(applied=ours, phase=stage_notes.append, note=stage_notes.append)
    player = cast("ScenarioPlayer", SimpleNamespace(_manifests=[1]))
    told = await ScenarioPlayer.clean_up(player, cast("Stage", stage))
    assert told == "what the scenario applied may be left: connection refused"
    assert stage_notes == ["deleting what the scenario applied"]
    assert server.asked == 1


def test_a_kind_that_the_cluster_does_not_know_is_told() -> None:
    wanted = Named({"apiVersion": "v1", "kind": "Cat", "metadata": {"name": "c"}}, "c")
    with pytest.raises(UsageError, match=r"Cat \(v1\): the cluster does not know this kind"):
        asyncio.run(applied(Server()).apply(wanted))


@pytest.mark.parametrize(
    ("status", "ready"),
    [
        ({}, 0),
        ({"replicas": 2, "updatedReplicas": 2, "readyReplicas": 1}, 1),
        ({"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2}, 2),
        ({"replicas": 3, "updatedReplicas": 1, "readyReplicas": 2}, 0),  # another revision comes
        ({"replicas": 4, "updatedReplicas": 4, "readyReplicas": 4}, 0),  # two are to go
        ({"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "observedGeneration": 6}, 0),
    ],
)
def test_a_workload_is_ready_when_its_controller_is_done(
    status: dict[str, int], ready: int
) -> None:
    deployment = {
        "kind": "Deployment",
        "metadata": {"generation": 7},
        "spec": {"replicas": 2},
        "status": {"observedGeneration": 7, **status},
    }
    assert ready_of({"kind": deployment["kind"]}, deployment) == ready


def test_an_object_that_is_being_deleted_is_waited_for() -> None:
    """It is of the run before, which has been cleaned up just now."""
    server = Server()
    server.put(f"{PODS}/a", metadata={"deletionTimestamp": "x"})
    looks = 0

    async def sleep(_seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            del server.objects[f"{PODS}/a"]

    created = asyncio.run(Applied(server, RUN, sleep=sleep).apply(pod("a")))
    assert server.pods["a"]["metadata"]["uid"] == created.uid
    assert looks == 2


async def test_the_label_of_a_run_alone_makes_no_object_its_own() -> None:
    server = Server()
    server.put(f"{PODS}/a", metadata={"labels": {APPLIED_BY: RUN}})
    ours = applied(server)
    with pytest.raises(UsageError, match="exists, and is not this run's"):
        await ours.apply(pod("a"))
    assert await ours.clean_up() == []
    assert "a" in server.pods
