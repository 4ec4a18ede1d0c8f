"""What users do first, on a control plane of one minor, with figures.

All of it goes by the command line, as in tests/e2e. The audit log says what the nodes asked, and
what the API server refused as something that it does not know.
"""

import contextlib
import dataclasses
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import orjson
from e2e.e2e_world import SUITES_PROGRAMS, Json, Running, World, condition, eventually, workload

from fleet.profile.release import minor_of

PROPERTY = "figures of a minor"
"""Of a test: its Figures, as JSON."""
JUDGED = "judged by a kubelet"
"""Of a test: the release, and how the replay of what its kubelet did ended."""
PODS = 100
CSR_NODES = LEFT_NODES = 10
LIMIT_S = 900.0
POLL_S = 0.5
VERBS = ("create", "get", "list", "watch", "update", "patch", "delete")
NODE = "system:node:"
SAYS = "echo ready for work; sleep 1000000"
UNKNOWN = (400, 405, 406, 415, 422)
"""Codes with which an API server answers what it does not know; 404 unless it names an object."""


@dataclasses.dataclass(slots=True)
class Figures:
    """What a smoke run measured."""

    release: str
    nodes: int
    took_s: dict[str, float] = dataclasses.field(default_factory=dict)
    """The wall time of each step."""
    requests: dict[str, int] = dataclasses.field(default_factory=dict)
    """Of the nodes of the first step, by verb."""
    refused: dict[str, int] = dataclasses.field(default_factory=dict)
    """As unknown, whoever asked."""

    @contextlib.contextmanager
    def timed(self, step: str) -> Iterator[None]:
        begin_s = time.monotonic()
        yield
        self.took_s[step] = time.monotonic() - begin_s


def smoke(world: World, release: str, nodes: int) -> Figures:
    """Play all steps; each leaves nothing behind. Raises AssertionError for what does not work."""
    figures = Figures(release, nodes)
    fleet_of_kubelets(world, figures)
    own_certificates(world, figures)
    light(world, figures)
    clean(world, figures)
    figures.refused = refused(world.audit_log)
    return figures


def fleet_of_kubelets(world: World, figures: Figures) -> None:
    """Register nodes, start and stop pods on them, read and steer them, and break one."""
    prefix, pods = "smoke", min(PODS, 5 * figures.nodes)
    with world.spawn(prefix, figures.nodes, SUITES_PROGRAMS) as run:
        with figures.timed("register"):
            until_ready(run)
        names = sorted(world.nodes(prefix))
        assert len(names) == figures.nodes
        told = {
            each["status"]["nodeInfo"]["kubeletVersion"] for each in world.nodes(prefix).values()
        }
        assert {minor_of(each) for each in told} == {minor_of(figures.release)}, told
        with figures.timed("pods up"):
            start_pods(world, "many", pods)
        with figures.timed("logs, exec"):
            streams(world)
        with figures.timed("faults"):
            faults(world, run, names[0])
        with figures.timed("pods down"):
            remove_pods(world, "many")
        run.end_well_or_late()
    world.assert_nothing_left(prefix)
    figures.requests = asked(world.audit_log, prefix)


def streams(world: World) -> None:
    """Read a pod's log, run a command in it, and look at its usage."""
    container = {"name": "c", "image": "busybox", "command": ["sh", "-c", SAYS]}
    spec: Json = {"containers": [container], "terminationGracePeriodSeconds": 1}
    world.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec})
    world.kubectl("wait", "--for=condition=Ready", "pod/one", "--timeout=120s")
    assert world.kubectl("logs", "one") == "ready for work\n"
    assert world.kubectl("exec", "one", "--", "sh", "-c", "echo $((6 * 7))") == "42\n"
    world.kubectl("delete", "pod", "one")


def faults(world: World, run: Running, node: str) -> None:
    """Have a daemon report a problem of a node and take it back, and restart a kubelet."""

    def said() -> str:
        return condition(world.get("node", node), "KernelDeadlock")

    at = f"--run-dir={run.directory}"
    for order in (
        ("inject", "NodeCondition", "--condition=KernelDeadlock"),
        ("inject", "KubeletRestart"),
    ):
        done = world.fleet(*order, f"--nodes={node}", at)
        assert done.returncode == 0, done.stderr
    wait(lambda: said() == "True", "the problem is reported")
    assert world.fleet("heal", "--all", at).returncode == 0
    wait(lambda: said() != "True", "it is over")
    wait(lambda: condition(world.get("node", node), "Ready") == "True", "the node is Ready")


def own_certificates(world: World, figures: Figures) -> None:
    """Let nodes join with certificates of their own, and run a pod on each."""
    with figures.timed("csr"), world.spawn("own", CSR_NODES, "--identity=csr") as run:
        until_ready(run)
        start_pods(world, "own", CSR_NODES)
        remove_pods(world, "own")
        run.end_well_or_late()
        world.assert_nothing_left("own")


def light(world: World, figures: Figures) -> None:
    """Do the same with the cheapest nodes."""
    pods = min(PODS, 5 * figures.nodes)
    with figures.timed("light"):
        with world.spawn("light", figures.nodes, "--fidelity=light") as run:
            until_ready(run)
            start_pods(world, "light", pods)
            remove_pods(world, "light")
            run.end_well_or_late()
        world.assert_nothing_left("light")


def clean(world: World, figures: Figures) -> None:
    """Kill a run, and remove what it left."""
    with figures.timed("clean"):
        with world.spawn("left", LEFT_NODES) as run:
            until_ready(run)
            of_run = world.run_id("left")
            run.process.send_signal(signal.SIGKILL)
            run.wait()
        done = world.fleet("clean", f"--run={of_run}", "--yes")
        assert f"removed 1 runs: {LEFT_NODES} nodes" in done.stdout, (done.stdout, done.stderr)
        world.assert_nothing_left("left")


def start_pods(world: World, name: str, count: int) -> None:
    """Create a Deployment, and wait until all of its pods are Ready."""
    world.apply(workload("Deployment", name, count, terminationGracePeriodSeconds=1))
    wait(lambda: len(world.ready_pods(name)) == count, "the pods are Ready")


def remove_pods(world: World, name: str) -> None:
    """Delete a Deployment, and wait until its pods are gone."""
    world.kubectl("delete", "deployment", name)
    wait(lambda: not world.pods(name), "the pods are gone")


def until_ready(run: Running) -> None:
    def is_ready() -> bool:
        assert run.process.poll() is None, run.log
        return "nodes are Ready after" in run.log

    wait(is_ready, "the nodes are Ready")


def wait(is_true: Callable[[], object], what: str) -> None:
    eventually(is_true, what, limit_s=LIMIT_S, poll_s=POLL_S)


def asked(audit_log: Path, prefix: str) -> Counter[str]:
    """Return how many requests the nodes of a prefix made, by verb."""
    begins = f"{NODE}{prefix}-"
    return Counter(each["verb"] for each in _events(audit_log) if _user(each).startswith(begins))


def refused(audit_log: Path) -> Counter[str]:
    """Return what the API server did not know of what fleet asked: verb, resource and code."""
    found: Counter[str] = Counter()
    for each in _events(audit_log):
        status, about = each.get("responseStatus", {}), each.get("objectRef", {})
        code = status.get("code", 0)
        is_absent = code == 404 and status.get("details", {}).get("name")
        is_unknown = code in UNKNOWN or (code == 404 and not is_absent)
        is_ours = _user(each).startswith(NODE) or each.get("userAgent", "").startswith("fleet/")
        if is_ours and is_unknown:
            where = about.get("resource", each["requestURI"])
            found[f"{each['verb']} {where} {code} {status.get('message', '')}"] += 1
    return found


def _events(audit_log: Path) -> Iterator[Json]:
    """Yield each request once: a watch has two lines."""
    seen = set()
    with audit_log.open("rb") as log:
        for line in log:
            event: Json = orjson.loads(line)
            if event["auditID"] not in seen:
                seen.add(event["auditID"])
                yield event


def _user(event: Json) -> str:
    user = event.get("impersonatedUser") or event["user"]
    return str(user.get("username", ""))


def table(rows: list[Figures], judged: Mapping[str, str]) -> str:
    """Return one line for each minor: wall times in seconds, and requests of a node by verb."""
    steps = [*rows[0].took_s]
    head = ["release", "nodes", *steps, *VERBS, "refused"]
    lines = [[*head, "judge"]]
    for each in rows:
        times = [f"{each.took_s[step]:.1f}" for step in steps]
        counts = [f"{each.requests.get(verb, 0) / each.nodes:.1f}" for verb in VERBS]
        ends = (str(sum(each.refused.values())), judged.get(each.release, "-"))
        lines.append([each.release, str(each.nodes), *times, *counts, *ends])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )
