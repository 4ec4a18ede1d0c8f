"""Which nodes are fleet's: never by a label alone."""

import asyncio
from typing import Any

import pytest
from world.cluster_fakes import FakeApi, node_marks

from fleet.cluster.ownership import (
    NODES,
    OWNER_ANNOTATION,
    PREFIX_LABEL,
    RUN_LABEL,
    adopt,
    find_nodes,
    is_owned,
    owner_mark,
    refusal,
)
from fleet.profile.loader import load_mix


def node(run: str | None, mark: str | None, provider_id: str = "") -> dict[str, Any]:
    labels = {} if run is None else {RUN_LABEL: run}
    annotations = {} if mark is None else {OWNER_ANNOTATION: mark}
    return {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": {"providerID": provider_id} if provider_id else {},
    }


@pytest.mark.parametrize(
    ("run", "mark", "provider_id", "is_ours"),
    [
        ("r1", "r1/uid", "", True),
        ("r1", "r1/uid", "aws:///eu-west-1a/i-0123", True),  # a profile's own
        ("r1", None, "fleet://zone-a/fleet-00000", True),  # of a fleet before the annotation
        ("r1", None, "", False),
        ("r1", None, "aws:///eu-west-1a/i-0123", False),
        ("r1", "r2/uid", "fleet://zone-a/fleet-00000", False),
        ("r1", "r1/", "", False),
        ("r1", "r1", "", False),
        ("r1", "", "", False),
        ("", "/uid", "", False),
        ("", "/uid", "fleet://zone-a/fleet-00000", False),
        ("", None, "fleet://zone-a/fleet-00000", False),
        (None, "r1/uid", "fleet://zone-a/fleet-00000", False),
    ],
)
def test_it_takes_two_marks_that_agree(
    run: str | None, mark: str | None, provider_id: str, *, is_ours: bool
) -> None:
    assert is_owned(node(run, mark, provider_id)) is is_ours


def test_shipped_profiles_have_a_provider_id_of_fleet_s_own() -> None:
    assert load_mix().model_of(0).provider_id.startswith("fleet://")


def test_only_nodes_without_the_annotation_are_read_whole() -> None:
    api = FakeApi()
    api.put(f"{NODES}/marked", metadata=node_marks("r1"))
    labels = {"labels": {RUN_LABEL: "r1"}}
    api.put(f"{NODES}/older", metadata=dict(labels), spec={"providerID": "fleet://a/older"})
    api.put(f"{NODES}/real", metadata=dict(labels), spec={"providerID": "aws:///i-1"})
    found = asyncio.run(find_nodes(api, RUN_LABEL))
    assert [each.name for each in found.owned] == ["marked", "older"]
    assert [each.name for each in found.refused] == ["real"]
    read = [path for method, path in api.log if method == "GET" and path != NODES]
    assert sorted(read) == [f"{NODES}/older", f"{NODES}/real"]


def test_a_node_that_is_taken_over_has_both_marks_of_the_new_run_at_once() -> None:
    api = FakeApi()
    older = {"labels": {RUN_LABEL: "r1", PREFIX_LABEL: "fleet"}}
    api.put(f"{NODES}/older", metadata=older, spec={"providerID": "fleet://a/older"})
    api.put(f"{NODES}/marked", metadata=node_marks("r1", "fleet"))
    api.put(f"{NODES}/lease-made-anew", metadata=node_marks("r2", "fleet"))
    nodes = asyncio.run(find_nodes(api, RUN_LABEL)).owned
    api.log.clear()
    asyncio.run(adopt(api, nodes, "r2", "uid-of-lease"))
    assert [method for method, _path in api.log] == ["PATCH"] * 3
    for found in api.objects.values():
        assert is_owned(found)
        assert found["metadata"]["labels"][RUN_LABEL] == "r2"
        mark = found["metadata"]["annotations"][OWNER_ANNOTATION]
        assert mark == owner_mark("r2", "uid-of-lease")


def test_a_refusal_names_nodes_and_what_to_do() -> None:
    api = FakeApi()
    for index in range(22):
        api.put(f"{NODES}/real-{index:02}", metadata={"labels": {RUN_LABEL: "r1"}}, spec={})
    line = refusal(asyncio.run(find_nodes(api, RUN_LABEL)).refused)
    assert "real-00, real-01" in line
    assert "real-19 and 2 more" in line
    assert f"kubectl label node NAME {RUN_LABEL}-" in line
    assert "\n" not in line
