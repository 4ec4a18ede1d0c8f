"""Copies of what a cluster has, for what works alongside the nodes: a list-watch for each resource.

The machine is the kubelets' own (`wire.api.watch`: watch-lists, pages, versions, back-off); here it
runs over the connections of fleet's own requests, and its objects stay plain JSON.
Source: client-go/tools/cache/reflector.go; delta_fifo.go, Replace: what a new list has no more is
deleted.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import orjson

from fleet.clock import NS_PER_S, Draws
from fleet.cluster.api_client import Api, Json
from fleet.errors import RemoteProtocolError
from fleet.k8s.pods import EventType
from fleet.wire.api.decode_json import read_event, read_list
from fleet.wire.api.watch import UNREADABLE, UNREADABLE_CODE, ListWatch, Next, WatchPhase
from fleet.wire.http2.messages import Response, StreamOpened

OWNER = -1  # in seeded draws: no node's

log = logging.getLogger(__name__)


class ObjectWatch(ListWatch):
    """A list-watch of all objects of one resource. `number` differs within a client."""

    __slots__ = ("path",)

    def __init__(self, number: int, path: str) -> None:
        super().__init__(OWNER, number)
        self.path = path

    @property
    def resource(self) -> str:
        """What it is about, as the API server's metrics name it."""
        return self.path.rpartition("/")[2]

    @property
    def is_generic(self) -> bool:
        """Whether the client asks by a generic list-watch: sidecars have typed ones."""
        return False

    def target(self) -> tuple[bytes, bytes]:
        """Return path and encoded selector, b"" for none."""
        return self.path.encode(), b""


@dataclass(eq=False)
class Informer:
    """Keeps `objects` as the cluster has them, by namespace and name, while `run` runs.

    `on_change` gets each that comes, changes or goes: its key, and how it was and is, None
    for not there. `on_synced` follows when all that there is has come, at first and after a gap.
    """

    _api: Api
    _watch: ObjectWatch
    _draws: Draws
    _: KW_ONLY
    keeps: Callable[[Json], bool]
    on_change: Callable[[str, Json | None, Json | None], None]
    on_synced: Callable[[], None]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    objects: dict[str, Json] = field(default_factory=dict)
    is_synced: bool = False  # it was, once
    _unseen: dict[str, None] = field(default_factory=dict)
    """What a list that has begun has not shown yet."""

    async def run(self) -> None:
        """List and watch, and again whatever happens, until cancelled."""
        while True:
            later = await self._ask()
            await self.sleep(later.delay_ns / NS_PER_S)

    async def _ask(self) -> Next:
        """Send one request and take all that comes; return when to ask again."""
        watch = self._watch
        request = watch.open(self._draws, time.monotonic_ns())
        if watch.begins:
            self._unseen = dict.fromkeys(self.objects)
        async with aclosing(self._api.stream(request)) as messages:
            async for message in messages:
                later = self._on_message(message, time.monotonic_ns())
                if later is not None:
                    return later
        raise AssertionError(request)

    def _on_message(self, message: StreamOpened | bytes | Response, now_ns: int) -> Next | None:
        """Take what came; return when to ask again if that was all, or the rest is not wanted."""
        watch, draws = self._watch, self._draws
        try:
            if isinstance(message, StreamOpened):
                watch.is_open = True
            elif isinstance(message, bytes):
                events = watch.on_chunk(message, lambda line, _: read_event(line, orjson.loads))
                for event, found in events:
                    if event is EventType.ERROR:
                        assert isinstance(found, int), found
                        return watch.on_error_event(found, draws, now_ns)
                    self._take(event, found)
            else:
                return self._on_response(message, now_ns)
        except RemoteProtocolError as error:
            log.warning("%s: the server sent %s", watch.path, error)
            if watch.phase is WatchPhase.LIST:
                return watch.on_list_failed(UNREADABLE, draws, now_ns)
            return watch.on_error_event(UNREADABLE_CODE, draws, now_ns)
        return None

    def _on_response(self, response: Response, now_ns: int) -> Next:
        watch = self._watch
        if response.code != 200:
            log.debug("%s: %d %s", watch.path, response.code, response.detail or response.body)
        if watch.phase is not WatchPhase.LIST:
            return watch.on_end(response, self._draws, now_ns)
        if response.code != 200:
            return watch.on_list_failed(response, self._draws, now_ns)
        page = watch.on_page(response.body, lambda body, _: read_list(body, orjson.loads))
        for event, obj in page:
            self._take(event, obj)
        return Next(0)

    def _take(self, event: EventType, obj: Any) -> None:
        if event is EventType.SYNCED:
            for key in self._unseen:
                self._change(key, None)
            self._unseen = {}
            self.is_synced = True
            self.on_synced()
        elif event is not EventType.BOOKMARK and self.keeps(obj):
            key = key_of(obj)
            self._unseen.pop(key, None)
            self._change(key, None if event is EventType.DELETED else trimmed(obj))

    def _change(self, key: str, now: Json | None) -> None:
        before = self.objects.pop(key, None)
        if now is not None:
            self.objects[key] = now
        self.on_change(key, before, now)


def key_of(obj: Json) -> str:
    """Return namespace/name, or the name of what has no namespace."""
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else str(meta["name"])


def trimmed(obj: Json) -> Json:
    """Return an object without what is the largest part of it."""
    obj["metadata"].pop("managedFields", None)
    return obj
