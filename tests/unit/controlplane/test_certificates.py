"""Who each certificate says its bearer is, and that keys are private."""

import asyncio
import datetime as dt
import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fleet.controlplane.controlplane import _write_certificates
from fleet.controlplane.directory import Certificates, Pair
from fleet.controlplane.pki import write_certificates
from fleet.errors import SetupError


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return write_certificates(tmp_path / "pki", "10.96.0.1")


def load(pair: Pair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate.read_bytes())


def identity(pair: Pair) -> tuple[str, list[str]]:
    subject = load(pair).subject
    (user,) = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    groups = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return str(user.value), [str(group.value) for group in groups]


def test_only_the_administrator_is_one(certificates: Certificates) -> None:
    assert identity(certificates.admin) == ("kubernetes-admin", ["system:masters"])
    assert identity(certificates.scheduler) == ("system:kube-scheduler", [])
    assert identity(certificates.controller_manager) == ("system:kube-controller-manager", [])
    assert identity(certificates.kubelet_client) == ("kube-apiserver-kubelet-client", [])
    assert identity(certificates.front_proxy_client) == ("front-proxy-client", [])


def test_every_leaf_is_signed_by_its_authority(certificates: Certificates) -> None:
    ca, front_proxy_ca = load(certificates.ca), load(certificates.front_proxy_ca)
    load(certificates.front_proxy_client).verify_directly_issued_by(front_proxy_ca)
    for pair in (
        certificates.apiserver,
        certificates.kubelet_client,
        certificates.admin,
        certificates.scheduler,
        certificates.scheduler_serving,
        certificates.controller_manager,
        certificates.controller_manager_serving,
    ):
        load(pair).verify_directly_issued_by(ca)


def test_the_apiserver_is_known_by_all_its_names(certificates: Certificates) -> None:
    extensions = load(certificates.apiserver).extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", "kubernetes.default.svc"} <= set(names.get_values_for_type(x509.DNSName))
    addresses = names.get_values_for_type(x509.IPAddress)
    assert addresses == [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("10.96.0.1")]
    usage = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]


def test_client_certificates_are_for_clients_only(certificates: Certificates) -> None:
    usage = load(certificates.admin).extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    assert list(usage.value) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_certificates_are_valid_a_minute_ago(certificates: Certificates) -> None:
    minute_ago = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=30)
    assert load(certificates.admin).not_valid_before_utc < minute_ago
    assert load(certificates.ca).not_valid_before_utc < minute_ago


def test_only_the_owner_reads_keys(certificates: Certificates) -> None:
    keys = list(certificates.ca.key.parent.glob("*.key"))
    assert len(keys) == 11
    assert {key.stat().st_mode & 0o777 for key in keys} == {0o600}


def test_authorities_outlive_a_restart_and_leaves_do_not(certificates: Certificates) -> None:
    pairs = (certificates.ca, certificates.service_account, certificates.admin)
    before = [pair.key.read_bytes() for pair in pairs]
    write_certificates(certificates.ca.key.parent, "10.96.0.1")
    ca, service_account, admin = (pair.key.read_bytes() for pair in pairs)
    assert [ca, service_account] == before[:2]
    assert admin != before[2]


def test_they_are_made_by_a_process_of_its_own(tmp_path: Path) -> None:
    """Its library would stay in the memory of a run: `test_a_run_begins_without`."""
    made = asyncio.run(_write_certificates(tmp_path / "pki"))
    assert made == Certificates.within(tmp_path / "pki")
    assert made.ca.exists()
    assert made.controller_manager_serving.exists()
    (taken := tmp_path / "taken").touch()
    with pytest.raises(SetupError, match=f"no certificates in {taken}: FileExistsError: .*exists"):
        asyncio.run(_write_certificates(taken))
