"""/stats/summary: stats/v1alpha1 of a node and its pods as JSON, members in Go's order.

Source: pkg/kubelet/server/stats/summary.go, Get, GetCPUAndMemoryStats; summary_sys_containers.go;
k8s.io/kubelet/pkg/apis/stats/v1alpha1/types.go.
Differs: nothing ever waits for a resource: its PSI is 0.
"""

import orjson

from fleet.clock import NS_PER_S
from fleet.k8s.times import rfc3339
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.volumes.pod_volume import volume_name
from fleet.runtime.container_usage import resources_of
from fleet.server.node_usage import Cgroup, ContainerUse, NodeUse, PodUse, node_usage

Json = dict[str, object]
KUBELET_SHARE = 4  # the kubelet's part of what a node runs outside of its pods
_MEASURED = frozenset(
    ("configMap", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected", "secret")
)
"""Kinds of volumes that can say how full they are."""
LOG_BYTES = 4096  # of the log of a container, as it stands on the disk
SMALL_VOLUME = 12 << 10  # what the files of a ConfigMap or a token take
_NO_WAIT = {"total": 0, "avg10": 0, "avg60": 0, "avg300": 0}
_PSI = {"full": _NO_WAIT, "some": _NO_WAIT}


def stats_summary(kubelet: VirtualKubelet, now_ns: int, *, only_cpu_and_memory: bool) -> bytes:
    """Return the summary of a node."""
    use = node_usage(kubelet, now_ns)
    writer = _Writer(use, only_cpu_and_memory=only_cpu_and_memory)
    return orjson.dumps({"node": writer.node(), "pods": [writer.pod(each) for each in use.pods]})


class _Writer:
    """One summary."""

    def __init__(self, use: NodeUse, *, only_cpu_and_memory: bool) -> None:
        self._use = use
        self._is_short = only_cpu_and_memory
        self._time = rfc3339(use.wall_ns // NS_PER_S).decode()

    def node(self) -> Json:
        """Return the stats of the node."""
        use = self._use
        start = rfc3339(use.started_s).decode()
        kubelet = Cgroup(*(amount // KUBELET_SHARE for amount in use.system))
        found: Json = {
            "nodeName": use.name,
            "systemContainers": [
                {"name": "kubelet", "startTime": start, **self._cgroup(kubelet, 0)},
                {
                    "name": "pods",
                    "startTime": start,
                    **self._cgroup(use.pods_cgroup, use.model.pods_memory_bytes),
                },
            ],
            "startTime": start,
            **self._cgroup(use.cgroup, use.capacity.memory, has_swap=False),
        }
        if self._is_short:
            return {**found, "swap": self._swap(use.cgroup)}
        image_disk = use.model.image_disk_bytes or use.capacity.disk
        image_fs = self._fs(image_disk, use.disk, use.image_bytes, 0)
        return {
            **found,
            "network": self._network(use.received, use.sent),
            "fs": self._fs(use.capacity.disk, use.disk, use.disk, use.inodes),
            "runtime": {"imageFs": image_fs, "containerFs": image_fs},
            "rlimit": {
                "time": self._time,
                "maxpid": use.model.pids_max,
                "curproc": use.cgroup.pids,
            },
            "swap": self._swap(use.cgroup),
        }

    def pod(self, each: PodUse) -> Json:
        """Return the stats of a pod."""
        pod = each.pod
        limit = resources_of(pod.spec.ended_json).limits.memory  # as far as its cgroup has one
        found: Json = {
            "podRef": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
            "startTime": rfc3339(each.created_s).decode(),
            "containers": [self._container(container) for container in each.containers],
            **self._cgroup(each.cgroup, limit, has_swap=False),
        }
        if self._is_short:
            return {**found, "swap": self._swap(each.cgroup)}
        if not pod.spec.host_network:
            found["network"] = self._network(each.received, each.sent)
        volumes = self._volumes(each)
        if volumes:
            found["volume"] = volumes
        disk = self._use.capacity.disk
        found["ephemeral-storage"] = self._fs(disk, self._use.disk, each.disk, each.inodes)
        found["process_stats"] = {"process_count": each.cgroup.pids}
        found["swap"] = self._swap(each.cgroup)
        return found

    def _container(self, each: ContainerUse) -> Json:
        limit = each.memory_limit
        found: Json = {
            "name": each.name,
            "startTime": rfc3339(each.started_s).decode(),
            **self._cgroup(each.cgroup, limit, has_swap=False),
        }
        if not self._is_short:
            disk = self._use.capacity.disk
            found["rootfs"] = self._fs(disk, self._use.disk, each.disk, each.inodes)
            found["logs"] = self._fs(disk, self._use.disk, LOG_BYTES, 2)
        return {**found, "swap": self._swap(each.cgroup)}

    def _cgroup(self, cgroup: Cgroup, limit: int, *, has_swap: bool = True) -> Json:
        time = self._time
        memory: Json = {"time": time}
        if limit:
            memory["availableBytes"] = max(limit - cgroup.memory, 0)
        memory |= {
            "usageBytes": cgroup.memory_usage,
            "workingSetBytes": cgroup.memory,
            "rssBytes": cgroup.memory_rss,
            "pageFaults": cgroup.page_faults,
            "majorPageFaults": cgroup.major_faults,
            "psi": _PSI,
        }
        found: Json = {
            "cpu": {
                "time": time,
                "usageNanoCores": cgroup.cpu_nano,
                "usageCoreNanoSeconds": cgroup.cpu_ns,
                "psi": _PSI,
            },
            "memory": memory,
        }
        if not self._is_short:
            found["io"] = {"time": time, "psi": _PSI}
        if has_swap:
            found["swap"] = self._swap(cgroup)
        return found

    def _swap(self, cgroup: Cgroup) -> Json:
        return {"time": self._time, "swapAvailableBytes": 0, "swapUsageBytes": cgroup.swap}

    def _network(self, received: int, sent: int) -> Json:
        counts: Json = {
            "name": "eth0",
            "rxBytes": received,
            "rxErrors": 0,
            "txBytes": sent,
            "txErrors": 0,
        }
        return {"time": self._time, **counts, "interfaces": [counts]}

    def _fs(self, capacity: int, all_used: int, used: int, inodes_used: int) -> Json:
        inodes = self._use.capacity.inodes
        return {
            "time": self._time,
            "availableBytes": max(capacity - all_used, 0),
            "capacityBytes": capacity,
            "usedBytes": used,
            "inodesFree": max(inodes - self._use.inodes, 0),
            "inodes": inodes,
            "inodesUsed": inodes_used,
        }

    def _volumes(self, each: PodUse) -> list[Json]:
        found = []
        disk = self._use.capacity.disk
        for volume in each.pod.spec.volumes:
            if volume.kind not in _MEASURED or not volume.mounted or volume.block:
                continue
            default = 0 if volume.kind in {"emptyDir", "persistentVolumeClaim"} else SMALL_VOLUME
            used = each.volumes.get(volume.name, default)
            shown = self._fs(disk, self._use.disk, used, 5)
            shown["name"] = volume_name(volume, each.pod)
            if volume.claim:
                shown["pvcRef"] = {"name": volume.claim, "namespace": each.pod.namespace}
            found.append(shown)
        return found
