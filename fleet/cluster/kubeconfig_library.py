"""kubernetes-asyncio without its models: only what reads kubeconfigs and runs exec plugins.

Importing the whole library takes 36 MB and 0.7 s for some 800 model classes that fleet never uses:
its own requests are raw JSON. The packages `kubernetes_asyncio` and `.client` are entered as empty
ones here, so that `.config` and `.client.configuration` load alone. A process that has the whole
library already keeps it.
"""

import importlib.util
import sys
import types

LIBRARY = "kubernetes_asyncio"


def _enter_empty(name: str, path: str) -> types.ModuleType:
    package = types.ModuleType(name)
    package.__path__ = [path]
    sys.modules[name] = package
    return package


def _load_without_models() -> None:
    if LIBRARY in sys.modules:
        return
    spec = importlib.util.find_spec(LIBRARY)
    assert spec is not None, LIBRARY
    assert spec.submodule_search_locations, spec
    root = spec.submodule_search_locations[0]
    _enter_empty(LIBRARY, root)
    client = _enter_empty(f"{LIBRARY}.client", f"{root}/client")
    configuration = importlib.import_module(f"{LIBRARY}.client.configuration")
    vars(client)["Configuration"] = configuration.Configuration
    vars(client)["ApiClient"] = object  # named in annotations of helpers that are never called


_load_without_models()

# The order matters: these find the empty packages.
from kubernetes_asyncio import config as kubeconfigs  # noqa: E402
from kubernetes_asyncio.client import Configuration  # noqa: E402
from kubernetes_asyncio.config.kube_config import (  # noqa: E402
    KubeConfigLoader,
    KubeConfigMerger,
)

__all__ = ["Configuration", "KubeConfigLoader", "KubeConfigMerger", "kubeconfigs"]
