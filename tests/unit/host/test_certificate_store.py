"""Keys and certificates on disk."""

import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID
from support.issued_certificates import issue

from fleet.controlplane.pki import new_request
from fleet.errors import SetupError
from fleet.host.node_certificates import CertificateStore
from fleet.k8s.objects import CertificateKind, Validity

NOW_S = 1_800_000_000
CLIENT, SERVING = CertificateKind


def stored(
    store: CertificateStore,
    name: str = "n-0",
    as_name: str = "",
    not_before_s: int = NOW_S,
    life_s: int = 3600,
) -> Validity:
    key, request = new_request(as_name or name)
    return store.update(name, CLIENT, issue(request, not_before_s, life_s), key)


def test_a_request_asks_for_a_node_in_the_nodes_group() -> None:
    key, pem = new_request("n-0")
    request = x509.load_pem_x509_csr(pem)
    assert request.is_signature_valid
    assert request.subject.rfc4514_string() == "CN=system:node:n-0,O=system:nodes"
    assert not request.extensions
    private = serialization.load_pem_private_key(key, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp256r1"


def test_a_certificate_whose_life_is_over_is_of_no_use(tmp_path: Path) -> None:
    store = CertificateStore(tmp_path, "uid")
    stored(store)
    before = x509.load_pem_x509_certificate(store.path("n-0", CLIENT).read_bytes())
    assert store.expire("n-0", NOW_S)
    after = x509.load_pem_x509_certificate(store.path("n-0", CLIENT).read_bytes())
    assert (after.subject, after.issuer) == (before.subject, before.issuer)
    assert after.not_valid_after_utc.timestamp() == NOW_S - 3600
    assert store.current("n-0", CLIENT, NOW_S) is None
    assert not store.expire("n-0", NOW_S)
    stored(store)
    assert store.current("n-0", CLIENT, NOW_S) is not None


def test_a_serving_request_names_the_addresses() -> None:
    addresses = (("InternalIP", "10.0.0.7"), ("Hostname", "n-0"), ("ExternalIP", "10.0.0.7"))
    _, pem = new_request("n-0", addresses)
    found = x509.load_pem_x509_csr(pem).extensions
    names = found.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    assert isinstance(names, x509.SubjectAlternativeName)
    assert names.get_values_for_type(x509.DNSName) == ["n-0"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["10.0.0.7"]


def test_what_is_stored_is_found_again_by_its_owner_alone(tmp_path: Path) -> None:
    store = CertificateStore(tmp_path / "certs", "uid-1")
    assert store.current("n-0", CLIENT, NOW_S) is None
    validity = stored(store)
    assert validity == Validity(NOW_S, NOW_S + 3600)
    again = CertificateStore(tmp_path / "certs", "uid-1")
    assert again.current("n-0", CLIENT, NOW_S) == validity
    path = store.path("n-0", CLIENT)
    assert path.name == "kubelet-client-current.pem"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_an_expired_certificate_is_of_no_use(tmp_path: Path) -> None:
    store = CertificateStore(tmp_path, "uid-1")
    stored(store)
    assert store.current("n-0", CLIENT, NOW_S + 3599) is not None
    assert store.current("n-0", CLIENT, NOW_S + 3600) is None


def test_a_certificate_for_other_addresses_is_of_no_use(tmp_path: Path) -> None:
    store, hosts = CertificateStore(tmp_path, "uid-1"), ("n-0", "10.0.0.7")
    key, request = new_request("n-0")
    store.update("n-0", SERVING, issue(request, NOW_S, hosts=hosts), key)
    assert store.current("n-0", SERVING, NOW_S, hosts) is not None
    assert store.current("n-0", SERVING, NOW_S, ("n-0", "10.0.0.8")) is None


def test_certificates_of_another_cluster_are_dropped(tmp_path: Path) -> None:
    stored(CertificateStore(tmp_path, "uid-1"))
    (tmp_path / "n-0" / "notes").write_text("not fleet's")
    other = CertificateStore(tmp_path, "uid-2")
    assert other.current("n-0", CLIENT, NOW_S) is None
    assert not other.path("n-0", CLIENT).exists()
    assert (tmp_path / "n-0" / "notes").exists()


@pytest.mark.parametrize("content", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_a_damaged_file_is_as_none(tmp_path: Path, content: bytes) -> None:
    store = CertificateStore(tmp_path, "uid-1")
    stored(store)
    store.path("n-0", CLIENT).write_bytes(content)
    assert store.current("n-0", CLIENT, NOW_S) is None


def test_a_certificate_without_its_key_is_as_none(tmp_path: Path) -> None:
    store = CertificateStore(tmp_path, "uid-1")
    stored(store)
    path = store.path("n-0", CLIENT)
    path.write_bytes(path.read_bytes().split(b"-----BEGIN EC")[0])
    assert store.current("n-0", CLIENT, NOW_S) is None


def test_a_certificate_of_another_node_is_as_none(tmp_path: Path) -> None:
    store = CertificateStore(tmp_path, "uid-1")
    stored(store, "n-0", "n-1")
    assert store.current("n-0", CLIENT, NOW_S) is None


def test_what_is_no_certificate_is_not_stored(tmp_path: Path) -> None:
    store = CertificateStore(tmp_path, "uid-1")
    with pytest.raises(ValueError, match="PEM"):
        store.update("n-0", CLIENT, b"nonsense", b"key")
    assert not store.path("n-0", CLIENT).exists()


def test_a_directory_that_cannot_be_is_a_setup_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="--cert-dir"):
        CertificateStore(tmp_path / "file" / "certs", "uid-1")
