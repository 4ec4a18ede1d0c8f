"""/configz: the configuration of a kubelet with upstream's defaults, as JSON.

Source: pkg/kubelet/apis/config/v1beta1/defaults.go, SetDefaults_KubeletConfiguration;
component-base/configz/configz.go.
"""

from functools import lru_cache

import orjson
from pydantic import BaseModel

from fleet.profile.kubelet_configuration import EVICTION_HARD_DEFAULT, KubeletConfiguration
from fleet.profile.node_model import NodeModel
from fleet.quantity import Quantity, format_duration

DEFAULTS: dict[str, object] = {
    "enableServer": True,
    "syncFrequency": "1m0s",
    "fileCheckFrequency": "20s",
    "httpCheckFrequency": "20s",
    "address": "0.0.0.0",  # noqa: S104 - of a machine of its own
    "port": 10250,
    "tlsCertFile": "/var/lib/kubelet/pki/kubelet.crt",
    "tlsPrivateKeyFile": "/var/lib/kubelet/pki/kubelet.key",
    "rotateCertificates": True,
    "authentication": {
        "x509": {"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
        "webhook": {"enabled": True, "cacheTTL": "2m0s"},
        "anonymous": {"enabled": False},
    },
    "authorization": {
        "mode": "Webhook",
        "webhook": {"cacheAuthorizedTTL": "5m0s", "cacheUnauthorizedTTL": "30s"},
    },
    "registryPullQPS": 5,
    "registryBurst": 10,
    "eventRecordQPS": 50,
    "eventBurst": 100,
    "enableDebuggingHandlers": True,
    "healthzPort": 10248,
    "healthzBindAddress": "127.0.0.1",
    "oomScoreAdj": -999,
    "clusterDomain": "cluster.local",
    "clusterDNS": ["10.96.0.10"],
    "streamingConnectionIdleTimeout": "4h0m0s",
    "nodeStatusUpdateFrequency": "10s",
    "nodeStatusReportFrequency": "5m0s",
    "nodeLeaseDurationSeconds": 40,
    "imageMinimumGCAge": "2m0s",
    "imageMaximumGCAge": "0s",
    "imageGCHighThresholdPercent": 85,
    "imageGCLowThresholdPercent": 80,
    "volumeStatsAggPeriod": "1m0s",
    "cgroupsPerQOS": True,
    "cgroupDriver": "systemd",
    "cpuManagerPolicy": "none",
    "cpuManagerReconcilePeriod": "10s",
    "memoryManagerPolicy": "None",
    "topologyManagerPolicy": "none",
    "topologyManagerScope": "container",
    "runtimeRequestTimeout": "2m0s",
    "hairpinMode": "promiscuous-bridge",
    "maxPods": 110,
    "podPidsLimit": -1,
    "resolvConf": "/etc/resolv.conf",
    "cpuCFSQuota": True,
    "cpuCFSQuotaPeriod": "100ms",
    "nodeStatusMaxImages": 50,
    "maxOpenFiles": 1000000,
    "contentType": "application/vnd.kubernetes.protobuf",
    "kubeAPIQPS": 50,
    "kubeAPIBurst": 100,
    "serializeImagePulls": True,
    "evictionHard": EVICTION_HARD_DEFAULT,
    "evictionPressureTransitionPeriod": "5m0s",
    "mergeDefaultEvictionSettings": False,
    "enableControllerAttachDetach": True,
    "makeIPTablesUtilChains": True,
    "iptablesMasqueradeBit": 14,
    "iptablesDropBit": 15,
    "failSwapOn": True,
    "memorySwap": {},
    "containerLogMaxSize": "10Mi",
    "containerLogMaxFiles": 5,
    "containerLogMaxWorkers": 1,
    "containerLogMonitorInterval": "10s",
    "configMapAndSecretChangeDetectionStrategy": "Watch",
    "enforceNodeAllocatable": ["pods"],
    "volumePluginDir": "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/",
    "logging": {
        "format": "text",
        "flushFrequency": "5s",
        "verbosity": 0,
        "options": {"text": {"infoBufferSize": "0"}, "json": {"infoBufferSize": "0"}},
    },
    "enableSystemLogHandler": True,
    "enableSystemLogQuery": False,
    "shutdownGracePeriod": "0s",
    "shutdownGracePeriodCriticalPods": "0s",
    "crashLoopBackOff": {"maxContainerRestartPeriod": "5m0s"},
    "enableProfilingHandler": True,
    "enableDebugFlagsHandler": True,
    "seccompDefault": False,
    "failCgroupV1": True,
    "memoryThrottlingFactor": 0.9,
    "memoryReservationPolicy": "None",
    "registerNode": True,
    "localStorageCapacityIsolation": True,
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "podLogsDir": "/var/log/pods",
    "imagePullCredentialsVerificationPolicy": "NeverVerifyPreloadedImages",
}


@lru_cache(maxsize=64)
def configz(model: NodeModel) -> bytes:
    """Return /configz of the nodes of a profile."""
    configuration = model.kubelet
    shown = {**DEFAULTS, **_given(configuration), "maxPods": model.pods_max}
    shown["port"] = model.kubelet_port
    return orjson.dumps({"kubeletconfig": shown}, option=orjson.OPT_APPEND_NEWLINE)


def _given(configuration: BaseModel) -> dict[str, object]:
    """Return the keys that were written, by their names."""
    found: dict[str, object] = {}
    fields = type(configuration).model_fields
    for name in sorted(configuration.model_fields_set & fields.keys()):
        key = _key(configuration, name)
        value = getattr(configuration, name)
        if key in {"apiVersion", "kind"} or value is None:
            continue
        if isinstance(value, BaseModel):
            before = DEFAULTS.get(key)
            found[key] = _merged(before if isinstance(before, dict) else {}, _given(value))
        else:
            found[key] = format_duration(value) if name.endswith("_ns") else _plain(value)
    if isinstance(configuration, KubeletConfiguration):
        found.update(configuration.model_extra or {})
    return found


def _key(configuration: BaseModel, name: str) -> str:
    field = type(configuration).model_fields[name]
    return field.alias or field.serialization_alias or name


def _merged(before: dict[str, object], after: dict[str, object]) -> dict[str, object]:
    """Lay what was written over the defaults, all the way down."""
    merged = dict(before)
    for key, value in after.items():
        old = merged.get(key)
        is_deep = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = _merged(old, value) if is_deep else value  # type: ignore[arg-type]
    return merged


def _plain(value: object) -> object:
    """Return a value as JSON has it."""
    if isinstance(value, BaseModel):
        return _given(value)
    if isinstance(value, Quantity):
        return str(value)
    if isinstance(value, dict):
        return {
            key: format_duration(each) if isinstance(each, int) and not isinstance(each, bool)
            and each >= 1_000_000 else _plain(each)
            for key, each in value.items()
        }  # fmt: skip
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
