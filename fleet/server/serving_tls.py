"""TLS of thousands of kubelets with one context: each connection gets the certificate of its node.

OpenSSL gives a new connection what its context has at that moment and keeps that, so a certificate
is made, or read, when somebody connects, and nothing is kept for a node that nobody asks.
Source: cmd/kubelet/app/server.go, initializeTLS; pkg/kubelet/certificate/kubelet.go.
Differs: ECDSA keys, one for all nodes of a process, where each kubelet has a RSA key of its own; a
client certificate of another authority, or one that has expired, ends the handshake, where upstream
goes on (RequestClientCert) and answers 401. Python's `ssl` asks for certificates only together with
a check that ends the handshake. pyOpenSSL has a callback for it, but its contexts do not change
once used: one per connection, without a say in session tickets, for every scrape of every node.
"""

import contextvars
import os
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.errors import SetupError

if TYPE_CHECKING:
    from fleet.controlplane.pki import SelfSigned

Chain = tuple[Path, Path | None]
"""The files of a certificate and of its key; None if that is in the same file."""
CURRENT_NODE: contextvars.ContextVar[str] = contextvars.ContextVar("the node that is connected to")
"""Set by whoever accepts a connection; the loop carries it to the handshake."""


class ServingContext(ssl.SSLContext):
    """One context for all nodes; `chain_of` names the files of a node that has its own.

    It makes no connection itself: the authorities that a connection is asked for are its context's,
    so there is one for the client CA of the cluster, and one for each that a profile names.
    """

    _cluster: ssl.SSLContext
    _scratch: int
    _self_signed: "SelfSigned | None"
    _chain_of: Callable[[str], Chain | None]
    _client_ca_of: Callable[[str], str]
    _by_client_ca: dict[str, ssl.SSLContext]

    @classmethod
    def make(
        cls,
        client_ca: str,
        chain_of: Callable[[str], Chain | None],
        client_cas: Iterable[str] = (),
        client_ca_of: Callable[[str], str] = lambda _node_name: "",
    ) -> "ServingContext":
        """Make a context that asks for certificates of the authorities in a PEM text, "" for none.

        Of nodes for which `client_ca_of` returns one of `client_cas`, those of that file instead.
        Source: initializeTLS: RequestClientCert. Raises SetupError for a file, and ValueError or
        OSError for a text, that cannot be read.
        """
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context.use_client_ca(client_ca)
        context._client_ca_of = client_ca_of
        context._by_client_ca = {}
        for each in client_cas:
            other = context._by_client_ca[each] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            _prepare(other, client_ca_file=each)
        context._scratch = os.memfd_create("fleet-serving", os.MFD_CLOEXEC)
        context._self_signed = None
        context._chain_of = chain_of
        return context

    def use_client_ca(self, client_ca: str) -> None:
        """Ask new connections for certificates of these authorities, of PEM. From any thread.

        Raises ValueError or OSError, and changes nothing, if the text cannot be read.
        """
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _prepare(made, client_ca)
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
        chosen = self._by_client_ca.get(self._client_ca_of(node_name), self._cluster)
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


def _prepare(context: ssl.SSLContext, client_ca: str = "", client_ca_file: str = "") -> None:
    """Set what all contexts have, and whose certificates one asks for, of a text or a file.

    Any certificate there is an anchor, as it is to Go. Raises SetupError for a file, and ValueError
    or OSError for a text.
    """
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.num_tickets = 0  # each would be a write and 2 KB; clients here keep connections
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if client_ca_file:
        try:
            context.load_verify_locations(cafile=client_ca_file)
        except OSError as error:
            raise SetupError(f"{client_ca_file}: the client CA of the kubelets: {error}") from error
    elif client_ca:
        # Between the certificates there may be names, in any alphabet.
        context.load_verify_locations(cadata=client_ca.encode("ascii", "replace").decode())
    if client_ca or client_ca_file:
        context.verify_mode = ssl.CERT_OPTIONAL


def _self_signed() -> "SelfSigned":
    """Make a signer, once somebody connects: its library takes 7 MB."""
    from fleet.controlplane.pki import SelfSigned  # noqa: PLC0415

    return SelfSigned()
