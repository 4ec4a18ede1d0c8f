"""Certificates that tests have signed, as the controller-manager signs those of nodes."""

import datetime as dt

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from fleet.controlplane.pki import CLIENT, Authority


def issue(pem: bytes, now_s: float, life_s: int = 86_400, hosts: tuple[str, ...] = ()) -> bytes:
    """Sign a request, for a day by default."""
    request = x509.load_pem_x509_csr(pem)
    key = request.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey), key
    now = dt.datetime.fromtimestamp(now_s, dt.UTC)
    life = dt.timedelta(seconds=life_s)
    ca = Authority.make("ca")
    return ca.sign(request.subject, key, life, began=now, usage=CLIENT, hosts=hosts)
