"""Everyday software in the shapes of public charts: all of it becomes Ready or Complete."""

from collections import Counter
from pathlib import Path

import pytest
import yaml
from e2e_world import Json, World, eventually

pytest_plugins = ("e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

CHARTS = sorted(Path(__file__).with_name("public_charts").glob("*.yaml"))
"""Manifests written for this test. They name programs and images that fleet knows nothing about."""
PLURALS = {
    "Deployment": "deployments",
    "StatefulSet": "statefulsets",
    "DaemonSet": "daemonsets",
    "Job": "jobs",
}


def is_up(found: Json) -> bool:
    """Return whether a workload has reached the state that its chart is meant for."""
    status = found.get("status", {})
    match found["kind"]:
        case "DaemonSet":
            wanted = status.get("desiredNumberScheduled", 0)
            return bool(wanted) and status.get("numberReady") == wanted
        case "Job":
            conditions = status.get("conditions", ())
            return "Complete" in {each["type"] for each in conditions}
        case _:
            return bool(status.get("readyReplicas", 0) == found["spec"]["replicas"])


def test_shapes_of_public_charts_become_ready_or_complete(world: World) -> None:
    """No container restarts on the way, and no Job needs a second pod."""
    objects = [each for path in CHARTS for each in yaml.safe_load_all(path.read_text())]
    workloads = [each for each in objects if each["kind"] in PLURALS]
    wanted = {(each["kind"], each["metadata"]["name"]) for each in workloads}
    assert len(wanted) >= 35
    with world.spawn("charts", 3) as run:
        run.until_ready()
        world.kubectl("create", "namespace", "charts")
        world.kubectl("apply", "--namespace=charts", *(f"--filename={path}" for path in CHARTS))

        def behind() -> list[str]:
            found = [
                {"kind": kind, **each}
                for kind, plural in PLURALS.items()
                for each in world.items(plural, "--namespace=charts")
            ]
            up = {(each["kind"], each["metadata"]["name"]) for each in found if is_up(each)}
            return sorted(f"{kind} {name}" for kind, name in wanted - up)

        eventually(lambda: not behind(), "every chart is up", seen=behind)
        restarts: Counter[str] = Counter()
        for pod in world.items("pods", "--namespace=charts"):
            status = pod["status"]
            assert status["phase"] in ("Running", "Succeeded"), (pod["metadata"]["name"], status)
            containers = status.get("initContainerStatuses", []) + status["containerStatuses"]
            restarts[pod["metadata"]["name"]] = sum(each["restartCount"] for each in containers)
        assert not +restarts
        world.kubectl("delete", "namespace", "charts", "--wait=false")
        run.end_well_or_late()
