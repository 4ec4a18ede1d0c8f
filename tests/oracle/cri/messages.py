"""The messages of CRI, from upstream's own proto; `make proto-cri` compiles it anew.

Source: k8s.io/cri-api, pkg/apis/runtime/v1/api.proto.
"""

from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from fleet.wire.api.protobuf import read_pool

FILE = Path(__file__).parent / "runtime_v1.binpb"
PACKAGE = "runtime.v1."
RUNTIME_SERVICE = "RuntimeService"
IMAGE_SERVICE = "ImageService"


_POOL = read_pool(FILE)


@cache
def message_class(name: str) -> Any:
    """Return the class of a message, such as PodSandboxStatus."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(PACKAGE + name))


def service(name: str) -> ServiceDescriptor:
    """Return a service with its methods."""
    return _POOL.FindServiceByName(PACKAGE + name)


def request_class(method: MethodDescriptor) -> Any:
    return message_factory.GetMessageClass(method.input_type)


def response_class(method: MethodDescriptor) -> Any:
    return message_factory.GetMessageClass(method.output_type)


def path(method: MethodDescriptor) -> str:
    """Return what names a method on the wire."""
    return f"/{PACKAGE}{method.containing_service.name}/{method.name}"


def value(name: str) -> int:
    """Return the number of a value of an enum, such as SANDBOX_READY."""
    return _VALUES[name]


_VALUES: dict[str, int] = {
    one.name: one.number
    for enum in _POOL.FindFileByName("api.proto").enum_types_by_name.values()
    for one in enum.values
}
