"""/configz: the configuration of a kubelet with upstream's defaults, as JSON.

Source: pkg/kubelet/apis/config/v1beta1/defaults.go, SetDefaults_KubeletConfiguration, of which
kubelet_defaults.json is the result; component-base/configz/configz.go.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from fleet.profile.kubelet_configuration import EVICTION_HARD_DEFAULT
from fleet.profile.node_model import NodeModel

Json = dict[str, Any]
DEFAULTS = Path(__file__).with_name("kubelet_defaults.json")


@lru_cache(maxsize=64)
def configz(model: NodeModel) -> bytes:
    """Return /configz of the nodes of a profile."""
    written = model.kubelet.model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude_none=True
    )
    defaults = {**orjson.loads(DEFAULTS.read_bytes()), "evictionHard": EVICTION_HARD_DEFAULT}
    shown = _merged(defaults, written) | {"maxPods": model.pods_max, "port": model.kubelet_port}
    for key in ("apiVersion", "kind"):
        shown.pop(key, None)
    return orjson.dumps({"kubeletconfig": shown}, option=orjson.OPT_APPEND_NEWLINE)


def _merged(defaults: Json, written: Json) -> Json:
    """Lay what was written over the defaults; of a structure, member by member."""
    merged = {**defaults}
    for key, value in written.items():
        is_structure = key in STRUCTURES and isinstance(value, dict)
        merged[key] = _merged(merged.get(key, {}), value) if is_structure else value
    return merged


STRUCTURES = frozenset(
    ("authentication", "authorization", "anonymous", "webhook", "x509", "crashLoopBackOff")
)
"""Members that are structures with defaults of their own; maps, such as evictionHard, have none."""
