"""How long the certificates of a node are good for, as its /metrics shows it.

Source: cmd/kubelet/app/server.go, buildKubeletClientConfig; pkg/kubelet/certificate/kubelet.go,
NewKubeletServerCertificateManager.
Differs: a certificate that has expired shows +Inf, as one that there is none of.
"""

from fleet.host.certificate_store import CertificateStore
from fleet.k8s.certificates import CertificateKind
from fleet.kubelet.stats.exposition import Family, one_text
from fleet.profile.kubelet_configuration import KubeletConfiguration

_NAME = "kubelet_certificate_manager_%s_ttl_seconds"
CLIENT = Family(
    _NAME % "client",
    "[ALPHA] Gauge of the TTL (time-to-live) of the Kubelet's client certificate. The value is in "
    "seconds until certificate expiry (negative if already expired). If client certificate is "
    "invalid or unused, the value will be +INF.",
)
SERVING = Family(
    _NAME % "server",
    "[ALPHA] Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The "
    "value is in seconds until certificate expiry (negative if already expired). If serving "
    "certificate is invalid or unused, the value will be +INF.",
)


def certificate_metrics(
    store: CertificateStore, node_name: str, kubelet: KubeletConfiguration, now_s: float
) -> bytes:
    """Return what is shown of a node whose certificates are in `store`: what it renews itself."""
    shown = []
    if kubelet.rotate_certificates:
        shown.append((CLIENT, CertificateKind.CLIENT))
    if kubelet.server_tls_bootstrap:
        shown.append((SERVING, CertificateKind.SERVING))
    texts = []
    for family, kind in shown:
        held = store.current(node_name, kind, now_s)
        left_s = float("inf") if held is None else float(int(held.not_after_s - now_s))
        texts.append(one_text(family, left_s))
    return "".join(texts).encode()
