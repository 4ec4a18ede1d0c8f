"""Whose client certificates the kubelets take: those of the authority of the cluster's clients.

    start: read the ConfigMap -> its bundle, or none and the reason, which is said once
    then:  read it again each LOOK_S; only another bundle that can be read replaces one

The CA that signed the API server's own certificate says nothing about clients: it may be a public
one, or a load balancer's, and whoever has any certificate of it would be let in by its name.
Source: apiserver/pkg/authentication/authenticatorfactory;
apiserver/pkg/server/dynamiccertificates/configmap_cafile_content.go, which keeps the last bundle
while the ConfigMap is gone or broken. Differs: a kubelet reads a file, `clientCAFile`; that of a
profile goes first here, too, and a look each five minutes is what fleet spends on a change.
"""

import asyncio
import logging
from collections.abc import Callable

from fleet.cluster.api_client import Answer, Api
from fleet.errors import SetupError

CONFIG_MAP = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
KEY = "client-ca-file"
LOOK_S = 300.0
TRIES_MAX = 10
TRY_S = 0.5
"""An API server that has just started writes the ConfigMap a moment after it is ready."""

log = logging.getLogger(__name__)


class ClientAuthorities:
    """Reads the bundle; `use` takes it, and raises ValueError or OSError for what is none."""

    def __init__(self, api: Api, use: Callable[[str], None]) -> None:
        self._api = api
        self._use = use
        self._used = ""
        self._said: set[str] = set()

    async def read(self) -> None:
        """Take the bundle, and say so if there is none: then only bearer tokens are taken."""
        for _ in range(TRIES_MAX):
            answer = await self._ask()
            if answer is None or answer.code != 404:
                break
            await asyncio.sleep(TRY_S)
        if self._take(answer):
            return
        why = "no answer" if answer is None else answer.message
        if answer is not None and answer.ok:
            why = f"it has no {KEY} that can be read"
        self._say(
            "the kubelets take bearer tokens only, and no client certificates: ConfigMap "
            f"kube-system/extension-apiserver-authentication: {why}; see `fleet rbac`, or name "
            "authentication.x509.clientCAFile in the profile"
        )

    async def follow(self) -> None:
        """Take what changes, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._take(await self._ask())

    async def _ask(self) -> Answer | None:
        try:
            return await self._api.request("GET", CONFIG_MAP)
        except SetupError as error:
            log.debug("the client CA of the kubelets: %s", error)
            return None

    def _take(self, answer: Answer | None) -> bool:
        """Use the bundle of an answer; return whether there is one in use."""
        found = (answer.body.get("data") or {}).get(KEY) if answer and answer.ok else None
        if isinstance(found, str) and found.strip() and found != self._used:
            try:
                self._use(found)
            except (ValueError, OSError) as error:
                self._say(f"the client CA of the cluster cannot be read, and is not used: {error}")
            else:
                self._used = found
        return bool(self._used)

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning("%s", text)
