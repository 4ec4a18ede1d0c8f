"""What of the kubelet's own metrics its pods decide: volumes, logs; and its version.

Source: pkg/kubelet/volumemanager/metrics/metrics.go; pkg/kubelet/metrics/collectors/log_metrics.go;
component-base/version.
"""

from collections.abc import Iterator, Mapping

from fleet.k8s.pods import VolumeSpec
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.pod_worker import WorkerState
from fleet.kubelet.stats.exposition import Family, Row, escaped
from fleet.kubelet.stats.node_usage import NodeUse
from fleet.kubelet.stats.summary import LOG_BYTES

VOLUMES = Family(
    "volume_manager_total_volumes",
    "[ALPHA] Number of volumes in Volume Manager",
    labels=("plugin_name", "state"),
)
CONTAINER_LOGS = Family(
    "kubelet_container_log_filesystem_used_bytes",
    "[ALPHA] Bytes used by the container's logs on the filesystem.",
    labels=("container", "namespace", "pod", "uid"),
)
_VERSION = Family(
    "kubernetes_build_info",
    "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, "
    "git tree state, build date, Go version, and compiler from which Kubernetes was built, and "
    "platform on which it is running.",
)
PLUGINS = {
    "configMap": "configmap",
    "csi": "csi",
    "downwardAPI": "downward-api",
    "emptyDir": "empty-dir",
    "hostPath": "host-path",
    "persistentVolumeClaim": "csi",
    "projected": "projected",
    "secret": "secret",
}
"""By the kind of a volume. Source: pkg/volume/*, the plug-ins' names."""
DESIRED, ACTUAL = "desired_state_of_world", "actual_state_of_world"


def volume_rows(kubelet: VirtualKubelet) -> list[Row]:
    """Return how many volumes there are, and how many are to be."""
    counts: dict[tuple[str, ...], int] = {}
    loop = kubelet.pods
    if loop is None:
        return []
    for worker in loop.workers.values():
        if worker.state is not WorkerState.SYNC:
            continue
        # No sandbox is made before everything is mounted.
        is_mounted = loop.runtime.sandbox(worker.pod.uid) is not None
        for plugin in _plugins(worker.pod.spec.volumes):
            for state in (DESIRED, ACTUAL) if is_mounted else (DESIRED,):
                counts[plugin, state] = counts.get((plugin, state), 0) + 1
    return list(counts.items())


def _plugins(volumes: tuple[VolumeSpec, ...]) -> Iterator[str]:
    for volume in volumes:
        if volume.mounted and volume.kind in PLUGINS:
            yield f"kubernetes.io/{PLUGINS[volume.kind]}"


def log_rows(use: NodeUse) -> list[Row]:
    """Return what the log of each container that runs takes."""
    return [
        ((container.name, each.pod.namespace, each.pod.name, each.pod.uid), LOG_BYTES)
        for each in use.pods
        for container in each.containers
    ]


def version_text(version: str, node_info: Mapping[str, str]) -> str:
    """Return the version of the kubelet; by whom it was built nobody says."""
    major, minor = (*version.removeprefix("v").split("."), "", "")[:2]
    system, machine = node_info.get("operatingSystem", ""), node_info.get("architecture", "")
    labels = (
        f'build_date="",compiler="gc",git_commit="",git_tree_state="",'
        f'git_version="{escaped(version)}",go_version="",major="{escaped(major)}",'
        f'minor="{escaped(minor)}",platform="{escaped(system)}/{escaped(machine)}"'
    )
    return f"{_VERSION.head()}{_VERSION.name}{{{labels}}} 1\n"
