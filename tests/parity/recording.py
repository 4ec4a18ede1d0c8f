"""The script on two nodes, one of them Kubernetes' own kubelet: what was asked of the API server.

Each node speaks through a proxy that notes headers; the audit log has everything else.
"""

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.e2e_world import DEDICATED, Json, World, condition, eventually
from e2e.free_ports import free_port
from e2e.own_control_plane import restart_apiserver
from support.go_program import TESTED
from support.header_tap import Ends, HeaderTap, Noted
from support.hollow_node import hollow_kubelet

from fleet.controlplane.controlplane import ControlPlane
from fleet.controlplane.directory import ADMIN_USER, Layout, Pair
from fleet.controlplane.kubeconfig import render_kubeconfig
from fleet.controlplane.options import APISERVER, ControlPlaneOptions
from fleet.controlplane.pki import Authority
from fleet.errors import Exit
from parity.audit_trace import Window
from parity.parity_script import FLEET, HOLLOW, NODES, Script, play

DOWN_S = 1.0
ENDED_WELL = (Exit.OK, Exit.EXPECTATION_FAILED, Exit.INVALID)
"""A busy API server, slow or ending watches at its start, fails a run, not a comparison."""
POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: None
  userGroups: ["system:serviceaccounts"]
- level: None
  users: ["system:apiserver", "system:kube-scheduler", "system:kube-controller-manager"]
- level: RequestResponse
  resources: [{group: "", resources: [nodes, nodes/status, pods, pods/status]}]
- level: Request
"""
PROFILE = """\
apiVersion: fleet.emulator/v1alpha1
kind: NodeProfile
metadata: {name: parity}
spec:
  template:
    spec: {providerID: "kubemark://{{name}}"}
    status: {capacity: {cpu: "1", memory: 4Gi, pods: "110"}}
  kubeletConfiguration: {syncFrequency: 10s}
"""
"""What kubemark configures: pkg/kubemark/hollow_kubelet.go, GetHollowKubeletConfig."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What the audit log and the proxies have of both nodes."""

    events: list[Json]
    noted: dict[str, Noted]
    """The headers of a request by its audit ID."""
    steps: dict[str, float]
    """When each step of the script began, in seconds since the epoch, in their order."""
    void: list[Window]
    """When chance parted the nodes, and a part of the script was played again."""
    replays: dict[str, int]
    """How often each scene was."""


class Stage:
    """A control plane whose API server can be restarted, and a proxy before it for each node."""

    def __init__(
        self,
        root: Path,
        runner: asyncio.Runner,
        *,
        other: str = HOLLOW,
        own: str = FLEET,
        hold_s: float = 0,
    ) -> None:
        """Bring it up; `hold_s` is by how much later the nodes hear of their pods."""
        self.root = root
        self.other = other
        self.own = own
        policy, audit_log = root / "policy.yaml", root / "audit.jsonl"
        policy.write_text(POLICY)
        flags = {APISERVER: (f"audit-policy-file={policy}",)}
        self._runner = runner
        self._hold_s = hold_s
        self._plane = ControlPlane(
            ControlPlaneOptions(release=TESTED, audit_log=audit_log, extra_flags=flags)
        )
        info = runner.run(self._plane.start())
        self.world = World(root, info, audit_log)
        self.authority = Pair(*(Layout(info.directory).pki / f"ca.{end}" for end in ("crt", "key")))
        self.others_pair = self._pair(f"system:node:{other}", ("system:nodes",))
        self.taps = {
            other: self._tap(other, self.others_pair),
            own: self._tap(own, Pair(info.admin_certificate, info.admin_key)),
        }

    def close(self) -> None:
        for tap in self.taps.values():
            tap.stop()
        self._runner.run(self._plane.stop())

    def restart(self) -> None:
        """Kill the API server and start it again: nobody answers meanwhile."""
        for tap in self.taps.values():
            tap.pause()
        self._runner.run(restart_apiserver(self._plane, down_s=DOWN_S))
        for tap in self.taps.values():
            tap.resume()

    def others_kubeconfig(self) -> Path:
        """Write a kubeconfig of the kubelet that fleet's node is compared with."""
        return self.kubeconfig(self.other, f"system:node:{self.other}", self.others_pair)

    def own_kubeconfig(self) -> Path:
        """Write a kubeconfig of fleet, who impersonates its node."""
        info = self.world.info
        admin = Pair(info.admin_certificate, info.admin_key)
        return self.kubeconfig(self.own, ADMIN_USER, admin)

    def kubeconfig(self, node: str, user: str, pair: Pair) -> Path:
        """Write a kubeconfig that leads through the proxy of a node."""
        path = self.root / f"{node}.kubeconfig"
        path.write_bytes(
            render_kubeconfig(self.taps[node].url, self.authority.certificate, user, pair)
        )
        return path

    def _pair(self, user: str, groups: tuple[str, ...]) -> Pair:
        pair = Pair(self.root / "node.crt", self.root / "node.key")
        return Authority.load(self.authority).client(pair, user, groups)

    def _tap(self, node: str, client: Pair) -> HeaderTap:
        directory = self.root / f"tap-{node}"
        directory.mkdir()
        ends = Ends(self.world.info.ports[APISERVER], self.authority, client)
        tap = HeaderTap(ends, directory, hold_s=self._hold_s)
        tap.start()
        return tap


def record(root: Path, kubemark: Path) -> Recording:
    """Play the script on a control plane of its own; takes some four minutes."""
    with asyncio.Runner() as runner:
        stage = Stage(root, runner)
        try:
            return _record(stage, kubemark)
        finally:
            stage.close()


def _record(stage: Stage, kubemark: Path) -> Recording:
    world = stage.world
    profile = world.root / "parity.yaml"
    profile.write_text(PROFILE)
    for namespace in NODES:
        world.kubectl("create", "namespace", namespace)
    kubeconfig = stage.own_kubeconfig()
    script = Script(world, stage.restart)
    named = (f"--kubeconfig={kubeconfig}", *DEDICATED, "--zone-labels")
    with hollow_node(stage, kubemark):
        eventually(lambda: has_lease(world, HOLLOW), "the hollow node's Lease")  # renewals in step
        with world.spawn("parity", 1, "--start=cold", f"--profile={profile}", *named) as run:
            eventually(lambda: all(is_ready(world, node) for node in NODES.values()), "Ready")
            play(script)
            events = world.audit()
            run.interrupt()
            assert run.wait() in ENDED_WELL, run.log
    noted = {key: each for tap in stage.taps.values() for key, each in tap.noted.items()}
    return Recording(events, noted, script.steps, script.void, script.replays)


def has_lease(world: World, node: str) -> bool:
    leases = world.items("leases", "--namespace=kube-node-lease")
    return any(each["metadata"]["name"] == node for each in leases)


def is_ready(world: World, node: str) -> bool:
    found = world.items("nodes", f"--field-selector=metadata.name={node}")
    return bool(found) and condition(found[0], "Ready") == "True"


@contextlib.contextmanager
def hollow_node(stage: Stage, kubemark: Path) -> Iterator[None]:
    """Run one hollow node with a certificate of its own."""
    directory = stage.root / "hollow"
    directory.mkdir()
    kubeconfig = stage.others_kubeconfig()
    ports = free_port(), free_port()
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            hollow_kubelet(kubemark, HOLLOW, kubeconfig, directory, ports),
            env={**os.environ, "TMPDIR": str(directory)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield
        assert process.poll() is None, (directory / "log").read_text()[-2000:]
    finally:
        process.kill()
        process.wait()


def save(recording: Recording, path: Path) -> None:
    """Write a recording, so that its comparison can be repeated."""
    noted = {key: each._asdict() for key, each in recording.noted.items()}
    content = [recording.events, noted, recording.steps, recording.void, recording.replays]
    path.write_text(json.dumps(content))


def load(path: Path) -> Recording:
    """Read what `save` wrote."""
    events, noted, steps, void, replays = json.loads(path.read_text())
    headers = {key: Noted(**each) for key, each in noted.items()}
    windows = [(begun, ended) for begun, ended in void]
    return Recording(events, headers, steps, windows, replays)
