"""What of a Node that exists a kubelet makes its own, in which of the two patches."""

import dataclasses

import orjson
from world.node_world import (
    ADDRESS,
    EXISTS,
    NODE,
    START_S,
    environment,
    existing,
    facts,
    model,
    node_reply,
    turn,
)

from fleet.k8s.effects import ApiCall, NodeStatusPatch, Outbox
from fleet.k8s.pods import NodeView
from fleet.kubelet.node.node_reconcile import ATTACH_ANNOTATION, both, reconcile
from fleet.kubelet.node.node_status import NodeStatus
from fleet.kubelet.node.setters import NodeInputs, compute_conditions
from fleet.profile.release import V1_35

ZONE = "topology.kubernetes.io/zone"
TYPE = "node.kubernetes.io/instance-type"


def status_of(patch: NodeStatusPatch | None) -> dict[str, object]:
    assert patch is not None
    found: dict[str, object] = orjson.loads(b"{%b}" % patch.status_json)
    return found


def changed(**status: object) -> NodeView:
    """Return our own Node with some members of its status changed."""
    node = existing()
    assert node.details is not None
    return node._replace(details=node.details._replace(status={**node.details.status, **status}))


def played(node: NodeView, *, light: bool = False) -> tuple[dict[str, object], dict[str, object]]:
    """Return the status members of the patch of registration, and of the first tick."""
    env = environment(light=light)
    first = reconcile(NODE, node, ADDRESS, env)
    later = env.outdated.get(NODE)
    return (status_of(first) if first else {}), (status_of(later) if later else {})


def test_registration_sets_default_labels_and_no_others() -> None:
    node = existing()
    labels = {**node.labels, TYPE: "old", ZONE: "elsewhere", "mine": "kept"}
    del labels["kubernetes.io/hostname"]
    patch = reconcile(NODE, node._replace(labels=labels), ADDRESS, environment())
    assert patch is not None
    assert patch.labels == (
        ("kubernetes.io/hostname", "n"),
        (ZONE, node.labels[ZONE]),
        (TYPE, node.labels[TYPE]),
    )
    assert (patch.annotations, patch.status_json) == ((), b"")


def test_registration_says_who_attaches_volumes() -> None:
    node = existing()
    assert node.details is not None
    bare = node._replace(details=node.details._replace(annotations={"other": "kept"}))
    patch = reconcile(NODE, bare, ADDRESS, environment())
    assert patch is not None
    assert patch.annotations == ((ATTACH_ANNOTATION, "true"),)


def test_registration_zeroes_extended_resources_and_renews_huge_pages() -> None:
    had = {"example.com/x": "4", "hugepages-2Mi": "1Gi", "hugepages-64Ki": "0"}
    first, later = played(
        changed(capacity={**model().capacity, **had}, allocatable={**model().allocatable, **had})
    )
    wanted = {"example.com/x": "0", "hugepages-2Mi": "0", "hugepages-64Ki": None}
    assert first == {"capacity": wanted, "allocatable": wanted}
    assert later == {}


def test_a_node_that_somebody_made_without_a_status_gets_its_resources_at_once() -> None:
    first, later = played(changed(capacity={}, allocatable={}))
    assert first == {"capacity": model().capacity, "allocatable": model().allocatable}
    assert later == {}


def test_addresses_are_replaced_as_a_whole() -> None:
    """The API would merge them by their types."""
    first, later = played(changed(addresses=[{"type": "InternalIP", "address": "10.0.0.1"}]))
    assert first == {}
    assert later["addresses"] == [
        {"type": "InternalIP", "address": ADDRESS},
        {"type": "Hostname", "address": "n"},
        {"$patch": "replace"},
    ]


def test_an_older_kubelet_takes_its_features_back() -> None:
    env = environment()
    env.model = dataclasses.replace(env.model, release=V1_35)
    assert reconcile(NODE, existing(), ADDRESS, env) is None
    assert status_of(env.outdated[NODE]) == {"declaredFeatures": None}


def test_an_amount_written_otherwise_is_the_same() -> None:
    assert played(changed(capacity={**model().capacity, "cpu": "8000m"})) == ({}, {})


def test_an_amount_that_is_no_quantity_is_put_right() -> None:
    """Whatever wrote it: a mangled answer ended the kubelet."""
    _, tick = played(changed(capacity={**model().capacity, "memory": "32865264KI"}))
    assert tick["capacity"] == {"memory": model().capacity["memory"]}


def test_in_light_all_is_in_one_patch() -> None:
    node = changed(capacity={**model().capacity, "cpu": "4", "example.com/x": "4"})
    first, later = played(node, light=True)
    assert first == {}
    assert later == {
        "capacity": {"cpu": model().capacity["cpu"], "example.com/x": "0"},
        "allocatable": {"example.com/x": "0"},
    }


def test_the_first_status_patch_joins_what_else_changed() -> None:
    outdated = NodeStatusPatch(
        labels=(("a", "b"),), status_json=b'"capacity":{"cpu":"8"},"nodeInfo":{"osImage":"New"}'
    )
    patch = both(NodeStatusPatch(status_json=b'"capacity":{"x/y":"1"},"images":[]'), outdated)
    assert patch.labels == (("a", "b"),)
    assert status_of(patch) == {
        "capacity": {"cpu": "8", "x/y": "1"},
        "nodeInfo": {"osImage": "New"},
        "images": [],
    }


def test_in_light_a_node_that_exists_is_put_right_at_once() -> None:
    env, known, status = environment(light=True), facts(), NodeStatus()
    out: Outbox = []
    status.start(turn(env, 0, out, known))
    status.on_register_timer(NodeInputs(), turn(env, 0, out, known))
    status.on_register_reply(EXISTS, turn(env, 0, out, known))
    conditions, _ = compute_conditions((), NodeInputs(), START_S)
    node = changed(capacity={**model().capacity, "cpu": "4"})._replace(conditions=conditions)
    assert status.on_register_reply(node_reply(node), turn(env, 0, out, known))
    status.on_node(node, known)
    out.clear()
    status.report_created(NodeInputs(), turn(env, 0, out, known))
    [patch] = out
    assert isinstance(patch, ApiCall)
    assert isinstance(patch.payload, NodeStatusPatch)
    assert status_of(patch.payload) == {"capacity": {"cpu": "8"}}
