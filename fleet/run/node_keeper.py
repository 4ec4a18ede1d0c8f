"""`--manage`: begin to be the kubelet of Nodes when others make them, end when these are gone.

    matches --looked at--> ours -----------------> served --deleted, or matches no more--> left
                    |----> unsure --25 s later--> ours, or      +--another kubelet comes--+
                    |                                                                     v
                    +----> another's: named once, and left alone for as long as the Node is there

Another kubelet shows by the Lease, which is watched here, and by a conflict of a renewal or the
Node's nodeInfo, which the node's own kubelet sees (`objects.holds`).
The Nodes themselves are never made, deleted or relabelled. What is ours is decided in
`cluster.managed`.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from fleet.clock import Draws
from fleet.cluster import managed
from fleet.cluster.api_client import Cluster, Json
from fleet.cluster.cleanup import NODE_LEASES
from fleet.cluster.identity import LEASE_NAMESPACE
from fleet.cluster.informer import Informer, ObjectWatch
from fleet.cluster.ownership import NODES, first_of
from fleet.cluster.preflight import SHOWN_MAX
from fleet.errors import SetupError
from fleet.host.node_host import STEP_S, NodeHost
from fleet.k8s.holds import RENEWED
from fleet.profile.node_model import Resources
from fleet.wire.api.watch import label_selector

log = logging.getLogger(__name__)


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

    def __init__(self, cluster: Cluster, node_host: NodeHost, note: Callable[[str], None]) -> None:
        assert node_host.managed is not None
        self.is_settled = asyncio.Event()
        """All Nodes that matched at first are served, or left alone for a known reason."""
        self._api = cluster.api("manage")
        self._host = node_host
        self._served = node_host.managed
        self._note = note
        self._informer: Informer  # made by `run`, as the next one
        self._leases: Informer
        node_host.managed.on_lost = self._on_lost
        self._known: dict[str, str] = {}  # uid by name, of Nodes that are or were looked at
        self._new: dict[str, None] = {}  # names, to be looked at
        self._unsure = 0  # looks that are to follow
        self._waiting: dict[str, None] = {}  # names, for which there is no room
        self._woken = asyncio.Event()
        self._lost: asyncio.Queue[tuple[str, str, str]] = asyncio.Queue()  # name, uid, why

    async def run(self) -> None:
        """Follow the Nodes until cancelled; once more after a failure, as if nothing had been."""
        settings = self._host.settings
        self._informer = Informer(
            self._api,
            MatchingNodes(settings.manage),
            Draws(settings.seed),
            keeps=lambda _node: True,
            on_change=self._on_change,
            on_synced=self._on_synced,
        )
        self._leases = Informer(
            self._api,
            ObjectWatch(1, NODE_LEASES),
            Draws(settings.seed),
            keeps=lambda lease: lease["metadata"]["name"] in self._served.by_name,
            on_change=self._on_lease,
            on_synced=lambda: None,
        )
        self._known = {name: node.uid for name, node in self._served.by_name.items()}
        self._new.clear()
        self._waiting.clear()
        self._unsure = 0
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._informer.run())
                group.create_task(self._leases.run())
                group.create_task(self._look(group))
                group.create_task(self._tell_of_lost())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    # ---- what there is ----

    def _on_change(self, name: str, _before: Json | None, now: Json | None) -> None:
        """Take a Node that came, changed or went; one that was made again is both."""
        uid = now["metadata"]["uid"] if now is not None else ""
        if self._known.get(name, uid) != uid:
            self._leave(name)
        if uid and name not in self._known:
            self._known[name] = uid
            self._new[name] = None
            self._woken.set()

    def _on_synced(self) -> None:
        """Leave what went while nobody looked."""
        for name in tuple(self._served.by_name):
            if name not in self._informer.objects:
                self._leave(name)
        self._woken.set()

    def _leave(self, name: str) -> None:
        self._known.pop(name, None)
        self._new.pop(name, None)
        self._waiting.pop(name, None)
        if name in self._served.by_name:
            self._host.leave(name)
            self._on_left(name)

    def _on_left(self, name: str) -> None:
        """Give the place of a Node that was served to the next one."""
        self._leases.objects.pop(f"{LEASE_NAMESPACE}/{name}", None)
        if self._waiting:
            self._new[self._waiting.popitem()[0]] = None
            self._woken.set()

    def _on_lease(self, _key: str, _before: Json | None, now: Json | None) -> None:
        """Leave a Node at once if somebody else has written its Lease."""
        if now is None:
            return
        metadata, spec = now["metadata"], now.get("spec") or {}
        name, holder = metadata["name"], spec.get("holderIdentity") or ""
        version, renewed = metadata["resourceVersion"], spec.get("renewTime") or ""
        if holder not in {"", name}:
            self._host.lose(name, f"its Lease is held by {holder}")
        elif self._host.is_renewed_by_others(name, version, renewed):
            self._host.lose(name, RENEWED)

    def _on_lost(self, name: str, uid: str, why: str) -> None:
        """Learn that a Node was left to another kubelet; it is not looked at again."""
        self._note(f"Node {name} left to its own kubelet: {why}")
        self._lost.put_nowait((name, uid, why))
        self._on_left(name)

    async def _tell_of_lost(self) -> None:
        """Leave an event on each Node that was left, one after another."""
        while True:
            name, uid, why = await self._lost.get()
            try:
                at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                await managed.leave_to_others(self._api, name, uid, why, at)
            except SetupError as error:
                log.warning("Node %s keeps fleet's mark, or has no event: %s", name, error)

    # ---- whose it is ----

    async def _look(self, group: asyncio.TaskGroup) -> None:
        """Look at what is new, all of it at once."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            uids = {name: self._known[name] for name in self._new}
            self._new.clear()
            leases = await managed.node_leases(self._api, uids) if uids else {}
            nodes = self._there(uids)
            judged = {name: managed.judge(node, leases.get(name)) for name, node in nodes.items()}
            unsure = {
                name: uids[name]
                for name, each in judged.items()
                if each.claim is managed.Claim.UNSURE
            }
            if unsure:
                self._unsure += 1
                group.create_task(self._look_again(unsure, leases))
            await self._decide(judged, uids, leases)
            self._settle()

    async def _look_again(self, uids: dict[str, str], before: dict[str, Json]) -> None:
        """Look once more, when a kubelet would have renewed its Lease."""
        await asyncio.sleep(managed.LOOK_AGAIN_S)
        now = await managed.node_leases(self._api, uids)
        judged = {
            name: managed.judge_again(node, before.get(name), now.get(name))
            for name, node in self._there(uids).items()
        }
        await self._decide(judged, uids, now)
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
            self._host.readiness.aim(len(self._served.by_name))
            self.is_settled.set()

    async def _decide(
        self, judged: dict[str, managed.Judged], uids: dict[str, str], leases: dict[str, Json]
    ) -> None:
        """Serve what is ours, and say what is not; `leases` are those that were judged."""
        others = {
            name: each.why for name, each in judged.items() if each.claim is managed.Claim.OTHERS
        }
        if others:
            self._note(f"{_listed(others)} left alone, and not served")
        ours = [name for name, each in judged.items() if each.claim is managed.Claim.OURS]
        waiting = len(self._waiting)
        while ours:
            free = max(self._host.room(), 0)
            nodes = self._there({name: uids[name] for name in ours[:free]})  # some are gone by now
            del ours[:free]
            for name, node in nodes.items():
                if self._served.is_full:
                    self._waiting[name] = None
                else:
                    hold = managed.hold_of(node, leases.get(name))
                    found = Resources.of(node.get("status") or {})
                    self._host.serve(name, found, managed.addresses_of(node), hold)
            await asyncio.sleep(STEP_S)
        if len(self._waiting) > waiting:
            limit = self._host.nodes_max
            self._note(f"{len(self._waiting)} more Nodes match than --nodes {limit} lets be served")


def _listed(others: dict[str, str]) -> str:
    """Name Nodes that are another's, each with the reason, on one line."""
    shown = first_of([f"{name} ({why})" for name, why in others.items()], SHOWN_MAX)
    return f"{len(others):,} Nodes match that are others': {shown}"
