"""Pods that came for a node before its kubelet did, by a watch that all nodes share."""

from world.pod_world import make_pod

from fleet.k8s.effects import WatchEvent, WatchKind
from fleet.k8s.pods import EventType, Pod
from fleet.reactor.watches import Subscriptions


def test_a_kubelet_takes_the_pods_that_were_there_by_age() -> None:
    books = Subscriptions()
    for name, created_s in (("young", 9), ("old", 7), ("middle", 8)):
        pod = make_pod(uid=name, name=name, created_s=created_s, node_name="n-0")
        books.keep(WatchEvent(WatchKind.PODS, EventType.MODIFIED, pod), "n-0")
    found = [event.record for event in books.claim(WatchKind.PODS, "n-0")]
    assert [pod.name for pod in found if isinstance(pod, Pod)] == ["old", "middle", "young"]
    assert books.claim(WatchKind.PODS, "n-0") == []
