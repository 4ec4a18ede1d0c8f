"""TLS of thousands of kubelets: one context for all nodes, and whose client certificates they take.

OpenSSL gives a new connection what its context has at that moment and keeps that, so a certificate
is made, or read, when somebody connects, and nothing is kept for a node that nobody asks.

The authorities of client certificates come from the ConfigMap of the cluster:
    start: read the ConfigMap -> its bundle, or none and the reason, which is said once
    then:  read it again each LOOK_S; only another bundle that can be read replaces one
The CA that signed the API server's own certificate says nothing about clients: it may be a public
one, or a load balancer's, and a client with any certificate of it would be let in by its name.

Source: cmd/kubelet/app/server.go, initializeTLS; pkg/kubelet/certificate/kubelet.go;
apiserver/pkg/authentication/authenticatorfactory;
apiserver/pkg/server/dynamiccertificates/configmap_cafile_content.go, which keeps the last bundle
while the ConfigMap is gone or broken.
Differs: ECDSA keys, one for all nodes of a process, where each kubelet has a RSA key of its own; a
client certificate of another authority, or one that has expired, ends the handshake, where upstream
goes on (RequestClientCert) and answers 401. Python's `ssl` asks for certificates only together with
a check that ends the handshake. pyOpenSSL has a callback for it, but its contexts do not change
once used: one per connection, without a say in session tickets, for every scrape of every node.
A kubelet reads a file, `clientCAFile`, which has no effect here; a look each five minutes is what
fleet spends on a change.
"""

import asyncio
import contextvars
import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.cluster.api_client import Answer, Api
from fleet.errors import SetupError

if TYPE_CHECKING:
    from fleet.controlplane.pki import SelfSigned


Chain = tuple[Path, Path | None]
"""The files of a certificate and of its key; None if that is in the same file."""
CURRENT_NODE: contextvars.ContextVar[str] = contextvars.ContextVar("the node that is connected to")
"""Set when a connection is accepted; the loop carries it to the handshake."""


class ServingContext(ssl.SSLContext):
    """One context for all nodes; `chain_of` names the files of a node that has its own.

    It makes no connection itself: the authorities that a connection is asked for are its context's,
    which another one replaces when the client CA of the cluster changes.
    """

    _cluster: ssl.SSLContext
    _scratch: int
    _self_signed: "SelfSigned | None"
    _chain_of: Callable[[str], Chain | None]

    @classmethod
    def make(cls, client_ca: str, chain_of: Callable[[str], Chain | None]) -> "ServingContext":
        """Make a context that asks for certificates of the authorities in a PEM text, "" for none.

        Source: initializeTLS: RequestClientCert. Raises ValueError or OSError for a text that
        cannot be read.
        """
        if not hasattr(os, "memfd_create"):
            raise SetupError("kubelets serve logs and exec on Linux only; add --serve off")
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context.use_client_ca(client_ca)
        context._scratch = os.memfd_create("fleet-serving", os.MFD_CLOEXEC)
        context._self_signed = None
        context._chain_of = chain_of
        return context

    def use_client_ca(self, client_ca: str) -> None:
        """Ask new connections for certificates of these authorities, of PEM. From any thread.

        Raises ValueError or OSError, and changes nothing, if the text cannot be read.
        """
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.set_alpn_protocols(["http/1.1"])
        made.num_tickets = 0  # each would be a write and 2 KB; clients here keep connections
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # any of them is an anchor, as to Go
        if client_ca:
            # Between the certificates there may be names, in any alphabet.
            made.load_verify_locations(cadata=client_ca.encode("ascii", "replace").decode())
            made.verify_mode = ssl.CERT_OPTIONAL
        self._cluster = made

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,  # noqa: FBT001, FBT002 - the signature of the standard library
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin a handshake as the node that was connected to. Raises OSError without a chain."""
        node_name = CURRENT_NODE.get()
        own = self._chain_of(node_name)
        chosen = self._cluster
        if own is not None:
            chosen.load_cert_chain(*own)
        else:
            if self._self_signed is None:
                self._self_signed = _self_signed()
            os.ftruncate(self._scratch, 0)
            os.pwrite(self._scratch, self._self_signed.pem(node_name), 0)
            chosen.load_cert_chain(f"/proc/self/fd/{self._scratch}")
        return chosen.wrap_bio(incoming, outgoing, server_side, server_hostname, session)

    def close(self) -> None:
        """Give the scratch file back."""
        os.close(self._scratch)


def _self_signed() -> "SelfSigned":
    """Make a signer, once somebody connects: its library takes 7 MB."""
    from fleet.controlplane.pki import SelfSigned  # noqa: PLC0415

    return SelfSigned()


CONFIG_MAP = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
KEY = "client-ca-file"
LOOK_S = 300.0
TRIES_MAX = 10
TRY_S = 0.5  # an API server that has just started writes the ConfigMap a moment after it is ready

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
            f"kube-system/extension-apiserver-authentication: {why}; see `fleet rbac`"
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
