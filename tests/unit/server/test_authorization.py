"""What a request wants of a node, what is answered, and how long reviews are good."""

import pytest

from fleet.k8s.effects import NodeId
from fleet.server.auth import (
    VERBS,
    ExpiringCache,
    subresources,
    token_key,
    user_of,
)
from fleet.server.http import User


@pytest.mark.parametrize(
    ("path", "fine", "coarse"),
    [
        ("/pods", ("pods", "proxy"), ("proxy",)),
        ("/healthz", ("healthz", "proxy"), ("proxy",)),
        ("/healthz/log", ("healthz", "proxy"), ("proxy",)),
        ("/configz", ("configz", "proxy"), ("proxy",)),
        ("/healthzy", ("proxy",), ("proxy",)),
        ("/stats/summary", ("stats",), ("stats",)),
        ("/metrics", ("metrics",), ("metrics",)),
        ("/metrics/cadvisor", ("metrics",), ("metrics",)),
        ("/metricsy", ("proxy",), ("proxy",)),
        ("/exec/a/b/c", ("proxy",), ("proxy",)),
    ],
)
def test_a_path_is_a_subresource_of_its_node(
    path: str, fine: tuple[str, ...], coarse: tuple[str, ...]
) -> None:
    assert subresources(path) == fine
    assert subresources(path, is_fine_grained=False) == coarse


def test_methods_are_verbs() -> None:
    verbs = [VERBS.get(each, "") for each in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")]
    assert verbs == ["get", "create", "update", "patch", "delete", ""]


def test_a_certificate_names_a_user_and_groups() -> None:
    subject = (
        (("organizationName", "system:masters"),),
        (("organizationName", "dev"),),
        (("commonName", "ada"),),
    )
    groups = ("system:masters", "dev", "system:authenticated")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    extra = (("authentication.kubernetes.io/credential-id", (f"X509SHA256={digest}",)),)
    assert user_of({"subject": subject}, b"abc") == User("ada", groups=groups, extra=extra)
    assert user_of({"subject": ((("organizationName", "dev"),),)}, b"") is None
    assert user_of({}, b"") is None


def test_an_answer_is_good_until_it_expires() -> None:
    cache: ExpiringCache[str, int] = ExpiringCache()
    cache.put("a", 1, ttl_ns=10, now_ns=100)
    assert cache.get("a", 109) == 1
    assert cache.get("a", 110) is None
    assert len(cache) == 0


def test_an_answer_that_is_put_again_lives_from_then() -> None:
    cache: ExpiringCache[str, int] = ExpiringCache()
    cache.put("a", 1, ttl_ns=10, now_ns=100)
    cache.put("a", 2, ttl_ns=10, now_ns=105)
    assert cache.get("a", 112) == 2


def test_the_oldest_goes_first_when_there_are_too_many() -> None:
    cache: ExpiringCache[int, int] = ExpiringCache(entries_max=3)
    for key in range(5):
        cache.put(key, key, ttl_ns=100, now_ns=0)
    assert [cache.get(key, 1) for key in range(5)] == [None, None, 2, 3, 4]


def test_sweeping_drops_what_has_expired_and_nothing_else() -> None:
    cache: ExpiringCache[str, int] = ExpiringCache()
    cache.put("a", 1, ttl_ns=10, now_ns=0)
    cache.put("b", 2, ttl_ns=20, now_ns=0)
    cache.sweep(10)
    assert len(cache) == 1
    assert cache.get("b", 10) == 2


def test_a_token_is_kept_as_its_digest_and_for_one_node() -> None:
    one, other = token_key(NodeId(1), "secret"), token_key(NodeId(2), "secret")
    assert one != other
    assert "secret" not in repr(one)
