"""How long a node's certificates last."""

import datetime as dt
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleet.controlplane import pki
from fleet.host.node_certificates import CertificateStore
from fleet.k8s.objects import CertificateKind
from fleet.profile.kubelet_configuration import KubeletConfiguration
from fleet.server.exposition import page_text
from fleet.server.node_metrics import certificate_rows

BEGAN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
CLIENT = "kubelet_certificate_manager_client_ttl_seconds"
SERVER = "kubelet_certificate_manager_server_ttl_seconds"


@pytest.fixture
def store(tmp_path: Path) -> CertificateStore:
    """Keep the client certificate of a node, good for an hour."""
    authority = pki.Authority.make("system:node:n")
    key, hour = authority.key, dt.timedelta(hours=1)
    public = authority.sign(authority.name, key.public_key(), hour, began=BEGAN, usage=pki.CLIENT)
    found = CertificateStore(tmp_path, "cluster")
    found.update("n", CertificateKind.CLIENT, public, pki.key_pem(key))
    return found


def shown(store: CertificateStore, after_s: float, **fields: bool) -> dict[str, float]:
    kubelet = KubeletConfiguration.model_validate(fields)
    rows = certificate_rows(store, "n", kubelet, BEGAN.timestamp() + after_s)
    text = page_text("/metrics", rows).decode()
    return {each.name: each.samples[0].value for each in text_string_to_metric_families(text)}


def test_what_a_node_renews_is_shown(store: CertificateStore) -> None:
    assert shown(store, 600.5, rotateCertificates=True) == {CLIENT: 2999}
    assert shown(store, 0, rotateCertificates=False) == {}


def test_what_there_is_not_yet_lasts_for_ever(store: CertificateStore) -> None:
    """As Go's text has it: an alert for less than a week is silent."""
    both = shown(store, 0, rotateCertificates=True, serverTLSBootstrap=True)
    assert both == {CLIENT: 3600, SERVER: float("inf")}
