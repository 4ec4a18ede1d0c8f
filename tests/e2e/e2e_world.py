"""The real command line on one standing control plane that all tests share.

The fixtures are in e2e_fixtures.py, what ends with the session in guard.py.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml
from support.go_program import TESTED
from support.summary_schema import read_summary

from e2e import forked_fleet
from e2e.e2e_api import api_of, audit_log
from e2e.forked_fleet import Forked
from e2e.lateness import assert_done
from fleet.cluster.ownership import PREFIX_LABEL, RUN_LABEL
from fleet.controlplane.options import APISERVER, ControlPlaneInfo
from fleet.profile.loader import show_profile
from fleet.profile.release import release_of
from fleet.run.interrupts import ONE_WISH_S

Json = dict[str, Any]

FLEET = (str(Path(sys.executable).with_name("fleet")),)
WAIT_MAX_S = 120.0
POLL_S = 0.1
PAUSE = "registry.k8s.io/pause:3.10.1"
TOLD_MAX = 4_000
"""Bytes of the end of a log that a failed test shows."""
FOREIGN_NODE = "not-fleets"
CONFIRMED = "--confirm-cluster=fleet"
SUITES_PROGRAMS = f"--programs={Path(__file__).parent.parent / 'conformance' / 'programs'}"
"""A shell, for what people type into containers."""
"""The context of a local control plane's kubeconfigs: who names one must confirm it."""
DEDICATED = (CONFIRMED, "--no-taint")
"""Any pod may come, as to a control plane that nobody named."""
NO_LEVELS = """\
apiVersion: fleet.emulator/v1alpha1
kind: ServiceLevelObjectives
metadata: {name: none}
spec: {defaults: false, expectations: []}
"""
"""The defaults are for API servers that have cores of their own."""
WATCHED = (
    *("nodes", "pods", "services", "csidrivers", "runtimeclasses"),
    *(("podcertificaterequests",) * release_of(TESTED).watches_certificate_requests),
)
"""What a kubelet of the tested release watches, without pods."""
POLICY = "apiserver_flowcontrol_dispatched_requests_total"


def eventually(
    is_true: Callable[[], object],
    what: str,
    *,
    limit_s: float = WAIT_MAX_S,
    poll_s: float = POLL_S,
    seen: Callable[[], object] = str,
) -> None:
    """Wait until something holds; if it does not, tell what was seen instead."""
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline, f"not within {limit_s:.0f} s: {what} {seen()}"
        time.sleep(poll_s)


class Running:
    """One `fleet spawn` that is on."""

    def __init__(self, process: Forked | subprocess.Popen[str], directory: Path, log: Path) -> None:
        self.process = process
        self.directory = directory
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def until(self, words: str, *, poll_s: float = POLL_S) -> None:
        """Wait until it says something on stderr."""

        def is_said() -> bool:
            if words in self.log:
                return True
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.log}"
            return False

        eventually(is_said, words, poll_s=poll_s, seen=lambda: self.log[-TOLD_MAX:])

    def until_ready(self) -> None:
        self.until("nodes are Ready after")

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def interrupt_again(self) -> None:
        """Press Ctrl-C once more, so late that it is no echo of the first."""
        time.sleep(2 * ONE_WISH_S)
        self.interrupt()

    def wait(self, *, limit_s: float = 2 * WAIT_MAX_S) -> int:
        return self.process.wait(limit_s)

    def end_well_or_late(self) -> str:
        """End it with Ctrl-C, as the stage of a test; return what it printed."""
        self.interrupt()
        return self.ended_well_or_late()

    def ended_well_or_late(self) -> str:
        """Wait until it has ended, as the stage of a test; return what it printed."""
        printed, _ = self.process.communicate(timeout=2 * WAIT_MAX_S)
        assert_done(self.process.returncode, printed, self.log)
        assert "\x1b" not in printed + self.log  # neither is a terminal
        return printed

    def summary(self) -> Json:
        return read_summary(self.directory / "summary.json")


@dataclass(frozen=True, slots=True)
class World:
    """A control plane and a command line that sees nothing of the user's."""

    root: Path
    info: ControlPlaneInfo
    audit_log: Path
    running: list[str] = field(default_factory=list, compare=False)
    """The prefixes of the fleets that are on."""

    def fleet(
        self, *arguments: str, stdin: int | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run fleet to its end."""
        command = (*FLEET, *arguments)
        with tempfile.TemporaryDirectory(dir=self.root) as kept:
            printed, log = Path(kept, "stdout"), Path(kept, "stderr")
            process = forked_fleet.start(
                command,
                cwd=self.root,
                stdin=stdin,
                stdout=printed,
                stderr=log,
                **variables,
            )
            with process:
                try:
                    code = process.wait(2 * WAIT_MAX_S)
                finally:
                    process.kill()
            return subprocess.CompletedProcess(command, code, printed.read_text(), log.read_text())

    @contextlib.contextmanager
    def spawn(
        self, prefix: str, nodes: int, *arguments: str, has_levels: bool = False
    ) -> Iterator[Running]:
        """Start `fleet spawn`; whatever happens, it is gone afterwards.

        It is held to no service levels, unless the test has a look at them.
        """
        levels = self.root / "no-levels.yaml"
        levels.write_text(NO_LEVELS)
        held_to = () if has_levels else (f"--slo={levels}",)
        with self.start(prefix, "spawn", f"--nodes={nodes}", *held_to, *arguments) as running:
            yield running

    @contextlib.contextmanager
    def start(self, prefix: str, command: str, *arguments: str) -> Iterator[Running]:
        """Start a command of fleet that brings nodes up; it is gone afterwards."""
        directory = self.root / "spawned" / f"{prefix}-{time.monotonic_ns()}"
        directory.parent.mkdir(exist_ok=True)
        log = directory.with_suffix(".log")
        if command == "run" and "FLEET_NO_AGENTS" in os.environ:  # it reads no variables
            arguments = (*arguments, "--no-agents")
        process = forked_fleet.start(
            (*FLEET, command, f"--name-prefix={prefix}", f"--run-dir={directory}", *arguments),
            cwd=self.root,
            stdin=None,
            stdout=directory.with_suffix(".out"),
            stderr=log,
        )
        with process:
            self.running.append(prefix)
            try:
                yield Running(process, directory, log)
            except BaseException as error:
                error.add_note(f"The fleet {prefix} said:\n{log.read_text()[-TOLD_MAX:]}")
                raise
            finally:  # if it failed, leftovers.py removes what is left of it
                process.kill()
                process.wait(WAIT_MAX_S)
                self.running.remove(prefix)

    @contextlib.contextmanager
    def server_stopped(self) -> Iterator[None]:
        """Have the API server answer nobody for a moment: whoever needs it gets no further."""
        pid = self.info.pids[APISERVER]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def quick(self, name: str = "quick", **configuration: str) -> str:
        """Name a profile whose kubelets renew their Leases every 2 s, not 10.

        `configuration` is what else differs of theirs; such a profile has a file of its own.
        """
        profile = yaml.safe_load(show_profile("default"))
        profile["spec"]["kubeletConfiguration"] |= {"nodeLeaseDurationSeconds": 8, **configuration}
        path = self.root / f"{name}.yaml"
        path.write_text(yaml.safe_dump(profile))
        return f"--profile={path}"

    def kubectl(
        self, *arguments: str, stdin: str = "", kubeconfig: Path | None = None, check: bool = True
    ) -> str:
        command = (*self.info.kubectl, f"--kubeconfig={kubeconfig or self.info.kubeconfig}")
        done = subprocess.run(
            (*command, *arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=2 * WAIT_MAX_S,
            check=False,
        )
        assert not check or done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def get(self, *arguments: str) -> Json:
        """Return what `kubectl get` with these arguments finds."""
        return api_of(self.info).get(*arguments)

    def items(self, *arguments: str) -> list[Json]:
        found: list[Json] = self.get(*arguments)["items"]
        return found

    def apply(self, *objects: Json) -> None:
        document = "---\n".join(yaml.safe_dump(each) for each in objects)
        self.kubectl("apply", "-f", "-", stdin=document)

    def nodes(self, prefix: str) -> dict[str, Json]:
        """Return the nodes of a fleet by name."""
        found = self.items("nodes", "-l", f"{PREFIX_LABEL}={prefix}")
        return {node["metadata"]["name"]: node for node in found}

    def uids(self, prefix: str) -> dict[str, str]:
        """Return the UIDs of the nodes of a fleet by name."""
        return {name: node["metadata"]["uid"] for name, node in self.nodes(prefix).items()}

    def run_id(self, prefix: str) -> str:
        """Return the run that all nodes of a fleet belong to."""
        [run] = {node["metadata"]["labels"][RUN_LABEL] for node in self.nodes(prefix).values()}
        return str(run)

    def pods(self, app: str) -> list[Json]:
        return self.items("pods", "-l", f"app={app}")

    def ready_pods(self, app: str) -> list[Json]:
        return [pod for pod in self.pods(app) if condition(pod, "Ready") == "True"]

    def assert_nothing_left(self, prefix: str) -> None:
        """Nodes, their Leases and CSINodes, and the run's Lease are gone.

        A Lease that was on its way when its node went is the garbage collector's.
        """
        nodes = self.nodes(prefix)
        assert not nodes, list(nodes)
        eventually(lambda: not self._left(prefix), f"nothing of {prefix} is left")

    def _left(self, prefix: str) -> list[str]:
        kinds = ("leases.coordination.k8s.io", "csinodes")
        found = [each for kind in kinds for each in self.items(kind, "-A")]
        names = [each["metadata"]["name"] for each in found]
        return [
            each for each in names if each.startswith(f"{prefix}-") or each == f"fleet-run-{prefix}"
        ]

    def audit(self) -> list[Json]:
        """Return the requests so far, for reading; the user of one not let in has no name."""
        return audit_log(self.audit_log).events()

    def dispatched(self, by: str = "priority_level") -> dict[str, int]:
        """Return how many requests priority-and-fairness let through, by level or flow schema."""
        counts: dict[str, int] = {}
        for line in self.kubectl("get", "--raw", "/metrics").splitlines():
            if line.startswith(POLICY):
                labels, _, value = line.removeprefix(f"{POLICY}{{").rpartition("} ")
                name = dict(part.split("=", 1) for part in labels.split(","))[by].strip('"')
                counts[name] = counts.get(name, 0) + int(float(value))
        return counts

    def user(self, path: Path, token: str, **cluster: object) -> Path:
        """Write a kubeconfig of our server with a token of its own."""
        document = yaml.safe_load(self.info.kubeconfig.read_text())
        document["users"][0]["user"] = {"token": token}
        document["clusters"][0]["cluster"] |= cluster
        path.write_text(yaml.safe_dump(document))
        return path


def condition(item: Json, kind: str) -> str:
    """Return the status of a condition."""
    found = [
        each["status"] for each in item["status"].get("conditions", ()) if each["type"] == kind
    ]
    return found[0] if found else ""


def workload(kind: str, name: str, replicas: int = 0, **spec: object) -> Json:
    """Return a Deployment, or a Job, of the pods `app: name`."""
    container = {"name": "c", "image": PAUSE}
    pod: Json = {"containers": [container], **spec}
    outer: Json = {"template": {"metadata": {"labels": {"app": name}}, "spec": pod}}
    if kind == "Job":
        container["command"] = ["true"]  # type: ignore[assignment]
        pod["restartPolicy"] = "Never"
        outer |= {"completions": replicas, "parallelism": replicas}
        return {"apiVersion": "batch/v1", "kind": kind, "metadata": {"name": name}, "spec": outer}
    outer |= {"replicas": replicas, "selector": {"matchLabels": {"app": name}}}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": outer}


def pod(
    name: str,
    script: str = "",
    node: str = "",
    *,
    container: Json | None = None,
    annotations: Json | None = None,
    volumes: Sequence[Json] = (),
    **spec: object,
) -> Json:
    """Return a pod of one container that mounts all volumes, bound to a node if one is named."""
    main: Json = {"name": "c", "image": PAUSE}
    if script:
        main |= {"image": "busybox", "command": ["sh", "-c", script]}
    if volumes:
        spec["volumes"] = volumes
        main["volumeMounts"] = [
            {"name": each["name"], "mountPath": f"/{each['name']}"} for each in volumes
        ]
    if node:
        spec["nodeName"] = node
    metadata = {"name": name, **({"annotations": annotations} if annotations else {})}
    containers = [{**main, **(container or {})}]
    body = {"containers": containers, "terminationGracePeriodSeconds": 1, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def children(run: Running, word: str) -> list[psutil.Process]:
    """Return the processes of a run in whose command a word stands."""
    return [each for each in psutil.Process(run.process.pid).children() if word in each.cmdline()]


def six_nodes(world: World, prefix: str, *options: str) -> Iterator[Running]:
    """Run six nodes for as long as a fixture lives."""
    with world.spawn(prefix, 6, *options) as run:
        run.until_ready()
        yield run
        run.end_well_or_late()
    world.assert_nothing_left(prefix)


def assert_killed_and_adopted(run: Running, nodes: int) -> None:
    """Kill the second process of a run; the one in its place has its nodes again."""
    [killed] = children(run, "spawn")
    os.kill(killed.pid, signal.SIGKILL)
    log = run.directory / "process-0001" / "log"
    adopted = f"adopted {nodes} nodes that an earlier run left"
    eventually(lambda: adopted in log.read_text(), adopted)


def read_until(terminal: int, wanted: bytes) -> bytes:
    """Return what is shown until some text is."""
    said = b""
    until_s = time.monotonic() + WAIT_MAX_S
    while wanted not in said:
        assert time.monotonic() < until_s, said
        if select.select([terminal], [], [], 1)[0]:
            said += os.read(terminal, 4096)
    return said
