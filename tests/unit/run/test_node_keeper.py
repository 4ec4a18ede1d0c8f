"""Which Nodes of others a run with --manage begins to serve, and when it leaves them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from world.cluster_fakes import FakeApi
from world.virtual_loop import in_virtual_time

from fleet.cluster.api_client import Cluster
from fleet.cluster.cleanup import NODE_LEASES
from fleet.cluster.managed import EVENTS, LOOK_AGAIN_S
from fleet.cluster.ownership import NODES
from fleet.host.managed_nodes import ManagedNodes
from fleet.host.node_host import NodeHost
from fleet.k8s.effects import NodeId
from fleet.k8s.holds import Hold
from fleet.k8s.well_known import MANAGED_ANNOTATION
from fleet.profile.node_model import Resources
from fleet.run.node_keeper import NodeKeeper
from fleet.wire.http2.messages import Request, Response, StreamOpened

Json = dict[str, Any]
NODES_MAX = 2
LOST = Response(0, b"", 0, 0)


class WatchedApi(FakeApi):
    """Shows the Nodes that match, first those that there are, then what becomes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[str, Json] = {}
        self.selectors: list[bytes] = []
        self._events: asyncio.Queue[bytes | Response] = asyncio.Queue()
        self._leases: asyncio.Queue[bytes] = asyncio.Queue()
        self._version = 0

    async def stream(self, request: Request) -> AsyncGenerator[StreamOpened | bytes | Response]:
        if request.path.startswith(NODE_LEASES.encode()):
            yield StreamOpened(0, 0)
            while True:
                yield await self._leases.get()
        self.selectors.append(request.path)
        self._events = asyncio.Queue()
        yield StreamOpened(0, 0)
        for node in list(self.nodes.values()):
            yield _event("ADDED", node)
        notes = {"k8s.io/initial-events-end": "true"}
        meta = {"resourceVersion": str(self._version), "annotations": notes}
        yield _event("BOOKMARK", {"metadata": meta})
        while True:
            found = await self._events.get()
            yield found
            if isinstance(found, Response):
                return

    def make(self, name: str, *, boot: str = "", **metadata: object) -> None:
        """Create a Node; one of its name is gone then, of which nobody is told."""
        self._version += 1
        uid = f"uid-{self._version}"
        meta = {"name": name, "uid": uid, "resourceVersion": str(self._version), **metadata}
        addresses = [{"type": "InternalIP", "address": "10.0.0.1"}]
        capacity = {"cpu": "3", "memory": "5Gi", "pods": "17"}
        status = {"capacity": capacity, "allocatable": capacity, "addresses": addresses}
        node = {"metadata": meta, "status": {**status, "nodeInfo": {"bootID": boot}}}
        self.nodes[name] = node
        self._events.put_nowait(_event("ADDED", node))

    def take(self, name: str) -> None:
        """Delete a Node."""
        self._events.put_nowait(_event("DELETED", self.nodes.pop(name)))

    def renew(self, name: str, times: int = 1) -> None:
        """Have another kubelet renew the Lease of a Node's name."""
        self.write_lease(name, holderIdentity=name, renewTime=str(times))

    def write_lease(self, name: str, **spec: str) -> None:
        """Write the Lease of a Node's name, and show it to whoever watches."""
        meta = {"name": name, "namespace": "kube-node-lease", "uid": "l"}
        lease = self.put(f"{NODE_LEASES}/{name}", metadata=meta, spec=spec)
        self._leases.put_nowait(_event("MODIFIED", lease))

    def lose(self) -> None:
        """Lose the connection of the watch."""
        self._events.put_nowait(LOST)


def _event(kind: str, node: Json) -> bytes:
    return orjson.dumps({"type": kind, "object": node}) + b"\n"


class Host:
    """Serves Nodes, and notes which."""

    nodes_max = NODES_MAX

    def __init__(self) -> None:
        self.managed = ManagedNodes(NODES_MAX)
        self.settings = SimpleNamespace(manage="pool=a", seed=1)
        self.readiness = SimpleNamespace(aim=self._aim)
        self.free = 10
        self.aimed: list[int] = []
        self.holds: dict[str, Hold] = {}
        self.story: list[str] = []
        self._numbers = 0

    def _aim(self, nodes: int) -> None:
        self.aimed.append(nodes)

    def room(self) -> int:
        return self.free

    def serve(self, name: str, found: Resources, address: str, hold: Hold) -> None:
        assert (address, dict(found.capacity)["cpu"]) == ("10.0.0.1", "3")
        self.managed.add(name, hold.uid, NodeId(self._numbers))
        self.holds[name] = hold
        self._numbers += 1
        self.story.append(f"serve {name}")

    def leave(self, name: str) -> None:
        self.managed.remove(name)
        self.story.append(f"leave {name}")

    def lose(self, name: str, why: str) -> None:
        served = self.managed.by_name.get(name)
        assert served is not None
        assert self.managed.on_lost is not None
        self.leave(name)
        self.managed.on_lost(name, served.uid, why)

    def is_renewed_by_others(self, name: str, version: str, renewed: str) -> bool:
        return self.holds[name].is_renewed_by_others(renewed, version, "0")


class Keeping:
    """A keeper at work, in virtual time."""

    def __init__(self) -> None:
        self.api, self.host = WatchedApi(), Host()
        self.notes: list[str] = []
        cluster = SimpleNamespace(api=lambda _purpose: self.api)
        self.keeper = NodeKeeper(
            cast("Cluster", cluster), cast("NodeHost", self.host), self.notes.append
        )

    async def go_on(self, seconds: float = 2) -> list[str]:
        """Let time go by; return what was served and left meanwhile."""
        self.host.story.clear()
        await asyncio.sleep(seconds)
        return list(self.host.story)


Story = Callable[[Keeping], Coroutine[Any, Any, None]]


def play(story: Story, runs: int = 1) -> None:
    """Tell a story while a keeper runs, so often: each run ends as a failure ends it."""

    async def all_of_it() -> None:
        keeping = Keeping()
        for _ in range(runs):
            running = asyncio.create_task(keeping.keeper.run())
            await story(keeping)
            assert not running.done(), running
            running.cancel()
            await asyncio.wait({running})

    in_virtual_time(all_of_it())


def told(story: Story) -> Callable[[], None]:
    """Make a test of a story."""
    return lambda: play(story)


@told
async def test_nodes_are_served_as_they_come_and_left_as_they_go(keeping: Keeping) -> None:
    api = keeping.api
    assert not keeping.keeper.is_settled.is_set()
    assert await keeping.go_on() == []
    assert keeping.keeper.is_settled.is_set()
    assert keeping.host.aimed == [0]
    assert b"labelSelector=pool%3Da" in api.selectors[0]
    api.make("n-0")
    assert await keeping.go_on() == ["serve n-0"]
    api.take("n-0")
    assert await keeping.go_on() == ["leave n-0"]
    api.make("n-0")
    assert await keeping.go_on() == ["serve n-0"]
    api.make("n-0")  # nobody saw it go
    assert await keeping.go_on() == ["leave n-0", "serve n-0"]
    assert keeping.notes == []
    assert keeping.host.aimed == [0], "what comes later is no part of the bring-up"


@told
async def test_what_goes_while_nobody_looks_is_left_and_the_rest_goes_on(keeping: Keeping) -> None:
    api = keeping.api
    for name in ("n-0", "n-1"):
        api.make(name)
    assert sorted(await keeping.go_on()) == ["serve n-0", "serve n-1"]
    api.lose()
    del api.nodes["n-0"]
    assert await keeping.go_on(60) == ["leave n-0"]


def test_a_keeper_that_begins_anew_serves_nobody_twice() -> None:
    async def story(keeping: Keeping) -> None:
        api = keeping.api
        if not api.nodes:
            for name in ("n-0", "n-1"):
                api.make(name)
            assert len(await keeping.go_on()) == 2
            del api.nodes["n-0"]
            return
        assert await keeping.go_on() == ["leave n-0"]
        assert [*keeping.host.managed.by_name] == ["n-1"]

    play(story, runs=2)


@told
async def test_a_node_of_another_is_told_once_and_left_alone(keeping: Keeping) -> None:
    api = keeping.api
    api.renew("n-0")
    api.make("n-0")
    api.make("n-1", labels={"fleet.emulator/run": "r1"})
    assert await keeping.go_on(60) == []
    [told] = keeping.notes
    assert told.startswith("2 Nodes match that are others': n-0 (its Lease is held by n-0), ")
    assert told.endswith("n-1 (of run r1 of fleet) left alone, and not served")
    api.lose()
    assert await keeping.go_on(60) == []
    assert len(keeping.notes) == 1
    assert keeping.host.aimed == [0]
    api.take("n-1")
    api.make("n-1")
    assert await keeping.go_on() == ["serve n-1"]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"holderIdentity": "n-0", "renewTime": "theirs"}, "another kubelet renews its Lease"),
        ({"holderIdentity": "else", "renewTime": "ours"}, "its Lease is held by else"),
    ],
)
def test_a_node_whose_lease_another_writes_is_left_at_once(spec: dict[str, str], why: str) -> None:
    """It is told once, on the terminal and by an event, and not looked at again."""

    async def story(keeping: Keeping) -> None:
        api = keeping.api
        for number in range(3):
            api.make(f"n-{number}")
        assert sorted(await keeping.go_on()) == ["serve n-0", "serve n-1"]
        keeping.notes.clear()
        mark = {MANAGED_ANNOTATION: "true", "theirs": "kept"}
        api.put(f"{NODES}/n-0", metadata={"uid": "uid-1", "annotations": mark})
        keeping.host.holds["n-0"] = Hold("uid-1", "ours")
        api.write_lease("n-0", holderIdentity="n-0", renewTime="ours")
        assert await keeping.go_on() == []
        api.write_lease("n-0", **spec)
        assert await keeping.go_on(0.5) == ["leave n-0", "serve n-2"], "at once; another may come"
        assert keeping.notes == [f"Node n-0 left to its own kubelet: {why}"]
        assert api.objects[f"{NODES}/n-0"]["metadata"]["annotations"] == {"theirs": "kept"}
        [event] = [each for path, each in api.objects.items() if path.startswith(EVENTS)]
        assert event["involvedObject"]["uid"] == "uid-1"
        assert event["message"].endswith(why)
        api.write_lease("n-0", **spec)
        api.lose()
        assert await keeping.go_on(60) == []
        assert len(keeping.notes) == 1

    play(story)


@pytest.mark.parametrize("is_renewed", [False, True])
def test_who_is_not_sure_looks_again(*, is_renewed: bool) -> None:
    """A machine may be about to make its Lease; the bring-up waits for that."""

    async def story(keeping: Keeping) -> None:
        keeping.api.make("n-0", boot="a-machine")
        assert await keeping.go_on(LOOK_AGAIN_S - 2) == []
        assert not keeping.keeper.is_settled.is_set()
        if is_renewed:
            keeping.api.renew("n-0")
        assert await keeping.go_on(4) == ([] if is_renewed else ["serve n-0"])
        assert keeping.keeper.is_settled.is_set()
        assert keeping.host.aimed == [0 if is_renewed else 1]
        others = ["1 Nodes match that are others': n-0 (another kubelet renews its Lease)"]
        assert [each.partition(" left")[0] for each in keeping.notes] == others * is_renewed

    play(story)


@told
async def test_who_goes_before_the_second_look_is_not_served(keeping: Keeping) -> None:
    keeping.api.make("n-0", boot="a-machine")
    assert await keeping.go_on(5) == []
    keeping.api.take("n-0")
    assert await keeping.go_on(60) == []
    assert keeping.keeper.is_settled.is_set()
    assert keeping.host.aimed == [0]


@told
async def test_no_more_are_served_than_may_be_and_who_waits_takes_the_next_place(
    keeping: Keeping,
) -> None:
    api = keeping.api
    for number in range(4):
        api.make(f"n-{number}")
    assert sorted(await keeping.go_on()) == ["serve n-0", "serve n-1"]
    assert keeping.notes == ["2 more Nodes match than --nodes 2 lets be served"]
    assert keeping.host.aimed == [2]
    api.take("n-3")  # it waited
    assert await keeping.go_on() == []
    api.take("n-0")
    assert await keeping.go_on() == ["leave n-0", "serve n-2"]
    assert len(keeping.notes) == 1


@told
async def test_a_busy_server_is_spared_and_who_goes_meanwhile_is_not_served(
    keeping: Keeping,
) -> None:
    keeping.host.free = 0
    keeping.api.make("n-0")
    keeping.api.make("n-1")
    assert await keeping.go_on() == []
    keeping.api.take("n-0")
    await asyncio.sleep(0.1)
    keeping.host.free = 1
    assert await keeping.go_on() == ["serve n-1"]


def test_a_failure_ends_the_keeper_with_its_own_reason() -> None:
    class UnusableError(Exception):
        pass

    async def story() -> None:
        def fail(_method: str, _path: str) -> None:
            raise UnusableError

        keeping = Keeping()
        keeping.api.before_request = fail
        running = asyncio.create_task(keeping.keeper.run())
        await asyncio.sleep(1)
        keeping.api.make("n-0")
        with pytest.raises(UnusableError):
            await running

    in_virtual_time(story())
