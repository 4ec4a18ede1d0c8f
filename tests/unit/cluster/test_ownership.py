"""Which nodes are fleet's: never by a label alone."""

import asyncio
from typing import Any

import pytest
from world.cluster_fakes import FakeApi, node_marks
from world.node_world import view

from fleet.cluster.api_client import Answer
from fleet.cluster.ownership import (
    NODES,
    OWNER_ANNOTATION,
    RUN_LABEL,
    adopt,
    find_named,
    find_nodes,
    is_of_run,
    is_owned,
    owner_mark,
    refusal,
)
from fleet.errors import SetupError
from fleet.k8s.pods import NodeDetails


def node(run: str | None, mark: str | None) -> dict[str, Any]:
    labels = {} if run is None else {RUN_LABEL: run}
    annotations = {} if mark is None else {OWNER_ANNOTATION: mark}
    return {"metadata": {"labels": labels, "annotations": annotations}}


@pytest.mark.parametrize(
    ("run", "mark", "is_ours"),
    [
        ("r1", "r1/uid", True),
        ("r1", None, False),
        ("r1", "r2/uid", False),
        ("r1", "r1/", False),
        ("r1", "r1", False),
        ("r1", "", False),
        ("", "/uid", False),
        ("", None, False),
        (None, "r1/uid", False),
    ],
)
def test_it_takes_two_marks_that_agree(run: str | None, mark: str | None, *, is_ours: bool) -> None:
    assert is_owned(node(run, mark)) is is_ours


def test_a_node_that_is_taken_over_has_both_marks_of_the_new_run_at_once() -> None:
    api = FakeApi()
    api.put(f"{NODES}/marked", metadata=node_marks("r1", "fleet"))
    api.put(f"{NODES}/lease-made-anew", metadata=node_marks("r2", "fleet"))
    nodes = asyncio.run(find_nodes(api, RUN_LABEL)).owned
    api.log.clear()
    asyncio.run(adopt(api, nodes, "r2", "uid-of-lease"))
    assert [method for method, _path in api.log] == ["PATCH"] * 2
    for found in api.objects.values():
        assert is_owned(found)
        assert found["metadata"]["labels"][RUN_LABEL] == "r2"
        mark = found["metadata"]["annotations"][OWNER_ANNOTATION]
        assert mark == owner_mark("r2", "uid-of-lease")


def test_what_somebody_takes_or_deletes_meanwhile_is_not_adopted() -> None:
    api = FakeApi()
    for name in ("deleted", "kept", "made-again"):
        api.put(f"{NODES}/{name}", metadata=node_marks("r1", "fleet"))
    nodes = asyncio.run(find_nodes(api, RUN_LABEL)).owned
    del api.objects[f"{NODES}/deleted"]
    api.put(f"{NODES}/made-again", metadata=node_marks("r1", "fleet"))
    adopted = asyncio.run(adopt(api, nodes, "r2", "uid"))
    assert [(each.name, each.run, each.mark) for each in adopted] == [("kept", "r2", "r2/uid")]
    assert asyncio.run(adopt(api, adopted, "r2", "uid")) == adopted, "in order, without a request"
    assert api.log[-1] == ("PATCH", f"{NODES}/made-again")
    api.fail_next = [Answer(403, {"message": "nodes is forbidden"})]
    with pytest.raises(SetupError, match="cannot adopt node kept: nodes is forbidden"):
        asyncio.run(adopt(api, adopted, "r3", "uid"))


def test_of_the_nodes_with_some_names_only_those_of_the_run_are_its_own() -> None:
    api = FakeApi()
    for name, marks in (("mine", node_marks("r1")), ("others", node_marks("r2")), ("real", {})):
        api.put(f"{NODES}/{name}", metadata=marks)
    found = asyncio.run(find_named(api, ("mine", "gone", "others", "real"), "r1"))
    assert [each.name for each in found.owned] == ["mine"]
    assert [each.name for each in found.refused] == ["real", "others"]
    api.fail_next = [Answer(403, {"message": "nodes is forbidden"})]
    with pytest.raises(SetupError, match="cannot read node mine: nodes is forbidden"):
        asyncio.run(find_named(api, ("mine",), "r1"))


def test_a_kubelet_serves_a_node_with_both_marks_of_its_run() -> None:
    for run, marks, is_ours in (
        ("r1", node("r1", "r1/uid"), True),
        ("r2", node("r1", "r1/uid"), False),
        ("r1", node("r1", "r2/uid"), False),
        ("r1", node("r1", None), False),
        ("r1", node(None, "r1/uid"), False),
    ):
        found = marks["metadata"]
        details = NodeDetails(found["annotations"], {})
        found_view = view(labels=found["labels"], details=details)
        assert is_of_run(found_view, run) is is_ours, (run, marks)


def test_a_refusal_names_nodes_and_what_to_do() -> None:
    api = FakeApi()
    for index in range(20):
        api.put(f"{NODES}/real-{index:02}", metadata={"labels": {RUN_LABEL: "r1"}}, spec={})
    assert "more" not in refusal(asyncio.run(find_nodes(api, RUN_LABEL)).refused)
    for index in range(20, 22):
        api.put(f"{NODES}/real-{index:02}", metadata={"labels": {RUN_LABEL: "r1"}}, spec={})
    line = refusal(asyncio.run(find_nodes(api, RUN_LABEL)).refused)
    assert "real-00, real-01" in line
    assert "real-19 and 2 more" in line
    assert f"kubectl label node NAME {RUN_LABEL}-" in line
    assert "\n" not in line
