"""The service-account tokens of the pods of one node, as their volumes show them.

A token is a JSON Web Token, and most of its text is the same in all of them or known to be likely:
packed against a dictionary of that, one of 900 characters takes 330 bytes.
Source: pkg/kubelet/token/token_manager.go, Manager.cache, keyFunc.
"""

import binascii
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from fleet.objects.pods import PodUid

_LIKELY = (
    b'{"alg":"RS256","kid":"{"alg":"ES256","kid":"'
    b'{"aud":["https://kubernetes.default.svc"],"exp":17,"iat":17,"iss":"","jti":"",'
    b'{"aud":["https://kubernetes.default.svc.cluster.local"],"exp":1,"iat":1,'
    b'"iss":"https://kubernetes.default.svc.cluster.local","jti":"","kubernetes.io":{"namespace":'
    b'"default","node":{"name":"fleet-00000","uid":"-4"},"pod":{"name":"","uid":"-4"},'
    b'"serviceaccount":{"name":"default","uid":"-4"},"warnafter":1},"nbf":1,'
    b'"sub":"system:serviceaccount:default:default"}'
)
"""Of a token's header and payload; what is most likely stands last. Source: pkg/serviceaccount."""
_PARTS = 3
_OPAQUE, _DECODED = b"\0", b"\1"
_LENGTH_BYTES = 3


LEFT_MAX = 16
"""Pods that have ended whose tokens are kept."""


class TokenKey(NamedTuple):
    """Which token: a pod has one for each audience and life."""

    uid: PodUid
    audience: str
    expiration_s: int


class TokenCache:
    """The newest token of each pod, audience and life."""

    __slots__ = ("_left", "_packed")

    def __init__(self) -> None:
        self._packed: dict[PodUid, bytes] = {}
        self._left: tuple[PodUid, ...] = ()  # whose pods are gone

    def keep(self, key: TokenKey, text: str) -> None:
        """Take a new token in the place of the last."""
        kept = self._tokens(key.uid)
        kept[_name(key)] = text
        self._packed[key.uid] = pack(kept)

    def text(self, key: TokenKey) -> str:
        """Return a token, "" if there is none."""
        return self._tokens(key.uid).get(_name(key), "")

    def forget(self, uid: PodUid, *, is_read: bool) -> None:
        """Drop the tokens of a pod that is gone.

        `is_read`: its log is computed from them, so that those of the last such pods are kept.
        """
        if not is_read:
            self._packed.pop(uid, None)
        elif uid in self._packed and uid not in self._left:
            self._left = (*self._left, uid)[-LEFT_MAX - 1 :]
            if len(self._left) > LEFT_MAX:
                self._packed.pop(self._left[0], None)
                self._left = self._left[1:]

    def _tokens(self, uid: PodUid) -> dict[str, str]:
        packed = self._packed.get(uid)
        return {} if packed is None else unpack(packed)


def _name(key: TokenKey) -> str:
    return f"{key.expiration_s} {key.audience}"


def pack(tokens: Mapping[str, str]) -> bytes:
    """Return the tokens of a pod by name in fewer bytes."""
    packing = zlib.compressobj(
        zlib.Z_BEST_COMPRESSION, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=_LIKELY
    )
    parts = [part for name, text in tokens.items() for part in (name.encode(), _shortened(text))]
    return b"".join(packing.compress(_field(part)) for part in parts) + packing.flush()


def unpack(packed: bytes) -> dict[str, str]:
    """Return the tokens."""
    fields = _fields(zlib.decompressobj(-zlib.MAX_WBITS, _LIKELY).decompress(packed))
    return {name.decode(): _lengthened(next(fields)) for name in fields}


def _shortened(text: str) -> bytes:
    """Return a token as JSON and signature if it has those, else as it is."""
    try:
        parts = [
            urlsafe_b64decode(part + b"=" * (-len(part) % 4)) for part in text.encode().split(b".")
        ]
    except binascii.Error:
        parts = []
    if len(parts) != _PARTS or _joined(parts) != text:
        return _OPAQUE + text.encode()
    return _DECODED + b"".join(map(_field, parts))


def _lengthened(data: bytes) -> str:
    if data[:1] == _OPAQUE:
        return data[1:].decode()
    return _joined(_fields(data[1:]))


def _joined(parts: Iterable[bytes]) -> str:
    return b".".join(urlsafe_b64encode(part).rstrip(b"=") for part in parts).decode()


def _field(data: bytes) -> bytes:
    return len(data).to_bytes(_LENGTH_BYTES) + data


def _fields(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(data[at:begin])
        yield data[begin:at]
