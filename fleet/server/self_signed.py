"""Certificates that kubelets sign themselves.

Apart from the TLS of kubelets, so that a fleet that nobody asks does without the 7 MB of its
library.
Source: client-go/util/cert/cert.go, GenerateSelfSignedCertKeyWithOptions.
"""

import datetime as dt
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = dt.timedelta(days=365)
BACKDATED = dt.timedelta(hours=1)
LEAVES_MAX = 256
"""Certificates that are kept: those of the nodes that were asked last, 1 KB each."""


class SelfSigned:
    """Signs a certificate for each node, as kubelets do that were given none."""

    def __init__(self) -> None:
        now = dt.datetime.now(dt.UTC)
        self._began = now - BACKDATED
        self._stamp = int(now.timestamp())
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._key_pem = self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        self.pem = lru_cache(LEAVES_MAX)(self._pem)

    def _pem(self, node_name: str) -> bytes:
        """Return the key of a node, its certificate and that of its authority."""
        issuer = _name(f"{node_name}-ca@{self._stamp}")
        authority = (
            self._builder(issuer, issuer)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        leaf = (
            self._builder(_name(f"{node_name}@{self._stamp}"), issuer)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(node_name)]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        parts = (each.public_bytes(serialization.Encoding.PEM) for each in (leaf, authority))
        return self._key_pem + b"".join(parts)

    def _builder(self, subject: x509.Name, issuer: x509.Name) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._began)
            .not_valid_after(self._began + LIFE)
        )


def _name(common_name: str) -> x509.Name:
    # X.509 has room for 64 characters, and Go does not care.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])
