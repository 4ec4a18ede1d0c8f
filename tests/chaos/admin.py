"""What the tests ask of the API server, as its administrator and not by way of a fleet's link."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self, TypeVar

import aiohttp

from fleet.controlplane.options import ControlPlaneInfo

Json = dict[str, Any]
ANSWER_S_MAX = 60.0
POLL_S = 0.5
NODES, LEASES = "/api/v1/nodes", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
PODS = "/api/v1/namespaces/default/pods"
CSI_NODES, SLICES = "/apis/storage.k8s.io/v1/csinodes", "/apis/resource.k8s.io/v1/resourceslices"
EVENTS = "/api/v1/namespaces/default/events"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
FLOW = "/apis/flowcontrol.apiserver.k8s.io/v1"
MERGE = "application/merge-patch+json"
NAMES_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


T = TypeVar("T")


class RefusedError(Exception):
    """An answer that is not the one that was asked for."""


class Admin:
    """A client of one API server."""

    def __init__(self, info: ControlPlaneInfo) -> None:
        context = ssl.create_default_context(cafile=str(info.ca_file))
        context.load_cert_chain(info.admin_certificate, info.admin_key)
        self._url = info.url
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            timeout=aiohttp.ClientTimeout(total=ANSWER_S_MAX),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._session.close()

    async def ask(
        self, verb: str, path: str, body: Json | None = None, *, accept: str = "application/json"
    ) -> tuple[int, Json]:
        kind = MERGE if verb == "PATCH" else "application/json"
        named = {"accept": accept, **({} if body is None else {"content-type": kind})}
        data = None if body is None else json.dumps(body)
        async with self._session.request(
            verb, self._url + path, data=data, headers=named
        ) as answer:
            return answer.status, json.loads(await answer.read())

    async def hold(self, path: str, user: str, end: asyncio.Event) -> int:
        """Create an object as a user, with a body that comes at the end; return the code."""

        async def body() -> AsyncIterator[bytes]:
            await end.wait()
            yield b"no object"

        named = {"content-type": "application/json", "impersonate-user": user}
        async with self._session.post(self._url + path, data=body(), headers=named) as answer:
            return answer.status

    async def get(self, path: str, *, accept: str = "application/json") -> Json:
        code, found = await self.ask("GET", path, accept=accept)
        if code != 200:
            raise RefusedError(path, code, found)
        return found

    async def items(self, path: str, *, accept: str = "application/json") -> list[Json]:
        """List objects from the API server's cache."""
        found = await self.get(f"{path}?resourceVersion=0", accept=accept)
        return list(found["items"] or ())

    async def names(self, path: str) -> list[str]:
        return [each["metadata"]["name"] for each in await self.items(path, accept=NAMES_ONLY)]

    async def change(self, verb: str, path: str, body: Json | None = None) -> Json:
        """Write until the server has taken it; what is there, or gone, already is well."""

        async def is_done() -> Json | None:
            code, found = await self.ask(verb, path, body)
            if code == 409 and verb == "POST" and found.get("reason") != "AlreadyExists":
                return None
            assert code not in {400, 422}, (verb, path, found)
            return found if code < 300 or code in {404, 409} else None

        return await until(is_done, f"{verb} {path}", ANSWER_S_MAX)


ERRORS = (aiohttp.ClientError, RefusedError, TimeoutError, OSError, json.JSONDecodeError)


async def until(
    question: Callable[[], Awaitable[T | None]], what: str, limit_s: float, poll_s: float = POLL_S
) -> T:
    """Ask until there is an answer; a server that does not answer is asked again."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + limit_s
    seen: object = None
    while True:
        try:
            if found := await question():
                return found
        except ERRORS as error:
            seen = error
        if loop.time() > deadline_s:
            raise TimeoutError(f"not within {limit_s:.0f} s: {what}; last: {seen!r}")
        await asyncio.sleep(poll_s)
