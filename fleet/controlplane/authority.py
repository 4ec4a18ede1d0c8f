"""The control plane's own authority, and what it signs.

Apart from the names of the files, so that a fleet whose control plane stands already does without
the 7 MB of its library.
"""

import dataclasses
import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fleet.controlplane.certificates import (
    ADMIN_GROUP,
    ADMIN_USER,
    FRONT_PROXY_USER,
    KUBELET_CLIENT_USER,
    Certificates,
    Pair,
    write_private,
)

BACKDATED = dt.timedelta(minutes=1)
AUTHORITY_LIFE = dt.timedelta(days=3650)
LEAF_LIFE = dt.timedelta(days=365)

API_SERVER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


class Authority:
    """A certificate authority: signs leaves with its own key."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self._certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        key = serialization.load_pem_private_key(pair.key.read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey), key
        self._key = key

    def client(self, pair: Pair, user: str, groups: Sequence[str] = ()) -> Pair:
        """Write a client certificate; the API server reads the user from CN, the groups from O."""
        return self._sign(pair, _name(user, groups), ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def server(self, pair: Pair, name: str, hosts: Sequence[str]) -> Pair:
        """Write a serving certificate for the names and addresses in `hosts`."""
        return self._sign(pair, _name(name), ExtendedKeyUsageOID.SERVER_AUTH, hosts)

    def _sign(
        self, pair: Pair, subject: x509.Name, usage: x509.ObjectIdentifier, hosts: Sequence[str]
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, self._certificate.subject, key, LEAF_LIFE)
        builder = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(_authority_key(self._key), critical=False)
        )
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        _write_pair(pair, certificate.public_bytes(serialization.Encoding.PEM), key)
        return pair


def write_certificates(directory: Path, service_ip: str) -> Certificates:
    """Write every certificate of a control plane into `directory`.

    The authorities and the service account key are kept if they are there already: tokens and
    kubelets of an earlier run stay valid. Everything else is issued anew.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    pairs = {
        field.name: Pair(
            directory / f"{field.name.replace('_', '-')}.crt",
            directory / f"{field.name.replace('_', '-')}.key",
        )
        for field in dataclasses.fields(Certificates)
    }
    certificates = Certificates(**pairs)
    ca = _authority(certificates.ca, "kubernetes")
    front_proxy = _authority(certificates.front_proxy_ca, "front-proxy")
    _service_account_keys(certificates.service_account)
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


def _authority(pair: Pair, name: str) -> Authority:
    """Load an authority, or make it."""
    if not (pair.certificate.exists() and pair.key.exists()):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        certificate = (
            _builder(subject, subject, key, AUTHORITY_LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_key_usage(is_authority=True), critical=True)
            .add_extension(_authority_key(key), critical=False)
            .sign(key, hashes.SHA256())
        )
        _write_pair(pair, certificate.public_bytes(serialization.Encoding.PEM), key)
    return Authority(pair)


def _service_account_keys(pair: Pair) -> None:
    """Make the key that signs service account tokens, unless it is there."""
    if pair.certificate.exists() and pair.key.exists():
        return
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    _write_pair(pair, public, key)


def _write_pair(pair: Pair, certificate: bytes, key: ec.EllipticCurvePrivateKey) -> None:
    """Write the key first: a pair counts as there once its certificate is."""
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(pair.key, pem)
    pair.certificate.write_bytes(certificate)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    life: dt.timedelta,
) -> x509.CertificateBuilder:
    """Fill in what every certificate has."""
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _authority_key(key: ec.EllipticCurvePrivateKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())


def _name(common_name: str, organizations: Sequence[str] = ()) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in organizations]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


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
