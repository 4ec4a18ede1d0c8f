"""What another client's watch shows of the run's Nodes: which are Ready, and which lack labels.

Readiness decides what counts, not what the kubelets say. AdminLabels sets labels that only an
administrator may set on a Node:

    registered without one -> a PATCH by fleet's own user -> done, whatever becomes of it later
                              no answer, 429 or 5xx -> again after `RETRY_S`, up to `TRIES_MAX`

Where fleet's user may not change Nodes they are left out, and that is said once.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial

from fleet.cluster.api_client import Api, Sleep, each
from fleet.cluster.ownership import NODES
from fleet.errors import FleetError
from fleet.k8s.effects import WatchEvent
from fleet.k8s.pods import EventType, NodeView

NOT_READY_TAINT = "node.kubernetes.io/not-ready"


class Readiness:
    """Which nodes another client's watch shows Ready, without the not-ready taint."""

    def __init__(self, wanted: int, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self.wanted = wanted
        self.present: set[str] = set()
        self.ready: set[str] = set()
        self.ever_not_ready: set[str] = set()  # Ready once, then the condition was not
        self.ready_at_ns = 0
        self.all_ready = asyncio.Event()
        self._unseen: set[str] = set()  # during a relist: not mentioned so far

    def aim(self, wanted: int) -> None:
        """Say how many nodes there are to be, where that is known only now."""
        self.wanted = wanted
        self._look()

    def forget(self, name: str) -> None:
        self.present.discard(name)
        self.ready.discard(name)

    async def wait(self, stalled_s: float | None = None) -> None:
        """Wait until all are Ready, or no more became so for `stalled_s`."""
        seen = 0
        while not self.all_ready.is_set():
            try:
                await asyncio.wait_for(self.all_ready.wait(), stalled_s)
            except TimeoutError:
                if len(self.ready) <= seen:
                    return
                seen = len(self.ready)

    def on_event(self, event: WatchEvent) -> None:
        """Take one event of the observer's node watch."""
        if event.type is EventType.RESTARTED:
            self._unseen = set(self.present)  # the new snapshot must mention them
            return
        if event.type is EventType.SYNCED:
            self.present -= self._unseen
            self.ready -= self._unseen
            self._unseen = set()
            return
        view = event.record
        if not isinstance(view, NodeView):
            return
        self._unseen.discard(view.name)
        if event.type is EventType.DELETED:
            self.forget(view.name)
            return
        self.present.add(view.name)
        if is_ready(view):
            self.ready.add(view.name)
            self._look()
            return
        if view.name in self.ready and not is_condition_true(view):
            self.ever_not_ready.add(view.name)  # a late taint of the controller loses no node
        self.ready.discard(view.name)

    def _look(self) -> None:
        if len(self.ready) >= self.wanted and not self.all_ready.is_set():
            self.ready_at_ns = self._clock_ns()
            self.all_ready.set()


def is_ready(view: NodeView) -> bool:
    """Return whether the scheduler may use the node as a Ready one."""
    if any(key == NOT_READY_TAINT for key, _, _ in view.taints):
        return False
    return is_condition_true(view)


def is_condition_true(view: NodeView) -> bool:
    """Return whether the Ready condition is True.

    The taint alone says less: a node-lifecycle controller that is behind may still add it, for
    the condition it saw before, to a node that has become Ready.
    Source: pkg/controller/nodelifecycle/node_lifecycle_controller.go, doNoExecuteTaintingPass.
    """
    return any(each.type == "Ready" and each.status == "True" for each in view.conditions)


Labels = Mapping[str, str]
RETRY_S = 5.0
TRIES_MAX = 3
"""Each lasts as long as the patience of the client, a minute; a webhook that fails may do so for
ever, and the run waits for the labels."""


class AdminLabels:
    """Made for a run whose profiles have such labels. `labels_of` returns those of a Node."""

    def __init__(self, labels_of: Callable[[str], Labels]) -> None:
        self._labels_of = labels_of
        self._problem = ""  # of this round, in words for the user
        self._is_refused = False  # fleet may not
        self._seen: dict[str, str] = {}  # uid by name: each Node is labelled once
        self._waiting: list[NodeView] = []
        self._wake = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def on_event(self, event: WatchEvent) -> None:
        """Take one event of a watch of all Nodes of the run."""
        view = event.record
        if self._is_refused or not isinstance(view, NodeView):
            return
        if event.type is EventType.DELETED:
            self._seen.pop(view.name, None)
            return
        if self._seen.get(view.name) == view.uid:
            return
        self._seen[view.name] = view.uid
        if self._lacking(view):
            self._waiting.append(view)
            self._wake.set()
            self._is_idle.clear()

    async def settled(self) -> None:
        """Wait until every Node that was seen so far is labelled, or is not to be."""
        await self._is_idle.wait()

    async def run(
        self, api: Api, note: Callable[[str], None], sleep: Sleep = asyncio.sleep
    ) -> None:
        """Label what comes, until cancelled, or until fleet may not: then they are left out."""
        tries = 0
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                waiting, self._waiting = self._waiting, []
                self._problem, self._is_refused = "", False
                await each(waiting, partial(self._label, api))
                tries = tries + 1 if self._problem else 0
                if self._is_refused or tries == TRIES_MAX:
                    self._is_refused = True
                    self._seen.clear()
                    note(self._problem)
                    return
                if not self._waiting:
                    self._is_idle.set()
                elif self._problem:
                    await sleep(RETRY_S)
                    self._wake.set()
        finally:
            self._is_idle.set()

    def _lacking(self, view: NodeView) -> Labels:
        wanted = self._labels_of(view.name)
        return {key: value for key, value in wanted.items() if view.labels.get(key) != value}

    async def _label(self, api: Api, view: NodeView) -> None:
        """Label one Node; one that is gone, or another by now, is left alone.

        After the first problem the others of the same round are not tried. A server that does not
        answer, or is too busy, says nothing of fleet's rights: they are tried again.
        """
        if self._problem:
            self._waiting.append(view)
            return
        labels = self._lacking(view)
        patch = {"metadata": {"uid": view.uid, "labels": labels}}
        path = f"{NODES}/{view.name}"
        try:
            answer = await api.request("PATCH", path, body=patch)
        except FleetError as error:
            reason, is_refused = str(error), False
        else:
            if answer.ok or answer.code in (404, 409):
                return
            reason, is_refused = answer.message, answer.code != 429 and answer.code < 500
        self._waiting.append(view)
        if is_refused or not self._problem:
            self._is_refused = self._is_refused or is_refused
            self._problem = (
                f"nodes go without the labels {', '.join(sorted(labels))}, which a kubelet may not "
                f"set itself (NodeRestriction), and fleet cannot set either: {reason}"
            )
