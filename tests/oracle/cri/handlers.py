"""gRPC services whose methods are found by name: `RunPodSandbox` is `run_pod_sandbox`."""

import re
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from oracle.cri.errors import CriError
from oracle.cri.messages import request_class, response_class, service

Handle = Callable[[Any, Any], Any]
"""Takes a request and its context."""
Wrap = Callable[[Any, Any], Handle]
"""Makes one of a method of ours and the class of its answers."""
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def method_name(rpc: str) -> str:
    return _WORD.sub("_", rpc).lower()


def generic_handler(name: str, served: object, check: Callable[[], None]) -> grpc.GenericRpcHandler:
    """Serve a service of CRI.

    `check` is called before each method, and raises CriError while nobody answers.
    """
    return handler_of(service(name), served, partial(_unary, check), partial(_stream, check))


def handler_of(
    described: ServiceDescriptor, served: object, unary: Wrap, stream: Wrap
) -> grpc.GenericRpcHandler:
    """Serve the methods of a service that an object has; the others are unimplemented."""
    handlers = {}
    for method in described.methods:
        call = getattr(served, method_name(method.name), None)
        if call is None:
            continue
        wrap, kind = (
            (stream, grpc.unary_stream_rpc_method_handler)
            if method.server_streaming
            else (unary, grpc.unary_unary_rpc_method_handler)
        )
        answer = response_class(method)
        handlers[method.name] = kind(
            wrap(call, answer),
            request_deserializer=request_class(method).FromString,
            response_serializer=answer.SerializeToString,
        )
    return grpc.method_handlers_generic_handler(described.full_name, handlers)


def _unary(check: Callable[[], None], call: Callable[[Any], Any], _: Any) -> Handle:
    async def handle(request: Any, context: Any) -> Any:
        try:
            check()
            return await call(request)
        except CriError as error:
            await context.abort(error.code, error.message)

    return handle


def _stream(check: Callable[[], None], call: Callable[[Any], AsyncIterator[Any]], _: Any) -> Handle:
    async def handle(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            check()
        except CriError as error:
            await context.abort(error.code, error.message)
        async for each in call(request):
            yield each

    return handle
