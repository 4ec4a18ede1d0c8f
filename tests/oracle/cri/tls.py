"""A certificate of its own for every container that serves HTTPS: a kubelet's probe checks none."""

import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY = timedelta(days=1)


@cache
def server_context() -> ssl.SSLContext:
    """Return the TLS side of a server; Source: pkg/probe/http, InsecureSkipVerify."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "container")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    certificate = builder.not_valid_before(now - DAY).not_valid_after(now + DAY)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with tempfile.TemporaryDirectory() as directory:
        both = Path(directory, "pair.pem")
        both.write_bytes(private + certificate.sign(key, hashes.SHA256()).public_bytes(pem))
        context.load_cert_chain(both)
    return context
