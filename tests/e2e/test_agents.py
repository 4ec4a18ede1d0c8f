"""What runs beside the kubelets, as a user sees it: conditions, events, bytes, rights, errors."""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import pytest

from e2e.e2e_api import TRY_AGAIN
from e2e.e2e_world import Json, World, condition, eventually
from fleet.profile.agent_behavior import SERVICE_ACCOUNT_USER

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PREFIX = "agents"
NODE = f"{PREFIX}-00000"
AGENTS = ("kube-proxy", "cni", "csi-node", "node-problem-detector", "log-agent")
PROFILE = """\
apiVersion: fleet.emulator/v1alpha1
kind: NodeProfile
metadata: {name: busy}
spec:
  agents: [{name: kube-proxy}, {name: cni}, {name: csi-node}, {name: log-agent}]
  kubeletConfiguration: {nodeStatusUpdateFrequency: 2s, nodeStatusReportFrequency: 4s}
---
apiVersion: fleet.emulator/v1alpha1
kind: NodeAgent
metadata: {name: node-problem-detector}
spec:
  userAgent: node-problem-detector/v1.34.0 ({{os}}/{{arch}})
  serviceAccount: kube-system/node-problem-detector
  reads: [{resource: nodes, name: "{{node}}"}]
  conditionPeriod: 3s
  conditions:
  - {type: KernelDeadlock, reason: KernelHasNoDeadlock, message: kernel has no deadlock}
  - type: ReadonlyFilesystem
    reason: FilesystemIsNotReadOnly
    message: Filesystem is not read-only
    problem: {from: 8s, for: 1h, reason: FilesystemIsReadOnly, message: Filesystem is read-only}
"""
WATCHES = {"kube-proxy": 4, "cni": 4, "csi-node": 0, "node-problem-detector": 0, "log-agent": 2}


@pytest.fixture(scope="module", autouse=True)
def _agents() -> Iterator[None]:
    """Run what profiles bring, as users have it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FLEET_NO_AGENTS")
        yield


@pytest.fixture(scope="module")
def begin(world: World) -> int:
    """Return how many requests there were before: agents of other tests are the same users."""
    return len(world.audit())


@pytest.fixture(scope="module")
def directory(world: World, begin: int) -> Iterator[Path]:
    """Run two nodes with every agent, on kubelets that report often."""
    del begin
    profile = world.root / "agents.yaml"
    profile.write_text(PROFILE)
    with world.spawn(PREFIX, 2, "--start=cold", f"--profile={profile}") as run:
        run.until_ready()
        eventually(lambda: all_watch(run.directory), "agents watch")
        yield run.directory
        run.end_well_or_late()
        figures = run.summary()
        assert set(figures["agents"]) == set(AGENTS)
        codes = {row["code"] for each in figures["agents"].values() for row in each["requests"]}
        assert codes - set(TRY_AGAIN) <= {200, 201}


def received(directory: Path, name: str) -> float:
    """Return the bytes that agents of a name received so far."""
    lines = map(json.loads, (directory / "timeseries.jsonl").read_text().splitlines())
    return float(sum(line["agents"].get(name, {}).get("received_bytes", 0) for line in lines))


def all_watch(directory: Path) -> bool:
    lines = map(json.loads, (directory / "timeseries.jsonl").read_text().splitlines())
    asked = dict.fromkeys(AGENTS, 0.0)
    for line in lines:
        for name, rates in line["agents"].items():
            asked[name] += rates["requests"]
    return all(asked[name] >= 2 * max(1, WATCHES[name]) * 0.9 for name in AGENTS)


def requests_as(world: World, account: str, begin: int) -> list[Json]:
    """Return what was asked in the name of an account, by whoever is no fleet."""
    return [
        each
        for each in world.audit()[begin:]
        if (each.get("impersonatedUser") or {}).get("username", "")
        == SERVICE_ACCOUNT_USER + account
        and not each["userAgent"].startswith("fleet/")
    ]


def test_an_agent_acts_as_its_service_account(world: World, directory: Path, begin: int) -> None:
    del directory
    accounts = {name: f"kube-system:{name}" for name in WATCHES}
    accounts |= {"log-agent": "logging:log-agent", "cni": "kube-system:cni-agent"}

    def watched(name: str) -> set[str]:
        mine = requests_as(world, accounts[name], begin)
        return {each["requestURI"] for each in mine if each["verb"] == "watch"}

    for name, many in WATCHES.items():
        eventually(
            lambda name=name, many=many: len(watched(name)) >= many,  # type: ignore[misc]
            f"{name} watches",
            seen=partial(watched, name),
        )
        mine = requests_as(world, accounts[name], begin)
        namespace = accounts[name].partition(":")[0]
        assert mine
        for each in mine:
            assert f"system:serviceaccounts:{namespace}" in each["impersonatedUser"]["groups"]
            code = each.get("responseStatus", {}).get("code", 200)
            assert code < 300 or code in TRY_AGAIN, each


def test_an_agent_receives_what_happens(world: World, directory: Path) -> None:
    """A Service and its slices reach every kube-proxy, and no log agent."""
    before = {name: received(directory, name) for name in ("kube-proxy", "log-agent")}
    padding = "x" * 100_000
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "fan-out", "annotations": {"padding": padding}},
        "spec": {"ports": [{"port": 80}], "selector": {"app": "nobody"}},
    }
    world.kubectl("create", "-f", "-", stdin=json.dumps(service))
    try:
        eventually(
            lambda: received(directory, "kube-proxy") - before["kube-proxy"] > 2 * len(padding),
            "the Service reached both",
        )
        assert received(directory, "log-agent") - before["log-agent"] < len(padding)
    finally:
        world.kubectl("delete", "service", "fan-out")


def test_the_kubelet_leaves_the_detectors_conditions(world: World, directory: Path) -> None:
    del directory
    wanted = r"KernelDeadlock\s+False\s+.*KernelHasNoDeadlock\s+kernel has no deadlock"

    def described() -> bool:
        return re.search(wanted, world.kubectl("describe", "node", NODE)) is not None

    eventually(described, wanted)
    first = heartbeat(world, "Ready")
    eventually(lambda: heartbeat(world, "Ready") > first, "the kubelet reports again")
    assert described()
    said = heartbeat(world, "KernelDeadlock")
    eventually(lambda: heartbeat(world, "KernelDeadlock") > said, "the detector says it again")


def heartbeat(world: World, kind: str) -> str:
    node = world.get("node", NODE)
    [found] = [each for each in node["status"]["conditions"] if each["type"] == kind]
    return str(found["lastHeartbeatTime"])


def test_a_problem_turns_a_condition_and_is_an_event(world: World, directory: Path) -> None:
    del directory
    eventually(
        lambda: condition(world.get("node", NODE), "ReadonlyFilesystem") == "True", "a problem"
    )

    def is_told() -> bool:
        about = f"involvedObject.name={NODE},reason=FilesystemIsReadOnly"
        return bool(world.items("events", f"--field-selector={about}"))

    eventually(is_told, "an event")
    assert condition(world.get("node", NODE), "KernelDeadlock") == "False"
    assert condition(world.get("node", NODE), "NetworkUnavailable") == "False"


def test_kube_proxy_says_that_it_starts(world: World, directory: Path) -> None:
    del directory
    about = f"involvedObject.name={NODE},reason=Starting"

    def reporters() -> set[str]:
        found = world.items("events", f"--field-selector={about}")
        return {each["reportingComponent"] for each in found}

    eventually(lambda: reporters() == {"kubelet", "kube-proxy"}, "both have said so")


def watched_by_proxies(world: World, begin: int) -> list[str]:
    """Return the watches that kube-proxies opened, by path and selectors."""
    asked = requests_as(world, "kube-system:kube-proxy", begin)
    return [unquote(each["requestURI"]) for each in asked if each["verb"] == "watch"]


def proxies_of(world: World, prefix: str, begin: int) -> set[str]:
    """Return the nodes of a fleet whose kube-proxy watches its Node."""
    found = watched_by_proxies(world, begin)
    return set(re.findall(rf"metadata\.name=({prefix}-\d+)&", " ".join(found)))


def test_the_nodes_of_shipped_profiles_run_kube_proxy(world: World) -> None:
    begin = len(world.audit())
    names = {"proxies-00000", "proxies-00001"}
    with world.spawn("proxies", 2, "--profile=default", "--profile=large") as run:
        run.until_ready()
        eventually(lambda: proxies_of(world, "proxies", begin) == names, "each watches its Node")
        for selected in (
            "/services?.*fieldSelector=spec.clusterIP!=None&.*service-proxy-name",
            "/endpointslices?.*labelSelector=!service.kubernetes.io/headless",
            "/servicecidrs?",
        ):
            pattern = selected.replace("?", r"\?")
            eventually(
                lambda pattern=pattern: (  # type: ignore[misc]
                    sum(bool(re.search(pattern, each)) for each in watched_by_proxies(world, begin))
                    >= len(names)
                ),
                selected,
                seen=partial(watched_by_proxies, world, begin),
            )
        run.end_well_or_late()
    assert run.summary()["agents"]["kube-proxy"]["requests"]


def test_an_agent_without_rights_is_refused_before_anything_is_created(world: World) -> None:
    """On a named cluster fleet grants nothing: an account without roles is told in one line."""
    agent = world.root / "stranger.yaml"
    agent.write_text(
        "apiVersion: fleet.emulator/v1alpha1\nkind: NodeAgent\nmetadata: {name: stranger}\n"
        "spec: {userAgent: s/v1, serviceAccount: default/stranger, watches: [{resource: pods}]}\n"
    )
    named = (f"--kubeconfig={world.info.token_kubeconfig}", f"--profile={agent}")
    done = world.fleet("spawn", "--nodes=1", "--name-prefix=stranger", "--until-ready", *named)
    assert done.returncode == 3, done.stderr
    assert "agent stranger as system:serviceaccount:default:stranger" in done.stderr
    assert "list,watch pods" in done.stderr
    assert not world.nodes("stranger")
