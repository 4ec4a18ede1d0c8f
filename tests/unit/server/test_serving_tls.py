"""Whose client certificates a node takes: those of the cluster's CA."""

import datetime as dt
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fleet.controlplane import pki
from fleet.server.auth import user_of
from fleet.server.serving_tls import CURRENT_NODE, ServingContext


class Authority(NamedTuple):
    """The files of an authority's certificate, and of a client's with its key."""

    ca: Path
    client: Path


def authority(
    root: Path, name: str, usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH
) -> Authority:
    made = pki.Authority.make(name)
    key, day = pki.new_key(), dt.timedelta(days=1)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"client-of-{name}")])
    began = dt.datetime.now(dt.UTC) - day
    leaf = made.sign(subject, key.public_key(), 30 * day, began=began, usage=usage)
    ca, client = root / f"{name}.pem", root / f"client-of-{name}.pem"
    ca.write_bytes(made.certificate())
    client.write_bytes(pki.key_pem(key) + leaf)
    return Authority(ca, client)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    root = tmp_path_factory.mktemp("authorities")
    return authority(root, "cluster"), authority(root, "own")


@pytest.fixture
def context(authorities: tuple[Authority, Authority]) -> Iterator[ServingContext]:
    made = ServingContext.make(authorities[0].ca.read_text(), lambda _name: None)
    yield made
    made.close()


def client_seen(context: ServingContext, node: str, client: Path | None) -> str | None:
    """Shake hands with a node; return the name of the client that it has verified."""
    CURRENT_NODE.set(node)
    asking = ssl.create_default_context()
    asking.check_hostname = False
    asking.verify_mode = ssl.CERT_NONE
    if client is not None:
        asking.load_cert_chain(client)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [context.wrap_bio(there, back, server_side=True), asking.wrap_bio(back, there)]
    for _ in range(5):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = ends[0].getpeercert()
    assert ends[0].version() is not None
    user = user_of(found, b"") if found else None
    return user.name if user else None


def test_a_node_takes_certificates_of_the_clusters_ca(
    context: ServingContext, authorities: tuple[Authority, Authority]
) -> None:
    cluster, own = authorities
    assert client_seen(context, "n", cluster.client) == "client-of-cluster"
    assert client_seen(context, "n", None) is None
    with pytest.raises(ssl.SSLError):
        client_seen(context, "n", own.client)


def test_without_a_client_ca_no_certificate_says_who_somebody_is(
    authorities: tuple[Authority, Authority],
) -> None:
    """Not even one of whoever signed the API server's own certificate, which is known here."""
    context = ServingContext.make("", lambda _name: None)
    for each in authorities:
        assert client_seen(context, "n", each.client) is None
    context.close()


def test_another_client_ca_is_for_new_connections_and_a_broken_one_for_none(
    context: ServingContext, authorities: tuple[Authority, Authority]
) -> None:
    cluster, own = authorities
    context.use_client_ca(own.ca.read_text())
    assert client_seen(context, "n", own.client) == "client-of-own"
    with pytest.raises(ssl.SSLError):
        client_seen(context, "n", cluster.client)
    context.use_client_ca(f"{own.ca.read_text()}# M\u00fcller\n{cluster.ca.read_text()}")
    for broken in ("no certificate", "-----BEGIN CERTIFICATE-----\nAA\n", "\u00e9"):
        with pytest.raises((ValueError, OSError)):
            context.use_client_ca(broken)
    for each in (cluster, own):
        assert client_seen(context, "n", each.client) is not None


def test_a_certificate_that_is_for_servers_only_is_no_clients(tmp_path: Path) -> None:
    """Source: x509.Verify with ExtKeyUsageClientAuth."""
    made = authority(tmp_path, "usages", ExtendedKeyUsageOID.SERVER_AUTH)
    context = ServingContext.make(made.ca.read_text(), lambda _name: None)
    with pytest.raises(ssl.SSLError):
        client_seen(context, "n", made.client)
    context.close()
