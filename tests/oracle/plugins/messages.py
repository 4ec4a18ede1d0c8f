"""The messages of plug-ins, from their own protos; `make proto-plugins` compiles them again."""

from pathlib import Path

from google.protobuf.descriptor import ServiceDescriptor

from fleet.wire.api.protobuf import read_pool

_POOL = read_pool(Path(__file__).parent / "plugins.binpb")
REGISTRATION = "pluginregistration.Registration"
DEVICE_PLUGIN = "v1beta1.DevicePlugin"
DRA_PLUGIN = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
DRA_HEALTH = "v1alpha1.DRAResourceHealth"
CSI_IDENTITY = "csi.v1.Identity"
CSI_NODE = "csi.v1.Node"


def service(name: str) -> ServiceDescriptor:
    """Return a service with its methods."""
    return _POOL.FindServiceByName(name)
