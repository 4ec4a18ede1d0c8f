"""What `fleet run --dry-run` says beforehand, held against what the API server then gets of nodes.

`make forecast FORECAST_NODES=1000` is the same at full size.
"""

import os
import re
import time
from pathlib import Path

import pytest
import yaml

from e2e.audit_requests import seconds
from e2e.e2e_world import DEDICATED, World, eventually
from fleet.scenario.scenario import shipped

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

NODES = int(os.environ.get("FLEET_FORECAST_NODES", "60"))
OFF_BY_MAX = 0.2
WITHIN_S = 900.0  # a thousand nodes come up on two busy cores
REPORT_S = 300  # each kubelet reports its status once
REPORT_FROM_S = 150  # the first report comes half that time early or late
CHURN_FROM_S, CHURN_S = 30, 120  # the first pods have gone again
CHURN_RATE_MAX = max(1.0, NODES / 200)
"""Pods a second, 5 for 1,000 nodes as it ships. A server that is late gets fewer for each pod."""
HERD_S = 100
VERBS = {
    "get": "GET",
    "update": "PUT",
    "create": "POST",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETE",
    "watch": "WATCH",
}
COUNT = re.compile(r"(WATCH|(?:GET|PUT|POST|PATCH|DELETE) [a-z/]+) ([\d,.]+)(?:/s)?(?:,| in all|$)")


def forecast(world: World, path: Path) -> dict[str, dict[str, float]]:
    """Return what a dry run says, by the first word of each line; the first line of a kind."""
    told = world.fleet("run", str(path), "--dry-run", f"--nodes={NODES}", "--no-agents")
    assert told.returncode == 0, told.stderr
    found: dict[str, dict[str, float]] = {}
    for line in told.stdout.partition("forecast")[2].splitlines()[1:]:
        counts = {what: float(each.replace(",", "")) for what, each in COUNT.findall(line)}
        if counts:
            found.setdefault(line.split()[0], counts)
    return found


def counted(world: World, prefix: str, from_s: float, until_s: float) -> dict[str, int]:
    """Return what the nodes of a run have asked the API server for between two moments."""
    once = {each["auditID"]: each for each in world.audit()}  # a watch is logged at its end, too
    found: dict[str, int] = {}
    for each in once.values():
        user = (each.get("impersonatedUser") or each["user"])["username"]
        if user.startswith(f"system:node:{prefix}-") and from_s <= seconds(each) < until_s:
            about = each["objectRef"]
            what = "/".join(filter(None, (about["resource"], about.get("subresource"))))
            verb = VERBS.get(each["verb"], each["verb"])
            key = verb if verb == "WATCH" else f"{verb} {what}"
            found[key] = found.get(key, 0) + 1
    return found


def assert_near(said: dict[str, float], got: dict[str, int], over_s: float = 1.0) -> None:
    """Hold a forecast against what came. `over_s`: it is of one second, of so many."""
    off = {
        what: (round(each * over_s), got.get(what, 0))
        for what, each in said.items()
        if abs(got.get(what, 0) - each * over_s) > OFF_BY_MAX * each * over_s
    }
    assert said
    assert not off, f"said and counted: {off}; all that was counted: {got}"
    print(f"said {said} for {over_s:.0f} s, counted {got}")


def written(world: World, name: str, **durations: str) -> Path:
    """Write a shipped scenario whose phases last so long instead, with fewer pods for few nodes."""
    document = yaml.safe_load(shipped()[name].read_text())
    document["spec"]["defaults"] = False
    document["spec"].pop("expectations", None)
    for phase in document["spec"]["phases"]:
        if phase["name"] in durations:
            phase["duration"] = durations[phase["name"]]
        for churn in phase.get("churn", ()):
            churn["rate"] = min(churn["rate"], CHURN_RATE_MAX)
    path = world.root / f"forecast-{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize("name", ["steady-5k", "pod-churn", "thundering-herd"])
def test_a_forecast_is_near_what_the_server_counts(world: World, name: str) -> None:
    path = written(world, name, idle=f"{REPORT_FROM_S + REPORT_S + 20}s", before="10s")
    said = forecast(world, path)
    prefix = f"said-{name}"
    named = (f"--kubeconfig={world.info.kubeconfig}", *DEDICATED, f"--nodes={NODES}")
    with world.start(prefix, "run", str(path), *named) as run:

        def until(words: str) -> float:
            eventually(lambda: words in run.log, words, limit_s=WITHIN_S, seen=lambda: run.log)
            return time.time()

        if name == "steady-5k":
            begun_s = until("phase idle") + REPORT_FROM_S
            time.sleep(REPORT_FROM_S + REPORT_S)
            got = counted(world, prefix, begun_s, begun_s + REPORT_S)
            assert_near(said["idle"], got, REPORT_S)
        elif name == "pod-churn":
            begun_s = until("phase churn") + CHURN_FROM_S
            time.sleep(CHURN_FROM_S + CHURN_S)
            got = counted(world, prefix, begun_s, begun_s + CHURN_S)
            assert_near(said["churn"], got, CHURN_S)
        else:
            begun_s = until("fault 1: KubeletRestart on") - 1
            time.sleep(HERD_S)
            assert_near(said["herd"], counted(world, prefix, begun_s, begun_s + HERD_S))
        run.ended_well_or_late()
    world.assert_nothing_left(prefix)
