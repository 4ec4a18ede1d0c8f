"""Keys, signing requests and certificates of nodes.

Apart from where they are kept, so that a fleet whose nodes have none does without the 7 MB of its
library.
"""

import datetime as dt
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fleet.k8s.certificates import Validity
from fleet.k8s.well_known import NODE_USER, NODES_GROUP


def read_pair(pem: bytes) -> tuple[list[str], Validity]:
    """Return for whom a certificate is, and its life. Raises ValueError, also without its key."""
    certificate = x509.load_pem_x509_certificate(pem)
    serialization.load_pem_private_key(pem, password=None)
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return [str(name.value) for name in names], _validity(certificate)


def validity_of(pem: bytes) -> Validity:
    """Return the life of a certificate. Raises ValueError if it is none."""
    return _validity(x509.load_pem_x509_certificate(pem))


def expired(pem: bytes, began: dt.datetime, ended: dt.datetime) -> tuple[bytes, bytes]:
    """Make a key and a certificate that is like another but for its life; return both as PEM.

    Its issuer is the same by name only. Raises ValueError if the other is none.
    """
    old = x509.load_pem_x509_certificate(pem)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(key.public_key())
        .serial_number(old.serial_number)
        .not_valid_before(began)
        .not_valid_after(ended)
        .sign(key, hashes.SHA256())
    )
    return _key_pem(key), certificate.public_bytes(serialization.Encoding.PEM)


def new_request(node_name: str, addresses: tuple[tuple[str, str], ...] = ()) -> tuple[bytes, bytes]:
    """Make an ECDSA P-256 key; return it and a signing request, as PEM.

    A serving certificate is for the node's addresses, (type, address) here.
    Source: certificate_manager.go, generateCSR; pkg/kubelet/certificate/kubelet.go,
    newGetTemplateFn.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, NODES_GROUP)
    common_name = x509.NameAttribute(NameOID.COMMON_NAME, NODE_USER + node_name)
    builder = x509.CertificateSigningRequestBuilder(x509.Name([organization, common_name]))
    if addresses:
        names = x509.SubjectAlternativeName(_general_names(addresses))
        builder = builder.add_extension(names, critical=False)
    request = builder.sign(key, hashes.SHA256())
    return _key_pem(key), request.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _general_names(addresses: tuple[tuple[str, str], ...]) -> list[x509.GeneralName]:
    """Sort names before addresses, each once. Source: addressesToHostnamesAndIPs."""
    names: set[str] = set()
    numbers: set[str] = set()
    for _, address in addresses:
        try:
            numbers.add(str(ipaddress.ip_address(address)))
        except ValueError:
            names.add(address)
    return [
        *(x509.DNSName(name) for name in sorted(names)),
        *(x509.IPAddress(ipaddress.ip_address(number)) for number in sorted(numbers)),
    ]


def _validity(certificate: x509.Certificate) -> Validity:
    return Validity(
        int(certificate.not_valid_before_utc.timestamp()),
        int(certificate.not_valid_after_utc.timestamp()),
    )
