"""Certificates that tests have signed, as the controller-manager signs those of nodes."""

import datetime as dt

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def issue(pem: bytes, now_s: float) -> bytes:
    """Sign a request for a day."""
    request = x509.load_pem_x509_csr(pem)
    now = dt.datetime.fromtimestamp(now_s, dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(request.subject)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")]))
        .public_key(request.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
