"""gRPC services whose methods are found by name: `RunPodSandbox` is `run_pod_sandbox`."""

import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from cri.errors import CriError
from cri.messages import PACKAGE, request_class, response_class, service

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def method_name(rpc: str) -> str:
    return _WORD.sub("_", rpc).lower()


def generic_handler(name: str, served: object, check: Callable[[], None]) -> grpc.GenericRpcHandler:
    """Serve the methods of a service that an object has; the others are unimplemented.

    `check` is called before each of them, and raises CriError while nobody answers.
    """
    handlers = {}
    for method in service(name).methods:
        call = getattr(served, method_name(method.name), None)
        if call is None:
            continue
        wrap, kind = (
            (_stream, grpc.unary_stream_rpc_method_handler)
            if method.server_streaming
            else (_unary, grpc.unary_unary_rpc_method_handler)
        )
        handlers[method.name] = kind(
            wrap(call, check),
            request_deserializer=request_class(method).FromString,
            response_serializer=response_class(method).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(PACKAGE + name, handlers)


def _unary(call: Callable[[Any], Any], check: Callable[[], None]) -> Callable[[Any, Any], Any]:
    async def handle(request: Any, context: Any) -> Any:
        try:
            check()
            return await call(request)
        except CriError as error:
            await context.abort(error.code, error.message)

    return handle


def _stream(
    call: Callable[[Any], AsyncIterator[Any]], check: Callable[[], None]
) -> Callable[[Any, Any], AsyncIterator[Any]]:
    async def handle(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            check()
        except CriError as error:
            await context.abort(error.code, error.message)
        async for each in call(request):
            yield each

    return handle
