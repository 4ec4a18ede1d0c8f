"""A control plane, two fleets behind links that can go wrong, and pods that come and go.

    fleet `full` (kubelet)  --link-->  kube-apiserver  --disk-->  etcd
    fleet `lean` (light)    --link-->

Each fleet is a ServiceAccount with a token of its own, so that the audit log says which fleet
asked, and so that its token can be replaced and taken away.
"""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import psutil
import yaml
from e2e.e2e_world import PAUSE
from support.full_disk import FullDisk, small_file_system
from support.go_program import TESTED

from chaos.admin import (
    DEPLOYMENTS,
    ERRORS,
    LEASES,
    NODES,
    PODS,
    Admin,
    Json,
    until,
)
from chaos.audit import AuditCounter, Kind
from chaos.byte_proxy import Link
from chaos.stepped_fleet import CLOCK
from fleet.controlplane.controlplane import ControlPlane
from fleet.controlplane.directory import ETCD_SOCKET, Layout
from fleet.controlplane.kubeconfig import CONTEXT, render_kubeconfig
from fleet.controlplane.options import APISERVER, COMPONENTS, ControlPlaneOptions
from fleet.errors import SetupError

SYSTEM = "/api/v1/namespaces/kube-system"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
RUNS = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
START_S_MAX = 600.0
END_S_MAX = 300.0
DEPLOYED = 10
"""Deployments, over which the pods are spread."""
DISK_KIB = 32 << 10


@dataclass(slots=True)
class Fleet:
    """One `fleet spawn`, which may be started again, and what became of its nodes."""

    prefix: str
    fidelity: str
    nodes: int
    root: Path
    link: Link
    kubeconfig: Path
    extra: tuple[str, ...] = ()
    script: str = "stepped_fleet.py"
    """What runs fleet, in this folder."""
    variables: Mapping[str, str] = field(default_factory=dict)
    began_s: float = 0.0
    process: subprocess.Popen[str] | None = None
    starts: int = 0
    gone: set[str] = field(default_factory=set)
    """Nodes that somebody has deleted since the fleet was started."""
    audited_before: Counter[Kind] = field(default_factory=Counter)
    """What the audit log had of this fleet when its process was started."""
    printed: str = ""

    @property
    def directory(self) -> Path:
        return self.root / "disk" / f"{self.prefix}-{self.starts}"

    @property
    def log(self) -> Path:
        return self.logs()[-1]

    def logs(self) -> list[Path]:
        """Return the log of each start."""
        return [self.root / f"{self.prefix}-{at}.log" for at in range(1, self.starts + 1)]

    @property
    def user(self) -> str:
        return f"system:serviceaccount:kube-system:{self.prefix}"

    @property
    def clock(self) -> Path:
        return self.root / f"{self.prefix}.clock"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def expected(self) -> set[str]:
        return {f"{self.prefix}-{slot:05d}" for slot in range(self.nodes)} - self.gone

    def start(self) -> None:
        self.starts += 1
        self.gone.clear()
        self.began_s = time.time()
        script = Path(__file__).with_name(self.script)
        command = (
            *(sys.executable, str(script), "spawn", f"--nodes={self.nodes}"),
            *(f"--name-prefix={self.prefix}", f"--fidelity={self.fidelity}"),
            *(f"--run-dir={self.directory}", f"--kubeconfig={self.kubeconfig}"),
            *(f"--confirm-cluster={CONTEXT}", "--no-taint", "--no-report", "--keep"),
            "--stop-if=never",
            *("--output=json", *self.extra),
        )
        with self.log.open("w") as log, self.log.with_suffix(".out").open("w") as out:
            self.process = subprocess.Popen(
                command,
                cwd=self.root,
                env={**os.environ, **self.variables, CLOCK: str(self.clock)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                text=True,
            )

    async def until_ready(self) -> None:
        async def is_ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()
            return "nodes are Ready after" in self.log.read_text()

        await until(is_ready, f"the nodes of {self.prefix} are Ready", START_S_MAX)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    async def end(self) -> int:
        """End it with Ctrl-C; return its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        code = await asyncio.to_thread(self.process.wait, END_S_MAX)
        self.printed = self.log.with_suffix(".out").read_text()
        return code

    def step_clock(self, by_s: float) -> None:
        assert self.process is not None
        self.clock.write_text(str(by_s))
        self.process.send_signal(signal.SIGUSR2)


class Stage:
    """All that a fault can reach."""

    def __init__(
        self,
        root: Path,
        plane: ControlPlane,
        admin: Admin,
        disk: Link,
        draws: random.Random,
        run_disk: FullDisk | None,
    ) -> None:
        self.root = root
        self.plane = plane
        self.admin = admin
        self.disk = disk
        self.draws = draws
        self.run_disk = run_disk
        self.audit = AuditCounter(root / "audit.jsonl")
        self.fleets: list[Fleet] = []
        self.replicas: dict[str, int] = {}
        self.churned = 0
        self.unasked: list[str] = []
        """Components that ended although nobody ended them."""

    async def add_fleet(
        self,
        prefix: str,
        fidelity: str,
        nodes: int,
        *extra: str,
        script: str = "stepped_fleet.py",
        variables: Mapping[str, str] = MappingProxyType({}),
        server: int = 0,
    ) -> Fleet:
        """Start a fleet behind a link of its own, to the API server or to another port."""
        info = self.plane.info
        link = Link(("127.0.0.1", server or info.ports[APISERVER]))
        port = await link.listen()
        kubeconfig = self.root / f"{prefix}.kubeconfig"
        fleet = Fleet(
            prefix, fidelity, nodes, self.root, link, kubeconfig, extra, script, variables
        )
        account = {"kind": "ServiceAccount", "name": prefix, "namespace": "kube-system"}
        await self.admin.change("POST", f"{SYSTEM}/serviceaccounts", {"metadata": {"name": prefix}})
        role = {"kind": "ClusterRole", "name": "cluster-admin"}
        role["apiGroup"] = "rbac.authorization.k8s.io"
        binding = {"metadata": {"name": prefix}, "roleRef": role, "subjects": [account]}
        await self.admin.change("POST", BINDINGS, binding)
        document = yaml.safe_load(
            render_kubeconfig(f"https://127.0.0.1:{port}", info.ca_file, prefix, "")
        )
        token = self.root / f"{prefix}.token"
        document["users"][0]["user"] = {"tokenFile": str(token)}
        kubeconfig.write_text(yaml.safe_dump(document))
        await self.rotate(fleet)
        self.fleets.append(fleet)
        fleet.start()
        return fleet

    async def bootstrap_token(self) -> str:
        """Make a token with which nodes may ask for certificates."""
        data = {"token-id": "aaaaaa", "token-secret": "0123456789abcdef"}
        usages = {"usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true"}
        secret = {
            "metadata": {"name": "bootstrap-token-aaaaaa"},
            "type": "bootstrap.kubernetes.io/token",
            "stringData": {**data, **usages},
        }
        await self.admin.change("POST", f"{SYSTEM}/secrets", secret)
        return ".".join(data.values())

    async def rotate(self, fleet: Fleet) -> None:
        """Give a fleet another token, and take the one away that it has."""
        secrets = f"{SYSTEM}/secrets"
        name = f"{fleet.prefix}-{time.time_ns()}"
        labels = {"chaos": fleet.prefix}
        made = await self.admin.change(
            "POST", secrets, {"metadata": {"name": name, "labels": labels}}
        )
        bound = {"apiVersion": "v1", "kind": "Secret", "name": name, "uid": made["metadata"]["uid"]}
        asked = {"spec": {"boundObjectRef": bound, "expirationSeconds": 86_400}}
        path = f"{SYSTEM}/serviceaccounts/{fleet.prefix}/token"
        answer = await self.admin.change("POST", path, asked)
        token = self.root / f"{fleet.prefix}.token"
        fresh = token.with_suffix(".fresh")
        fresh.write_text(answer["status"]["token"])
        fresh.replace(token)
        found = await self.admin.get(f"{secrets}?labelSelector=chaos={fleet.prefix}")
        for each in found["items"]:
            if each["metadata"]["name"] != name:
                await self.admin.change("DELETE", f"{secrets}/{each['metadata']['name']}")

    async def adopt(self, fleet: Fleet) -> None:
        """Start a fleet again that was killed; its Lease, which would last 40 s, is over."""
        await self.admin.change(
            "PATCH", f"{RUNS}/fleet-run-{fleet.prefix}", {"spec": {"leaseDurationSeconds": 1}}
        )
        await asyncio.sleep(2)
        self.audit.read()
        fleet.audited_before = self.audit.of(fleet)
        fleet.start()

    async def deploy(self, pods: int, token_s: int = 0) -> None:
        """Make Deployments of so many pods; their tokens live for so long, if it is named."""
        for index in range(DEPLOYED):
            name = f"churn-{index}"
            self.replicas[name] = pods // DEPLOYED
            labels = {"app": name}
            container: Json = {"name": "c", "image": PAUSE}
            spec: Json = {"containers": [container], "terminationGracePeriodSeconds": 2}
            if token_s:
                source = {"serviceAccountToken": {"path": "token", "expirationSeconds": token_s}}
                spec["volumes"] = [{"name": "token", "projected": {"sources": [source]}}]
                container["volumeMounts"] = [{"name": "token", "mountPath": "/token"}]
            template = {"metadata": {"labels": labels}, "spec": spec}
            body = {
                "metadata": {"name": name},
                "spec": {
                    "replicas": pods // DEPLOYED,
                    "selector": {"matchLabels": labels},
                    "template": template,
                },
            }
            await self.admin.change("POST", DEPLOYMENTS, body)

    async def churn(self, pods_per_s: float) -> None:
        """Delete pods, which their controller replaces, for ever."""
        names: list[str] = []
        while True:
            await asyncio.sleep(1)
            with contextlib.suppress(*ERRORS):
                if not names:
                    names = await self.admin.names(PODS)
                    self.draws.shuffle(names)
                for _ in range(min(len(names), max(1, round(pods_per_s)))):
                    code, _ = await self.admin.ask("DELETE", f"{PODS}/{names.pop()}")
                    self.churned += code == 200

    async def revive(self, component: str) -> None:
        """Start a component again, however long it takes on a busy machine."""
        try:
            await self.plane.revive(component)
        except SetupError:
            if component not in self.plane.pids:
                raise

            async def answers() -> bool:
                return (await self.admin.ask("GET", f"{NODES}?limit=1"))[0] == 200

            await until(answers, f"{component} is back", START_S_MAX)

    async def revive_all(self) -> None:
        """Start what ended although nobody ended it."""
        for component in COMPONENTS:
            if component not in self.plane.pids:
                self.unasked.append(component)
                await self.revive(component)

    async def leases(self) -> dict[str, str]:
        """Return when each node renewed its Lease last."""
        found = await self.admin.items(LEASES)
        return {each["metadata"]["name"]: each["spec"].get("renewTime", "") for each in found}

    async def a_node(self, fleet: Fleet) -> str:
        """Draw a node that is there."""
        there = set(await self.admin.names(NODES)) & fleet.expected()
        return self.draws.choice(sorted(there))


@contextlib.asynccontextmanager
async def staged(
    draws: random.Random, flags: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> AsyncIterator[Stage]:
    """Run a control plane of its own, with flags; nothing of it is left."""
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-chaos-")))
        os.environ["XDG_STATE_HOME"] = str(root / "state")
        run_disk = stack.enter_context(small_file_system(root / "disk", size_kib=DISK_KIB))
        (root / "disk").mkdir(exist_ok=True)
        directory, socket = root / "plane", root / "disk.sock"
        disk = Link(Layout(directory).socket(ETCD_SOCKET))
        await disk.listen(socket)
        plane = ControlPlane(
            ControlPlaneOptions(
                directory=directory,
                release=TESTED,
                audit_log=root / "audit.jsonl",
                extra_flags={
                    **flags,
                    APISERVER: (f"etcd-servers=unix://{socket}", *flags.get(APISERVER, ())),
                },
            )
        )
        info = await plane.start()
        stage = None
        try:
            async with Admin(info) as admin:
                stage = Stage(root, plane, admin, disk, draws, run_disk)
                yield stage
        finally:
            for fleet in stage.fleets if stage is not None else ():
                if fleet.process is not None and fleet.process.poll() is None:
                    with contextlib.suppress(psutil.Error):
                        psutil.Process(fleet.pid).resume()
                    fleet.kill()
                fleet.link.close()
            disk.close()
            await plane.stop()
