"""What is kept of service-account tokens: all of their text, in less room."""

import json
import secrets
from base64 import urlsafe_b64encode

import pytest

from fleet.k8s.pods import PodUid, Token, TokenSource
from fleet.kubelet.volumes.token_cache import LEFT_MAX, TokenCache, pack, unpack

UID = PodUid("u-1")
SOURCE = TokenSource("", 3607, "token")
ES256_BYTES = 64


def part(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(**claims: object) -> str:
    """Return a token as an API server writes it; a key's id and a signature are random."""
    header = {"alg": "ES256", "kid": part(secrets.token_bytes(32))}
    payload = {
        "aud": ["https://kubernetes.default.svc.cluster.local"],
        "exp": 1826963646,
        "iat": 1795427646,
        "iss": "https://kubernetes.default.svc.cluster.local",
        "jti": "0c52b2f8-6d93-4a6c-9d3b-1f3a1b2c3d4e",
        "kubernetes.io": {
            "namespace": "default",
            "node": {"name": "fleet-00017", "uid": "b4a8a6a0-5d1e-4a44-8d65-0d5f2f6f0a11"},
            "pod": {"name": "web-6d4b75cb6d-x7", "uid": "5c6b2c86-3d6a-4a2c-bb57-0e8a1f7d9c22"},
            "serviceaccount": {"name": "default", "uid": "f0c2c9b6-7a52-4b0f-9e0d-6d1e2f3a4b33"},
            "warnafter": 1795431253,
        },
        "nbf": 1795427646,
        "sub": "system:serviceaccount:default:default",
        **claims,
    }
    parts = [json.dumps(each, separators=(",", ":")).encode() for each in (header, payload)]
    return ".".join(map(part, (*parts, secrets.token_bytes(ES256_BYTES))))


def test_a_token_takes_less_than_half_of_its_room() -> None:
    text = signed()
    packed = pack({"3607 ": text})
    assert unpack(packed) == {"3607 ": text}
    assert len(packed) * 2 < len(text)


@pytest.mark.parametrize(
    "text", ["", "opaque", "a.b.c", "=.b.c", "YQ.YQ.YR", "YQ.YQ.YQ.YQ", "ä.ö.ü", "..", "YQ\n.YQ.YQ"]
)
def test_what_is_no_web_token_is_kept_as_it_is(text: str) -> None:
    tokens = {"1 ": text, "2 vault": signed(), "": text}
    assert unpack(pack(tokens)) == tokens


def test_the_newest_token_of_an_audience_is_shown() -> None:
    cache = TokenCache()
    assert cache.text(UID, SOURCE) == ""
    first, second, other = (signed(jti=each) for each in "abc")
    cache.keep(UID, SOURCE, first)
    cache.keep(UID, SOURCE, second)
    cache.keep(UID, SOURCE._replace(audience="vault"), other)
    assert cache.text(UID, SOURCE) == second
    assert cache.text(UID, SOURCE._replace(audience="vault")) == other
    assert cache.text(PodUid("u-2"), SOURCE) == ""


def test_a_token_shows_itself_nowhere() -> None:
    assert "secret" not in f"{Token(7, 'secret')} {Token(7, 'secret')!r}"


def test_tokens_that_logs_are_computed_from_stay_for_the_last_pods() -> None:
    cache = TokenCache()
    uids = [PodUid(f"u-{at}") for at in range(LEFT_MAX + 2)]
    for uid in uids:
        cache.keep(uid, SOURCE, "token")
        cache.forget(uid, is_read=True)
        cache.forget(uid, is_read=True)  # a second time
    assert [cache.text(uid, SOURCE) for uid in uids] == ["", "", *["token"] * LEFT_MAX]
    cache.forget(uids[-1], is_read=False)
    assert cache.text(uids[-1], SOURCE) == ""
