"""/configz: what was written, over upstream's defaults."""

import orjson

from fleet.profile.kubelet_configuration import EVICTION_HARD_DEFAULT, KubeletConfiguration
from fleet.profile.loader import load_mix
from fleet.server.configz import DEFAULTS, configz


def shown(**given: object) -> dict[str, object]:
    (model,) = load_mix().models
    object.__setattr__(model, "kubelet", KubeletConfiguration.model_validate(given))
    found: dict[str, object] = orjson.loads(configz(model))["kubeletconfig"]
    return found


def test_nothing_written_is_the_defaults() -> None:
    defaults = orjson.loads(DEFAULTS.read_bytes())
    assert shown() == {**defaults, "evictionHard": EVICTION_HARD_DEFAULT}


def test_what_is_written_is_shown_by_its_own_name() -> None:
    found = shown(
        nodeStatusUpdateFrequency="20s",
        kubeAPIQPS=7,
        evictionHard={"memory.available": "1Gi"},
        evictionSoftGracePeriod={},
        cgroupDriver="cgroupfs",
        featureGates={"EventedPLEG": True},
    )
    assert found["nodeStatusUpdateFrequency"] == "20s"
    assert found["kubeAPIQPS"] == 7
    assert found["evictionHard"] == {"memory.available": "1Gi"}
    assert found["cgroupDriver"] == "cgroupfs"
    assert found["featureGates"] == {"EventedPLEG": True}


def test_what_is_written_inside_leaves_its_neighbours() -> None:
    found = shown(authentication={"webhook": {"cacheTTL": "30s"}, "anonymous": {"enabled": True}})
    assert found["authentication"] == {
        "x509": {"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
        "webhook": {"enabled": True, "cacheTTL": "30s"},
        "anonymous": {"enabled": True},
    }
