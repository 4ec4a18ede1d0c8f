"""Labels that only an administrator may set on a Node: fleet sets them once it has registered.

    registered without one -> a PATCH by fleet's own user -> done, whatever becomes of it later
                              no answer, 429 or 5xx -> again after `RETRY_S`, up to `TRIES_MAX`

Where fleet's user may not change Nodes they are left out, and that is said once.
"""

import asyncio
from collections.abc import Callable, Mapping

from fleet.cluster.api_client import MERGE_PATCH, Api, Sleep, each
from fleet.cluster.ownership import NODES
from fleet.errors import FleetError
from fleet.k8s.effects import WatchEvent
from fleet.k8s.pods import EventType, NodeView

Labels = Mapping[str, str]
RETRY_S = 5.0
TRIES_MAX = 3
"""Each lasts as long as the patience of the client, a minute; a webhook that fails may do so for
ever, and the run waits for the labels."""


class AdminLabels:
    """Made for a run whose profiles have such labels. `labels_of` returns those of a Node."""

    __slots__ = ("_is_idle", "_is_refused", "_labels_of", "_seen", "_waiting", "_wake")

    def __init__(self, labels_of: Callable[[str], Labels]) -> None:
        self._labels_of = labels_of
        self._is_refused = False
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
                refused: list[str] = []
                failed: list[str] = []

                async def label(
                    view: NodeView, refused: list[str] = refused, failed: list[str] = failed
                ) -> None:
                    if failed:
                        self._waiting.append(view)
                    elif not refused:
                        await self._label(api, view, refused, failed)

                await each(waiting, label)
                tries = tries + 1 if failed else 0
                if tries == TRIES_MAX:
                    refused = failed
                if refused:
                    self._is_refused = True
                    self._seen.clear()
                    note(refused[0])
                    return
                if not self._waiting:
                    self._is_idle.set()
                elif failed:
                    await sleep(RETRY_S)
                    self._wake.set()
        finally:
            self._is_idle.set()

    def _lacking(self, view: NodeView) -> Labels:
        wanted = self._labels_of(view.name)
        return {key: value for key, value in wanted.items() if view.labels.get(key) != value}

    async def _label(self, api: Api, view: NodeView, refused: list[str], failed: list[str]) -> None:
        """Label one Node; one that is gone, or another by now, is left alone.

        A server that does not answer, or is too busy, says nothing of fleet's rights.
        """
        labels = self._lacking(view)
        patch = {"metadata": {"uid": view.uid, "labels": labels}}
        path = f"{NODES}/{view.name}"
        try:
            answer = await api.request("PATCH", path, body=patch, content_type=MERGE_PATCH)
        except FleetError as error:
            reason, told = str(error), failed
        else:
            if answer.ok or answer.code in (404, 409):
                return
            told = failed if answer.code == 429 or answer.code >= 500 else refused
            reason = answer.message
        if told is failed:
            self._waiting.append(view)
        told.append(
            f"nodes go without the labels {', '.join(sorted(labels))}, which a kubelet may not set "
            f"itself (NodeRestriction), and fleet cannot set either: {reason}"
        )
