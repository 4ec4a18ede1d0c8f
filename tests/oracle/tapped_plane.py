"""A control plane before which each of two nodes has a proxy that notes headers.

The audit log has everything else that they asked of the API server.
"""

import asyncio
from pathlib import Path

from e2e.e2e_world import World
from e2e.own_control_plane import restart_apiserver
from support.go_program import TESTED
from support.header_tap import Ends, HeaderTap

from fleet.controlplane.controlplane import ControlPlane
from fleet.controlplane.directory import ADMIN_USER, Layout, Pair
from fleet.controlplane.kubeconfig import render_kubeconfig
from fleet.controlplane.options import APISERVER, ControlPlaneOptions
from fleet.controlplane.pki import Authority
from fleet.errors import Exit

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


class TappedPlane:
    """A control plane whose API server can be restarted, and a proxy before it for each node."""

    def __init__(
        self,
        root: Path,
        runner: asyncio.Runner,
        *,
        other: str,
        own: str,
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
