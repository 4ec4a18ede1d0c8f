"""How a runtime says no: a gRPC status, which a kubelet prints."""

import re

import grpc

_PRINTED = re.compile(r"rpc error: code = (\w+) desc = (.*)", re.DOTALL)
_CODES = {
    "Unknown": grpc.StatusCode.UNKNOWN,
    "NotFound": grpc.StatusCode.NOT_FOUND,
    "DeadlineExceeded": grpc.StatusCode.DEADLINE_EXCEEDED,
}


class CriError(Exception):
    """An answer that is an error."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def unknown(message: str) -> CriError:
    """Return an error without a code of its own, as containerd wraps what it does not know."""
    return CriError(grpc.StatusCode.UNKNOWN, message)


def not_found(message: str) -> CriError:
    return CriError(grpc.StatusCode.NOT_FOUND, message)


def printed(text: str) -> CriError:
    """Return the error that a kubelet prints so: with its code, or without one."""
    found = _PRINTED.fullmatch(text)
    return unknown(text) if found is None else CriError(_CODES[found[1]], found[2])
