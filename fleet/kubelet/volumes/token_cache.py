"""The service-account tokens of the pods of one node, as their volumes show them.

A token is a JSON Web Token, and most of its text is the same in all of them or known to be likely:
packed against a dictionary of that, one of 900 characters takes 400 bytes.
Source: pkg/kubelet/token/token_manager.go, Manager.cache, keyFunc.
"""

import binascii
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

from fleet.objects.pods import Pod, PodUid

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


class TokenKey(NamedTuple):
    """Which token: a pod has one for each audience and life."""

    uid: PodUid
    audience: str
    expiration_s: int


class TokenCache:
    """The newest token of each pod, audience and life."""

    __slots__ = ("_packed",)

    def __init__(self) -> None:
        self._packed: dict[TokenKey, bytes] = {}

    def keep(self, key: TokenKey, text: str) -> None:
        """Take a new token in the place of the last."""
        self._packed[key] = pack(text)

    def text(self, key: TokenKey) -> str:
        """Return a token, "" if there is none."""
        packed = self._packed.get(key)
        return "" if packed is None else unpack(packed)

    def forget(self, pod: Pod) -> None:
        """Drop the tokens of a pod that is gone."""
        for volume in pod.spec.volumes:
            for each in volume.tokens:
                self._packed.pop(TokenKey(pod.uid, each.audience, each.expiration_s), None)


def pack(text: str) -> bytes:
    """Return a token in fewer bytes: as JSON and signature if it has those, else as it is."""
    parts = text.encode().split(b".")
    try:
        decoded = [urlsafe_b64decode(part + b"=" * (-len(part) % 4)) for part in parts]
    except binascii.Error:
        decoded = []
    if len(decoded) != _PARTS or _joined(decoded) != text:
        return _deflated(b"\0" + text.encode())
    header, payload, signature = decoded
    lengths = len(header).to_bytes(2) + len(payload).to_bytes(3)
    return _deflated(b"\1" + lengths + header + payload + signature)


def unpack(packed: bytes) -> str:
    """Return the token."""
    unpacking = zlib.decompressobj(-zlib.MAX_WBITS, _LIKELY)
    found = unpacking.decompress(packed)
    if found[0] == 0:
        return found[1:].decode()
    payload_at = 6 + int.from_bytes(found[1:3])
    signature_at = payload_at + int.from_bytes(found[3:6])
    return _joined([found[6:payload_at], found[payload_at:signature_at], found[signature_at:]])


def _joined(parts: list[bytes]) -> str:
    return b".".join(urlsafe_b64encode(part).rstrip(b"=") for part in parts).decode()


def _deflated(data: bytes) -> bytes:
    packing = zlib.compressobj(
        zlib.Z_BEST_COMPRESSION, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=_LIKELY
    )
    return packing.compress(data) + packing.flush()
