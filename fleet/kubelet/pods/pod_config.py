"""PodConfig: turn what the API source says about pods into ADD, UPDATE, DELETE, REMOVE, RECONCILE.

The pods watch is the only source. A pod is known by its UID; spec, labels, annotations and the
two deletion fields decide between an UPDATE (or DELETE) and a RECONCILE, by their fingerprint.
A snapshot of a node's own watch is one merge: what is new in it is added in the order of creation.
Source: pkg/kubelet/config/config.go, podStorage.Merge, checkAndUpdatePod; client-go,
UndeltaStore.Replace; kubelet.go, HandlePodAdditions.
Differs: upstream merges a full snapshot after every event; here each event is its own merge. Of a
shared watch the events of a relist are passed on as they come, and the REMOVEs of what it did not
mention follow. Names cannot collide within the API.
"""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from fleet.k8s.pods import EventType, Pod, PodUid


class PodOp(enum.IntEnum):
    """Source: pkg/kubelet/types/pod_update.go, PodOperation."""

    ADD = 0
    UPDATE = 1
    DELETE = 2  # a graceful deletion has begun
    REMOVE = 3  # the object is gone
    RECONCILE = 4  # only the status differs


class PodUpdate(NamedTuple):
    """One change of the desired pods."""

    op: PodOp
    pod: Pod


@dataclass(slots=True, eq=False)
class PodConfig:
    """The pods that the API server wants on one node, by UID, in the order of their arrival."""

    _pods: dict[PodUid, Pod] = field(default_factory=dict)
    _unseen: dict[PodUid, Pod] | None = None  # during a relist: not mentioned so far
    _listed: dict[PodUid, Pod] | None = None  # the snapshot so far, if it is one merge

    def get(self, uid: PodUid) -> Pod | None:
        """Return the newest version of a pod."""
        return self._pods.get(uid)

    def __iter__(self) -> Iterator[Pod]:
        return iter(self._pods.values())

    def __len__(self) -> int:
        return len(self._pods) + len(self._listed or ())

    def on_relist_started(self, *, is_own: bool) -> None:
        """Take a whole snapshot, up to SYNCED: all at once if the watch is the node's own.

        Of a shared watch remember which pods the snapshot must mention to survive it.
        """
        if is_own:
            self._listed = {}
        else:
            self._unseen = dict(self._pods)

    def on_event(self, event: EventType, pod: Pod | None) -> Iterable[PodUpdate]:
        """Merge one event of the watch; `pod` is None only at the end of the initial events."""
        if event is EventType.SYNCED:
            return self._end_relist()
        if pod is None:
            return ()
        if self._listed is not None:
            self._listed.pop(pod.uid, None)
            if event is not EventType.DELETED:
                self._listed[pod.uid] = pod
            return ()
        if event is EventType.DELETED:
            return self._remove(pod.uid)
        if self._unseen is not None:
            self._unseen.pop(pod.uid, None)
        known = self._pods.get(pod.uid)
        return self._add(pod) if known is None else self._change(known, pod)

    def _change(self, known: Pod, pod: Pod) -> Iterable[PodUpdate]:
        """Replace a pod by its new version. Source: checkAndUpdatePod."""
        self._pods[pod.uid] = pod
        pod.resource_version = known.resource_version  # events name the version first seen
        differs = differs_semantically(known, pod)
        if known.fingerprint == pod.fingerprint:
            # Keep one copy of equal values: a pod changes its status often and its spec never.
            pod.uid = known.uid
            pod.name = known.name
            pod.token_suffix = known.token_suffix
            if pod.spec == known.spec:  # else its claims were named
                pod.spec = known.spec
        if differs:
            return (PodUpdate(PodOp.DELETE if pod.deleting else PodOp.UPDATE, pod),)
        if known.status != pod.status or known.spec.admission != pod.spec.admission:
            return (PodUpdate(PodOp.RECONCILE, pod),)
        pod.status = known.status  # one copy of equal values
        return ()

    def _add(self, pod: Pod) -> Iterable[PodUpdate]:
        """Add a pod; during a relist, after removing the one whose name it has taken."""
        updates: list[PodUpdate] = []
        for old in (self._unseen or {}).values():
            if old.name == pod.name and old.namespace == pod.namespace:
                updates += self._remove(old.uid)
                break
        self._pods[pod.uid] = pod
        updates.append(PodUpdate(PodOp.ADD, pod))
        return updates

    def _remove(self, uid: PodUid) -> Iterable[PodUpdate]:
        if self._unseen is not None:
            self._unseen.pop(uid, None)
        gone = self._pods.pop(uid, None)
        return () if gone is None else (PodUpdate(PodOp.REMOVE, gone),)

    def _end_relist(self) -> Iterable[PodUpdate]:
        if self._listed is not None:
            listed, self._listed = self._listed, None
            return self._merge(listed)
        gone = self._unseen or {}
        self._unseen = None
        for uid in gone:
            del self._pods[uid]
        return [PodUpdate(PodOp.REMOVE, pod) for pod in gone.values()]

    def _merge(self, listed: dict[PodUid, Pod]) -> Iterable[PodUpdate]:
        """Merge a whole snapshot. Source: podStorage.Merge, which sends one update of each kind."""
        updates: list[PodUpdate] = []
        for uid in [uid for uid in self._pods if uid not in listed]:
            updates += self._remove(uid)
        new = [pod for uid, pod in listed.items() if uid not in self._pods]
        known = [(self._pods[uid], pod) for uid, pod in listed.items() if uid in self._pods]
        for pod in sorted(new, key=lambda pod: pod.created_s):
            updates += self._add(pod)
        changes = [change for old, pod in known for change in self._change(old, pod)]
        return updates + sorted(changes, key=lambda change: change.op)


def differs_semantically(known: Pod, new: Pod) -> bool:
    """Tell an UPDATE from a RECONCILE. Source: config.go, podsDifferSemantically."""
    return (
        known.fingerprint != new.fingerprint
        or known.deletion_s != new.deletion_s
        or known.deletion_grace_s != new.deletion_grace_s
    )
