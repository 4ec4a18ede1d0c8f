"""What a scenario creates and deletes, against a server that is a dictionary."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from world.cluster_fakes import FakeApi

from fleet.cluster.api_client import Answer, Api
from fleet.cluster.leftovers import APPLIED_BY
from fleet.errors import SetupError, UsageError
from fleet.run import applied as applied_module
from fleet.run.applied import Applied, ready_of
from fleet.run.scenario_player import ScenarioPlayer, Stage
from fleet.scenario.scenario import Manifest, Named

RUN = "20261123-010203-abcd"
PODS = "/api/v1/namespaces/default/pods"


class Server:
    """Keeps objects by path; `loses` are paths whose creation gets no answer."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.loses: set[str] = set()
        self._uids = 0

    async def request(  # noqa: PLR0911 - one for each method
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        **_: object,
    ) -> Answer:
        if path == "/api/v1":
            pods = {"name": "pods", "kind": "Pod", "namespaced": True}
            return Answer(200, {"resources": [pods, {"name": "pods/log", "kind": "Pod"}]})
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            if path in self.objects:
                return Answer(409, {"message": "exists"})
            self._uids += 1
            self.objects[path] = body | {"metadata": body["metadata"] | {"uid": f"u{self._uids}"}}
            if path in self.loses:
                raise asyncio.CancelledError
            return Answer(201, self.objects[path])
        if query:
            return Answer(200, {"items": list(self.objects.values())})
        found = self.objects.get(path)
        if found is None:
            return Answer(404, {"message": "not found"})
        if method == "DELETE":
            if body["preconditions"]["uid"] != found["metadata"]["uid"]:
                return Answer(409, {"message": "another uid"})
            del self.objects[path]
        if method == "PATCH":
            if body["metadata"].get("uid", found["metadata"]["uid"]) != found["metadata"]["uid"]:
                return Answer(409, {"message": "another uid"})
            found["spec"] = body["spec"]
        return Answer(200, found)


async def at_once(_seconds: float) -> None:
    await asyncio.sleep(0)


def applied(server: Server) -> Applied:
    return Applied(cast("Api", server), RUN, sleep=at_once)


def pod(name: str, image: str = "a") -> Named:
    manifest: Manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    return Named(manifest | {"spec": {"image": image}}, name)


def test_what_was_created_is_deleted_and_nothing_else() -> None:
    server = Server()
    theirs = {"metadata": {"name": "theirs", "uid": "t"}}
    server.objects[f"{PODS}/theirs"] = theirs

    async def play() -> None:
        ours = applied(server)
        await ours.apply(pod("a"))
        await ours.apply(pod("b"))
        assert server.objects[f"{PODS}/a"]["metadata"]["labels"] == {APPLIED_BY: RUN}
        with pytest.raises(UsageError, match="theirs exists, and is not this run's"):
            await ours.apply(pod("theirs"))
        server.objects[f"{PODS}/b"]["metadata"] = {"name": "b", "uid": "somebody else's"}
        assert await ours.clean_up() == []

    asyncio.run(play())
    assert list(server.objects) == [f"{PODS}/theirs", f"{PODS}/b"]


def test_the_same_name_is_changed_by_a_later_phase() -> None:
    server = Server()

    async def play() -> None:
        ours = applied(server)
        first = await ours.apply(pod("a"))
        second = await ours.apply(pod("a", image="b"))
        assert first.uid == second.uid
        assert await ours.ready() == (0, 1)
        server.objects[f"{PODS}/a"]["status"] = {
            "conditions": [{"type": "Ready", "status": "True"}]
        }
        assert await ours.ready() == (1, 1)

    asyncio.run(play())
    assert server.objects[f"{PODS}/a"]["spec"] == {"image": "b"}


def test_what_took_the_place_of_ours_is_not_changed() -> None:
    server = Server()

    async def play() -> None:
        ours = applied(server)
        await ours.apply(pod("a"))
        server.objects[f"{PODS}/a"] = {"metadata": {"name": "a", "uid": "theirs"}, "spec": {}}
        with pytest.raises(UsageError, match="Pod a: another uid"):
            await ours.apply(pod("a", image="b"))
        assert await ours.clean_up() == []

    asyncio.run(play())
    assert server.objects[f"{PODS}/a"]["spec"] == {}


def test_what_an_interrupted_run_may_have_created_is_looked_for() -> None:
    server = Server()
    server.loses.add(f"{PODS}/a")

    async def play() -> None:
        ours = applied(server)
        with pytest.raises(asyncio.CancelledError):
            await ours.apply(pod("a"))
        assert await ours.clean_up() == []

    asyncio.run(play())
    assert not server.objects


def test_another_process_takes_over_what_was_applied_and_deletes_what_nobody_would() -> None:
    """A shard that is started again goes on with the scenario; churn of before has no end else."""
    api = FakeApi()
    api.objects["/api/v1"] = {"resources": [{"name": "pods", "kind": "Pod", "namespaced": True}]}

    async def play() -> None:
        first, again = Applied(api, RUN, sleep=at_once), Applied(api, RUN, sleep=at_once)
        for name in ("web", "churn-00007"):
            await first.apply(pod(name))
        api.put(f"{PODS}/theirs")
        await again.adopt([pod("web"), pod("later")], [pod("churn-00000")])
        assert {path for path in api.objects if path.startswith(PODS)} == {
            f"{PODS}/web",
            f"{PODS}/theirs",
        }
        await again.apply(pod("web", image="b"))
        assert api.objects[f"{PODS}/web"]["spec"] == {"image": "b"}
        assert await again.clean_up() == []

    asyncio.run(play())
    assert [path for path in api.objects if path.startswith(PODS)] == [f"{PODS}/theirs"]


class GoneServer(Server):
    """Answers nothing any more, once it `is_gone`; counts what it was asked since."""

    def __init__(self) -> None:
        super().__init__()
        self.is_gone = False
        self.asked = 0

    async def request(self, method: str, path: str, **asked: Any) -> Answer:
        if self.is_gone:
            self.asked += 1
            raise SetupError("connection refused")
        return await super().request(method, path, **asked)


def test_a_server_that_is_gone_is_not_asked_for_each_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run still ends in order, and says what may be left."""
    server, stage_notes = GoneServer(), list[str]()
    monkeypatch.setattr(applied_module, "GONE_WITHIN_S", 0.0)

    async def play() -> str:
        ours = applied(server)
        for number in range(50):
            await ours.apply(pod(f"p-{number}"))
        server.is_gone = True
        assert len(await ours.clean_up()) == 50
        assert server.asked == 0  # the time was over before the first one
        monkeypatch.setattr(applied_module, "GONE_WITHIN_S", 60.0)
        stage = SimpleNamespace(applied=ours, phase=stage_notes.append, note=stage_notes.append)
        player = cast("ScenarioPlayer", SimpleNamespace(_manifests=[1]))
        return await ScenarioPlayer.clean_up(player, cast("Stage", stage))

    assert asyncio.run(play()) == "what the scenario applied may be left: connection refused"
    assert stage_notes == ["deleting what the scenario applied"]


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
    server.objects[f"{PODS}/a"] = {"metadata": {"name": "a", "uid": "t", "deletionTimestamp": "x"}}
    looks = 0

    async def sleep(_seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            del server.objects[f"{PODS}/a"]

    ours = Applied(cast("Api", server), RUN, sleep=sleep)
    created = asyncio.run(ours.apply(pod("a")))
    assert server.objects[f"{PODS}/a"]["metadata"]["uid"] == created.uid
    assert looks == 2


def test_the_label_of_a_run_alone_makes_no_object_its_own() -> None:
    server = Server()
    server.objects[f"{PODS}/a"] = {
        "metadata": {"name": "a", "uid": "t", "labels": {APPLIED_BY: RUN}}
    }

    async def play() -> None:
        ours = applied(server)
        with pytest.raises(UsageError, match="exists, and is not this run's"):
            await ours.apply(pod("a"))
        assert await ours.clean_up() == []

    asyncio.run(play())
    assert f"{PODS}/a" in server.objects
