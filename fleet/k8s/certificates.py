"""Records of the certificates of nodes: what signing requests say, and how long one is valid."""

import enum
from typing import NamedTuple


class CertificateKind(enum.IntEnum):
    """Which of a kubelet's two certificates."""

    CLIENT = 0
    SERVING = 1


class Validity(NamedTuple):
    """The life of a certificate, in seconds of the wall clock."""

    not_before_s: int
    not_after_s: int


class SigningRequestView(NamedTuple):
    """A CertificateSigningRequest as its requester reads it."""

    name: str
    uid: str
    certificate: bytes = b""  # PEM, once it is issued
    is_approved: bool = False
    refusal: str = ""  # the message of Denied or Failed; never empty then
