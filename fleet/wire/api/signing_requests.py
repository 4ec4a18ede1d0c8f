"""CertificateSigningRequests on the wire: what a node sends to get a certificate, and reads.

Source: client-go/util/certificate/csr/csr.go; kubernetes_certificate_manager usages:
certificate_manager.go, DefaultKubeletClientGetUsages, DefaultKubeletServingGetUsages (ECDSA).
Differs: JSON in both encodings.
"""

import base64
from typing import Any

import orjson

from fleet.clock import NS_PER_S
from fleet.k8s.certificates import CertificateKind, SigningRequestView
from fleet.quantity import format_duration
from fleet.wire.http2.messages import ContentType, Request

PATH = b"/apis/certificates.k8s.io/v1/certificatesigningrequests"
TIMEOUT_NS = 90_000_000_000
SIGNERS = {
    CertificateKind.CLIENT: b"kubernetes.io/kube-apiserver-client-kubelet",
    CertificateKind.SERVING: b"kubernetes.io/kubelet-serving",
}
_USAGE = {CertificateKind.CLIENT: b"client auth", CertificateKind.SERVING: b"server auth"}
_BODY = (
    b'{"kind":"CertificateSigningRequest","apiVersion":"certificates.k8s.io/v1",'
    b'"metadata":{"generateName":"csr-"},"spec":{"request":"%b","signerName":"%b",'
    b'"usages":["digital signature","%b"]},"status":{}}'
)


def create_signing_request(kind: CertificateKind, request_pem: bytes) -> Request:
    """Return the POST of a new request; the server names it."""
    body = _BODY % (base64.b64encode(request_pem), SIGNERS[kind], _USAGE[kind])
    return Request(b"POST", PATH, body, ContentType.JSON, timeout_ns=TIMEOUT_NS)


def list_signing_request(name: str) -> Request:
    """Return the LIST that comes before the watch: it shows that the API is there."""
    path = b"%b?fieldSelector=metadata.name%%3D%b" % (PATH, name.encode())
    return Request(b"GET", path, timeout_ns=TIMEOUT_NS)


def watch_signing_request(name: str, timeout_s: int) -> Request:
    """Return the watch of one request, which begins with its present state."""
    path = (
        b"%b?allowWatchBookmarks=true&fieldSelector=metadata.name%%3D%b"
        b"&resourceVersionMatch=NotOlderThan&sendInitialEvents=true"
        b"&timeout=%b&timeoutSeconds=%d&watch=true"
    ) % (PATH, name.encode(), format_duration(timeout_s * NS_PER_S).encode(), timeout_s)
    return Request(b"GET", path, stream=True, timeout_ns=TIMEOUT_NS)


def decode_signing_request(body: bytes) -> SigningRequestView:
    """Return what a requester reads of one object."""
    return _view(orjson.loads(body))


def decode_signing_event(line: bytes) -> tuple[str, SigningRequestView | None]:
    """Return type and object of one event; the object only of ADDED, MODIFIED and DELETED."""
    event = orjson.loads(line)
    kind = str(event["type"])
    return kind, None if kind in {"BOOKMARK", "ERROR"} else _view(event["object"])


def _view(found: dict[str, Any]) -> SigningRequestView:
    status = found.get("status") or {}
    approved, refusal = False, ""
    for each in status.get("conditions") or ():
        if each["type"] in {"Denied", "Failed"}:
            refusal = str(each.get("message") or each.get("reason") or each["type"])
        approved = approved or each["type"] == "Approved"
    certificate = base64.b64decode(status.get("certificate") or "")
    metadata = found["metadata"]
    return SigningRequestView(metadata["name"], metadata["uid"], certificate, approved, refusal)
