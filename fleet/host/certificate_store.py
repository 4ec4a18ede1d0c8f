"""The keys and certificates of nodes on disk, as kubelets keep them, and TLS with them.

    DIR/cluster                              the cluster that they are of
    DIR/NODE/kubelet-client-current.pem      certificate and key in one file, mode 0600
    DIR/NODE/kubelet-server-current.pem

A certificate that has expired, and every one of another cluster, is of no use and not looked at.
Source: client-go/util/certificate/certificate_store.go, Update, Current.
Differs: one file is replaced, where a kubelet keeps dated ones and a link to the newest.
"""

import contextlib
import datetime as dt
import os
import socket
import ssl
from pathlib import Path

from fleet.errors import SetupError
from fleet.k8s.objects import CertificateKind, Validity
from fleet.k8s.well_known import NODE_USER

FILES = {
    CertificateKind.CLIENT: "kubelet-client-current.pem",
    CertificateKind.SERVING: "kubelet-server-current.pem",
}
CLUSTER = "cluster"
EXPIRED_FOR = dt.timedelta(hours=1)


class CertificateStore:
    """One directory for the nodes of one cluster."""

    def __init__(self, directory: Path, cluster_uid: str) -> None:
        """Make the directory. Raises SetupError if it cannot be written."""
        self.directory = directory
        mark = directory / CLUSTER
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            was = mark.read_text().strip() if mark.exists() else cluster_uid
            if was != cluster_uid:
                self._drop_all()
            mark.write_text(f"{cluster_uid}\n")
        except OSError as error:
            raise SetupError(f"--cert-dir {directory}: {error.strerror}") from error

    def path(self, node_name: str, kind: CertificateKind) -> Path:
        """Name the file of one certificate."""
        return self.directory / node_name / FILES[kind]

    def current(self, node_name: str, kind: CertificateKind, now_s: float) -> Validity | None:
        """Return the life of a stored certificate that can be used now, None if there is none."""
        from fleet.controlplane import pki  # noqa: PLC0415 - its library takes 7 MB

        try:
            content = self.path(node_name, kind).read_bytes()
            names, validity = pki.read_pair(content)
        except (OSError, ValueError):
            return None
        is_ours = names == [NODE_USER + node_name]
        return validity if is_ours and now_s < validity.not_after_s else None

    def update(
        self, node_name: str, kind: CertificateKind, certificate: bytes, key: bytes
    ) -> Validity:
        """Store an issued certificate with its key. Raises OSError, and ValueError if it is none.

        The file is complete at every moment.
        """
        from fleet.controlplane import pki  # noqa: PLC0415 - its library takes 7 MB

        validity = pki.validity_of(certificate)
        path = self.path(node_name, kind)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        fresh = path.with_suffix(".tmp")
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(certificate)
            file.write(key)
        fresh.replace(path)
        return validity

    def expire(self, node_name: str, now_s: float) -> bool:
        """Put a client certificate in place of a stored one that was over an hour before `now_s`.

        Its issuer is the same by name only, as nobody here can sign for the authority; a server
        refuses it all the same, with 401. Returns whether there was one. Raises OSError.
        """
        held = self.current(node_name, CertificateKind.CLIENT, now_s)
        if held is None:
            return False
        path = self.path(node_name, CertificateKind.CLIENT)
        from fleet.controlplane import pki  # noqa: PLC0415 - its library takes 7 MB

        over = dt.datetime.fromtimestamp(now_s, dt.UTC) - EXPIRED_FOR
        key_pem, pem = pki.expired(path.read_bytes(), over - EXPIRED_FOR, over)
        self.update(node_name, CertificateKind.CLIENT, pem, key_pem)
        return True

    def _drop_all(self) -> None:
        for name in FILES.values():
            for path in self.directory.glob(f"*/{name}"):
                path.unlink()


class CertificateContext:
    """A TLS context for one node: its certificate is read at every handshake, as Go's client does.

    All nodes share one `ssl.SSLContext`. OpenSSL gives a new connection what the context has at
    that moment and keeps that, so 6 KB a connection do where a context each takes 23.
    """

    __slots__ = ("_path", "_shared")

    def __init__(self, shared: ssl.SSLContext, path: Path) -> None:
        self._shared = shared
        self._path = str(path)

    def wrap_socket(
        self, sock: socket.socket, *, do_handshake_on_connect: bool, server_hostname: str
    ) -> ssl.SSLSocket:
        """Begin a TLS connection. Raises OSError, also without a usable certificate."""
        self._shared.load_cert_chain(self._path)
        return self._shared.wrap_socket(
            sock,
            do_handshake_on_connect=do_handshake_on_connect,
            server_hostname=server_hostname,
        )
