"""RuntimeClasses as kubelets read them."""

from typing import NamedTuple


class RuntimeClassView(NamedTuple):
    """What is read of a RuntimeClass. Source: node/v1 RuntimeClass."""

    name: str
    resource_version: str
    handler: str
