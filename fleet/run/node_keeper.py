"""`--manage`: begin to be the kubelet of Nodes when others make them, end when these are gone.

    matches --looked at--> ours -----------------> served --deleted, or matches no more--> left
                    |----> unsure --25 s later--> ours, or
                    +----> another's: told once, and left alone for as long as the Node is there

The Nodes themselves are never made, deleted or relabelled. What is ours is decided in
`cluster.managed`.
"""

import asyncio
from collections.abc import Callable

from fleet.clock import Draws
from fleet.cluster.api_client import Json
from fleet.cluster.cluster import Cluster
from fleet.cluster.informer import Informer, ObjectWatch
from fleet.cluster.managed import (
    LOOK_AGAIN_S,
    Claim,
    Judged,
    addresses_of,
    judge,
    judge_again,
    node_leases,
)
from fleet.cluster.ownership import NODES
from fleet.cluster.preflight import SHOWN_MAX
from fleet.host.node_host import STEP_S, NodeHost
from fleet.profile.managed_model import Resources
from fleet.wire.api.watch import label_selector


class MatchingNodes(ObjectWatch):
    """The list-watch of all Nodes that match a selector."""

    __slots__ = ("_selector",)

    def __init__(self, selector: str) -> None:
        super().__init__(0, NODES)
        self._selector = label_selector(selector)

    def target(self) -> tuple[bytes, bytes]:
        """Return path and encoded selector."""
        return self.path.encode(), self._selector


class NodeKeeper:
    """Serves the Nodes that match the selector of a run, at most as many as it may."""

    def __init__(
        self,
        cluster: Cluster,
        node_host: NodeHost,
        note: Callable[[str], None],
    ) -> None:
        assert node_host.managed is not None
        self.is_settled = asyncio.Event()
        """All Nodes that matched at first are served, or left alone for a reason that was told."""
        self._api = cluster.api("manage")
        self._host = node_host
        self._served = node_host.managed
        self._note = note
        self._informer = self._new_informer()
        self._known: dict[str, str] = {}  # uid by name, of Nodes that are or were looked at
        self._new: dict[str, None] = {}  # names, to be looked at
        self._unsure = 0  # looks that are to follow
        self._waiting: dict[str, None] = {}  # names, for which there is no room
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Follow the Nodes until cancelled; once more after a failure, as if nothing had been."""
        self._informer = self._new_informer()
        self._known = {name: node.uid for name, node in self._served.items()}
        self._new.clear()
        self._waiting.clear()
        self._unsure = 0
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._informer.run())
                group.create_task(self._look(group))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _new_informer(self) -> Informer:
        settings = self._host.settings
        return Informer(
            self._api,
            MatchingNodes(settings.manage),
            Draws(settings.seed),
            keeps=lambda _node: True,
            on_change=self._on_change,
            on_synced=self._on_synced,
        )

    # ---- what there is ----

    def _on_change(self, name: str, _before: Json | None, now: Json | None) -> None:
        """Take a Node that came, changed or went; one that was made anew is both."""
        uid = now["metadata"]["uid"] if now is not None else ""
        if self._known.get(name, uid) != uid:
            self._leave(name)
        if uid and name not in self._known:
            self._known[name] = uid
            self._new[name] = None
            self._woken.set()

    def _on_synced(self) -> None:
        """Leave what went while nobody looked."""
        for name in self._served.names():
            if name not in self._informer.objects:
                self._leave(name)
        self._woken.set()

    def _leave(self, name: str) -> None:
        self._known.pop(name, None)
        self._new.pop(name, None)
        self._waiting.pop(name, None)
        if self._served.get(name) is None:
            return
        self._host.leave(name)
        if self._waiting:
            self._new[self._waiting.popitem()[0]] = None
            self._woken.set()

    # ---- whose it is ----

    async def _look(self, group: asyncio.TaskGroup) -> None:
        """Look at what is new, all of it at once."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            uids = {name: self._known[name] for name in self._new}
            self._new.clear()
            leases = await node_leases(self._api, uids) if uids else {}
            nodes = self._there(uids)
            judged = {name: judge(node, leases.get(name)) for name, node in nodes.items()}
            unsure = {
                name: uids[name] for name, each in judged.items() if each.claim is Claim.UNSURE
            }
            if unsure:
                self._unsure += 1
                group.create_task(self._look_again(unsure, leases))
            await self._decide(judged, uids)
            self._settle()

    async def _look_again(self, uids: dict[str, str], before: dict[str, Json]) -> None:
        """Look once more, when a kubelet would have renewed its Lease."""
        await asyncio.sleep(LOOK_AGAIN_S)
        now = await node_leases(self._api, uids)
        judged = {
            name: judge_again(node, before.get(name), now.get(name))
            for name, node in self._there(uids).items()
        }
        await self._decide(judged, uids)
        self._unsure -= 1
        self._settle()

    def _there(self, uids: dict[str, str]) -> dict[str, Json]:
        """Return those of some Nodes that are still there, as they are now."""
        nodes = self._informer.objects
        return {name: nodes[name] for name, uid in uids.items() if self._known.get(name) == uid}

    def _settle(self) -> None:
        """See whether all of the first Nodes are decided about."""
        is_open = self._unsure or self._new or not self._informer.is_synced
        if not (is_open or self.is_settled.is_set()):
            self._host.readiness.aim(len(self._served))
            self.is_settled.set()

    async def _decide(self, judged: dict[str, Judged], uids: dict[str, str]) -> None:
        """Serve what is ours, and say what is not."""
        others = {name: each.why for name, each in judged.items() if each.claim is Claim.OTHERS}
        if others:
            self._note(f"{_listed(others)} left alone, and not served")
        ours = [name for name, each in judged.items() if each.claim is Claim.OURS]
        waiting = len(self._waiting)
        while ours:
            free = max(self._host.room(), 0)
            nodes = self._there({name: uids[name] for name in ours[:free]})  # some are gone by now
            del ours[:free]
            for name, node in nodes.items():
                if self._served.is_full:
                    self._waiting[name] = None
                else:
                    self._serve(name, node)
            await asyncio.sleep(STEP_S)
        if len(self._waiting) > waiting:
            limit = self._host.nodes_max
            self._note(f"{len(self._waiting)} more Nodes match than --nodes {limit} lets be served")

    def _serve(self, name: str, node: Json) -> None:
        found = Resources.of(node.get("status") or {})
        self._host.serve(name, node["metadata"]["uid"], found, addresses_of(node))


def _listed(others: dict[str, str]) -> str:
    """Name Nodes that are another's, each with the reason, on one line."""
    shown = ", ".join(f"{name} ({why})" for name, why in list(others.items())[:SHOWN_MAX])
    more = f" and {len(others) - SHOWN_MAX:,} more" if len(others) > SHOWN_MAX else ""
    return f"{len(others):,} Nodes match that are others': {shown}{more}"
