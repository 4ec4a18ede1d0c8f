"""Every certificate that fleet makes: of its control plane, of kubelets, and requests of nodes.

Import it where one is made or read: its library takes 7 MB, which a fleet without certificates of
its own does without. The names of the control plane's files are in directory.py.
Source: cmd/kubeadm/app/phases/certs/certlist.go; client-go/util/cert/cert.go,
GenerateSelfSignedCertKeyWithOptions; client-go/util/certificate/certificate_manager.go.
"""

import datetime as dt
import ipaddress
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fleet.controlplane.directory import (
    ADMIN_GROUP,
    ADMIN_USER,
    FRONT_PROXY_USER,
    KUBELET_CLIENT_USER,
    Certificates,
    Pair,
    write_private,
)
from fleet.k8s.objects import Validity
from fleet.k8s.well_known import NODE_USER, NODES_GROUP

CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
AUTHORITY_LIFE = dt.timedelta(days=3650)
LEAF_LIFE = dt.timedelta(days=365)
BACKDATED = dt.timedelta(minutes=1)
SELF_SIGNED_BACKDATED = dt.timedelta(hours=1)
NAME_MAX = 64  # X.509 has room for so many characters, and Go does not care
SELF_SIGNED_MAX = 256
"""Certificates that are kept: those of the nodes that were asked last, 1 KB each."""
API_SERVER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


class Authority:
    """Signs certificates with its own name and key."""

    def __init__(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> None:
        self.name = name
        self.key = key

    @classmethod
    def make(cls, common_name: str) -> Self:
        return cls(_name(common_name), new_key())

    @classmethod
    def load(cls, pair: Pair) -> Self:
        certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        key = serialization.load_pem_private_key(pair.key.read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey), key
        return cls(certificate.subject, key)

    def sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        life: dt.timedelta,
        *,
        began: dt.datetime | None = None,
        usage: x509.ObjectIdentifier | None = None,
        hosts: Iterable[str] = (),
    ) -> bytes:
        """Return a certificate as PEM: of an authority if it is not for one `usage`."""
        began = began or dt.datetime.now(dt.UTC) - BACKDATED
        is_authority = usage is None
        own = self.key.public_key()
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(began)
            .not_valid_after(began + life)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own), critical=False)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(_key_usage(is_authority=is_authority), critical=True)
        )
        if usage is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if names := _general_names(hosts):
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def certificate(self) -> bytes:
        """Return its own certificate, signed by itself."""
        return self.sign(self.name, self.key.public_key(), AUTHORITY_LIFE)

    def client(self, pair: Pair, user: str, groups: Sequence[str] = ()) -> Pair:
        """Write a client certificate; the API server reads the user from CN, the groups from O."""
        return self._write_leaf(pair, _name(user, groups), CLIENT)

    def server(self, pair: Pair, name: str, hosts: Sequence[str]) -> Pair:
        """Write a serving certificate for the names and addresses in `hosts`."""
        return self._write_leaf(pair, _name(name), SERVER, hosts)

    def _write_leaf(
        self, pair: Pair, name: x509.Name, usage: x509.ObjectIdentifier, hosts: Sequence[str] = ()
    ) -> Pair:
        key = new_key()
        pem = self.sign(name, key.public_key(), LEAF_LIFE, usage=usage, hosts=hosts)
        return _write_pair(pair, pem, key)


# ---- the control plane's ----


def write_certificates(directory: Path, service_ip: str) -> Certificates:
    """Write every certificate of a control plane into `directory`.

    The authorities and the service account key are kept if they are there already: tokens and
    kubelets of an earlier run stay valid. Everything else is issued again.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificates = Certificates.within(directory)
    ca = _load_or_make(certificates.ca, "kubernetes")
    front_proxy = _load_or_make(certificates.front_proxy_ca, "front-proxy")
    if not certificates.service_account.exists():
        key = new_key()
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        _write_pair(certificates.service_account, public, key)
    ca.server(
        certificates.apiserver, "kube-apiserver", (*API_SERVER_NAMES, "127.0.0.1", service_ip)
    )
    ca.client(certificates.kubelet_client, KUBELET_CLIENT_USER)
    front_proxy.client(certificates.front_proxy_client, FRONT_PROXY_USER)
    ca.client(certificates.admin, ADMIN_USER, (ADMIN_GROUP,))
    local = ("localhost", "127.0.0.1")
    ca.client(certificates.scheduler, "system:kube-scheduler")
    ca.server(certificates.scheduler_serving, "kube-scheduler", local)
    ca.client(certificates.controller_manager, "system:kube-controller-manager")
    ca.server(certificates.controller_manager_serving, "kube-controller-manager", local)
    return certificates


def _load_or_make(pair: Pair, name: str) -> Authority:
    if pair.exists():
        return Authority.load(pair)
    made = Authority.make(name)
    _write_pair(pair, made.certificate(), made.key)
    return made


def _write_pair(pair: Pair, certificate: bytes, key: ec.EllipticCurvePrivateKey) -> Pair:
    """Write the key first: a pair counts as there once its certificate is."""
    write_private(pair.key, key_pem(key))
    pair.certificate.write_bytes(certificate)
    return pair


# ---- kubelets' ----


class SelfSigned:
    """Signs a serving certificate for each node, as kubelets do that were given none.

    One key serves all nodes of a process.
    """

    def __init__(self) -> None:
        now = dt.datetime.now(dt.UTC)
        self._began = now - SELF_SIGNED_BACKDATED
        self._stamp = int(now.timestamp())
        self._key = new_key()
        self.pem = lru_cache(SELF_SIGNED_MAX)(self._pem)

    def _pem(self, node_name: str) -> bytes:
        """Return the key of a node, its certificate and that of its authority."""
        authority = Authority(_name(f"{node_name}-ca@{self._stamp}"[:NAME_MAX]), self._key)
        public, began = self._key.public_key(), self._began
        name = _name(f"{node_name}@{self._stamp}"[:NAME_MAX])
        leaf = authority.sign(name, public, LEAF_LIFE, began=began, usage=SERVER, hosts=[node_name])
        own = authority.sign(authority.name, public, LEAF_LIFE, began=began)
        return key_pem(self._key) + leaf + own


def new_request(node_name: str, addresses: Sequence[tuple[str, str]] = ()) -> tuple[bytes, bytes]:
    """Make an ECDSA P-256 key; return it and a signing request, as PEM.

    A serving certificate is for the node's addresses, (type, address) here.
    Source: certificate_manager.go, generateCSR; pkg/kubelet/certificate/kubelet.go,
    newGetTemplateFn.
    """
    key = new_key()
    builder = x509.CertificateSigningRequestBuilder(_name(NODE_USER + node_name, (NODES_GROUP,)))
    if names := _general_names(sorted({address for _, address in addresses})):
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    request = builder.sign(key, hashes.SHA256())
    return key_pem(key), request.public_bytes(serialization.Encoding.PEM)


def read_pair(pem: bytes) -> tuple[set[str], Validity]:
    """Return all names of a certificate, and its life. Raises ValueError, also without its key."""
    certificate = x509.load_pem_x509_certificate(pem)
    serialization.load_pem_private_key(pem, password=None)
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    names = {str(name.value) for name in common}
    for each in certificate.extensions:
        if isinstance(each.value, x509.SubjectAlternativeName):
            names |= {str(name.value) for name in each.value}
    return names, validity_of(pem)


def validity_of(pem: bytes) -> Validity:
    """Return the life of a certificate. Raises ValueError if it is none."""
    certificate = x509.load_pem_x509_certificate(pem)
    return Validity(
        int(certificate.not_valid_before_utc.timestamp()),
        int(certificate.not_valid_after_utc.timestamp()),
    )


def expired(pem: bytes, began: dt.datetime, ended: dt.datetime) -> tuple[bytes, bytes]:
    """Make a key and a certificate of the same name as another; return both as PEM.

    Its issuer is the same by name only. Raises ValueError if the other is none.
    """
    old = x509.load_pem_x509_certificate(pem)
    key = new_key()
    issuer = Authority(old.issuer, key)
    made = issuer.sign(old.subject, key.public_key(), ended - began, began=began, usage=CLIENT)
    return key_pem(key), made


# ---- parts ----


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a key as PEM, as Go writes it."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _name(common_name: str, organizations: Sequence[str] = ()) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in organizations]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    """Put names before addresses. Source: addressesToHostnamesAndIPs."""
    names: list[x509.GeneralName] = []
    addresses: list[x509.GeneralName] = []
    for host in hosts:
        try:
            addresses.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names + addresses


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=False,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


if __name__ == "__main__":  # a process of its own, for a control plane that starts
    write_certificates(Path(sys.argv[1]), sys.argv[2])
