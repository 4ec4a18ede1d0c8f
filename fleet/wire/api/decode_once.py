"""Objects that come to every node, in the same bytes: they are read for the first one."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

import orjson

_View = TypeVar("_View")
_OfObject = Callable[[dict[str, Any]], _View]
_OfBoth = Callable[[bytes | dict[str, Any]], _View]


def decoded_once(maxsize: int) -> Callable[[_OfObject[_View]], _OfBoth[_View]]:
    """Let a decoder of an object take its JSON, too, and keep that many of what it returned."""

    def decorate(decode: _OfObject[_View]) -> _OfBoth[_View]:
        @lru_cache(maxsize=maxsize)
        def of_bytes(body: bytes) -> _View:
            return decode(orjson.loads(body))

        @wraps(decode)
        def of_both(body: bytes | dict[str, Any]) -> _View:
            return of_bytes(body) if isinstance(body, bytes) else decode(body)

        return of_both

    return decorate
