"""Static pods: what a manifest says, and the pod that each node makes of it.

A manifest is parsed once for all nodes of a profile; a node's form differs by its name, its uid
and the node that it stands on.
Source: pkg/kubelet/config/common.go, applyDefaults, generatePodName.
Differs: the uid is hashed from the manifest's JSON, not from how Go prints the object.
"""

import copy
from typing import NamedTuple

from fleet.k8s.pods import Pod, PodUid

FNV_PRIME = 0x1000000000000000000013B
FNV_OFFSET = 0x6C62272E07BB014262B821756295C58D
_FNV_MASK = (1 << 128) - 1
FILE = "file"
"""The only source of static pods here. Source: pkg/kubelet/types/pod_update.go."""


class StaticManifest(NamedTuple):
    """One pod of a file, with defaults, before a node took it."""

    path: str
    uid: str  # "" unless the manifest names one
    digest: int  # FNV-1a of the object
    template: Pod
    json: bytes  # metadata and spec

    def pod_of(self, node_name: str, seen_ns: int) -> "StaticPod":
        """Return the pod of one node, first seen at a wall time."""
        uid = self.uid
        if not uid:
            digest = fnv128a(f"host:{node_name}".encode(), self.digest)
            digest = fnv128a(f"file:{self.path}".encode(), digest)
            uid = f"{digest:032x}"
        return StaticPod(self, node_name, PodUid(uid), seen_ns)


class StaticPod(Pod):
    """A static pod of one node. Its uid is also its hash, by which mirrors are compared."""

    __slots__ = ("manifest", "seen_ns")

    def __init__(self, manifest: StaticManifest, node_name: str, uid: PodUid, seen_ns: int) -> None:
        template = manifest.template
        for slot in Pod.__slots__:
            setattr(self, slot, getattr(template, slot))
        self.name = f"{template.name}-{node_name.lower()}"
        self.uid = uid
        self.node_name = node_name
        self.manifest = manifest
        self.seen_ns = seen_ns  # wall


def with_uid(pod: Pod, uid: PodUid) -> Pod:
    """Return a mirror pod under the uid of its static pod, by which the node knows both."""
    new = copy.copy(pod)
    new.uid = uid
    return new


def fnv128a(data: bytes, digest: int = FNV_OFFSET) -> int:
    """Return the 128-bit FNV-1a digest of bytes, going on from another one."""
    for byte in data:
        digest = (digest ^ byte) * FNV_PRIME & _FNV_MASK
    return digest
