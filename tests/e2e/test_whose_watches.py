"""`--watches`: who watches what, as a real API server's audit log shows it."""

import json

import pytest

from e2e.audit_requests import requests_of, shape_of
from e2e.e2e_world import World, eventually, workload

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

BASE = {f"watch {each} 200" for each in ("nodes", "services", "csidrivers", "runtimeclasses")}
OWN = BASE | {"watch pods 200"}


def watches(world: World, node: str) -> set[str]:
    return {each for each in shape_of(requests_of(world, node)) if each.startswith("watch")}


@pytest.mark.parametrize(
    ("fidelity", "mode", "processes"),
    [("kubelet", "shared", 2), ("light", "per-node", 1)],
)
def test_the_other_watches_of_each_fidelity(
    world: World, fidelity: str, mode: str, processes: int
) -> None:
    app = f"watch-{fidelity}"
    arguments = (f"--fidelity={fidelity}", f"--watches={mode}", f"--processes={processes}")
    with world.spawn(app, 4, *arguments, "--output=json") as run:
        run.until("all 4 nodes are Ready")
        world.apply(workload("Deployment", app, 8))
        eventually(lambda: len(world.ready_pods(app)) == 8, "pods are Ready")
        names = list(world.nodes(app))
        world.kubectl("delete", "deployment", app)
        eventually(lambda: not world.pods(app), "pods end")
        sent = {name: shape_of(requests_of(world, name)) for name in names}
        found = {name: watches(world, name) for name in names}
        summary = json.loads(run.end_well_or_late())
    assert summary["watches"] == mode
    if mode == "shared":
        assert all(not each for each in found.values())
        assert all("create serviceaccounts/default 201" in each for each in sent.values())
        # The processes' own: nodes, pods, services, runtimeclasses, csidrivers, one ConfigMap.
        counts = {
            row["resource"]: row["count"]
            for row in summary["requests"]
            if row["verb"] == "WATCH" and row["code"] == 200
        }
        kinds = ("nodes", "pods", "services", "runtimeclasses", "csidrivers", "configmaps")
        assert counts.keys() == set(kinds)
        assert min(counts.values()) == processes
        # A server that is busy may end one, which is opened again.
        assert sum(counts.values()) <= len(kinds) * processes + summary["watch"]["restarts"]
    else:
        assert all(each >= OWN for each in found.values())
        # Two that carry the calls, and one for watches: they must not take a renewal's stream.
        assert (summary["connections"]["open"], summary["own_limits"]) == (3, {})
        assert not any("create serviceaccounts" in text for each in sent.values() for text in each)
    world.assert_nothing_left(app)
