"""Nodes as a Locust dashboard wants them: the master here or elsewhere, the worker in here.

API users get a namespace, an account in it, and the least rights (`LoadAccess`). The account is not
the administrator: whose requests are exempt from priority-and-fairness, and say nothing of what
users see.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fleet.background import Background, give_up
from fleet.cluster.api_client import Api, Cluster, Json, expect
from fleet.cluster.identity import Permission
from fleet.cluster.leftovers import NAMESPACES, Leftover, remove_load
from fleet.cluster.rbac import rules
from fleet.cluster.run_id import LABEL, LOAD_LABEL, load_name
from fleet.controlplane.flags import LOOPBACK
from fleet.dashboard.door import new_token, token_from
from fleet.dashboard.locust_master import DEFAULT_RATE, LoadWorker, LocustMaster, MasterOptions
from fleet.dashboard.locust_worker import Faults, LocustLink
from fleet.errors import FleetError, SetupError
from fleet.host.elastic import ElasticFleet
from fleet.host.node_host import NodeHost
from fleet.host.siblings import Siblings
from fleet.k8s import roles
from fleet.k8s.well_known import BINDINGS, RBAC, ROLES
from fleet.profile.settings import Settings
from fleet.report.control_plane import ControlPlaneSampler

EVERYWHERE = (
    *(Permission(verb, "", "pods") for verb in ("list", "watch")),
    *(Permission(verb, "", "nodes") for verb in ("get", "list", "watch")),
    *(Permission(verb, "apps", "deployments") for verb in ("list", "watch")),
    *(Permission(verb, "apps", "replicasets") for verb in ("list", "watch")),
    Permission("watch", "", "services"),
    Permission("list", "", "events"),
)
"""What profiles/loads/api_users.py asks of the whole cluster; a test sees that it is all used."""
IN_NAMESPACE = (
    *(Permission(verb, "", "configmaps") for verb in ("get", "create", "patch", "delete")),
    *(Permission(verb, "apps", "deployments") for verb in ("create", "patch", "delete")),
    Permission("create", "batch", "jobs"),
)
"""And of its own namespace."""
TOKEN_S = 86_400


class LoadAccess:
    """Made once, removed once: only what was created here."""

    def __init__(self, api: Api, run: str, cluster_role: str = "") -> None:
        self._api = api
        self._run = run
        self._cluster_role = cluster_role
        self._created: list[Leftover] = []
        self.namespace = load_name(run)

    async def create(self) -> str:
        """Return a token of an account with the rights.

        Raises SetupError, also for a namespace or role of the name that is not ours.
        """
        namespaced = f"{NAMESPACES}/{self.namespace}"
        accounts = f"{namespaced}/serviceaccounts"
        here = f"/apis/{RBAC}/v1/namespaces/{self.namespace}"
        await self._create(NAMESPACES, {})
        await self._create(accounts, {})
        if self._cluster_role:
            await self._create(BINDINGS, self._binding(self._cluster_role))
        else:
            await self._create(ROLES, {"rules": rules(EVERYWHERE)})
            await self._create(BINDINGS, self._binding(self.namespace))
            await self._create(f"{here}/roles", {"rules": rules(IN_NAMESPACE)})
            binding = self._binding(self.namespace, self.namespace)
            await self._create(f"{here}/rolebindings", binding)
        asked = {"spec": {"expirationSeconds": TOKEN_S}}
        answer = await self._api.request("POST", f"{accounts}/{self.namespace}/token", body=asked)
        token = expect(answer, "cannot get a token for the API users")["status"]["token"]
        return str(token)

    async def remove(self) -> None:
        """Delete what was created; the namespace takes along what is in it."""
        created, self._created = self._created, []
        await remove_load(self._api, created[::-1])

    async def _create(self, path: str, body: Json) -> None:
        labels = {LOAD_LABEL: "true", LABEL: self._run}
        metadata = {"name": self.namespace, "labels": labels}
        answer = await self._api.request("POST", path, body={**body, "metadata": metadata})
        if answer.code == 409:
            raise SetupError(
                f"{path}/{self.namespace} is there and not of this run: remove it, or choose "
                "another --run-id"
            )
        made = expect(answer, f"cannot create {path}/{self.namespace} for the API users")
        if path in (NAMESPACES, ROLES, BINDINGS):
            name = f"{path}/{self.namespace}"
            self._created.append(Leftover(name, made["metadata"]["uid"], self._run))

    def _binding(self, role: str, namespace: str = "") -> Json:
        account = roles.subject(self.namespace, self.namespace)
        return roles.binding(self.namespace, role, account, namespace)


def with_token(kubeconfig: bytes, token: str) -> bytes:
    """Return a kubeconfig of one context with another user: who has the token."""
    document: dict[str, Any] = yaml.safe_load(kubeconfig)  # fleet wrote it
    [context] = document["contexts"]
    context["context"]["user"] = "fleet-load"
    document["users"] = [{"name": "fleet-load", "user": {"token": token}}]
    return yaml.safe_dump(document, encoding="utf-8")


RESTART_S = 2.0
FAREWELL_S_MAX = 2.0

Note = Callable[[str], None]


@dataclass(eq=False, repr=False)
class DashboardRun:
    """One run whose number of nodes the dashboard decides."""

    node_host: InitVar[NodeHost]
    cluster: InitVar[Cluster]
    _settings: Settings
    _directory: Path
    _kubeconfig: Path | None
    """Reaches the cluster as the user does; None inside of it."""
    _private_file: Callable[[bytes], Path]
    """Writes a file for its owner only, which ends with the run."""
    _adopted: int
    _background: Background
    _run_id: str
    _faults: Faults | None
    _sampler: ControlPlaneSampler | None
    _load_worker: LoadWorker | None = None
    _loading: list[asyncio.Task[None]] = field(default_factory=list)
    _master: LocustMaster | None = None

    def __post_init__(self, node_host: NodeHost, cluster: Cluster) -> None:
        settings, directory = self._settings, self._directory
        self._access = LoadAccess(cluster.api("load"), self._run_id, settings.load_cluster_role)
        self.fleet = ElasticFleet(node_host, cluster.api("scale"))
        if settings.dashboard:
            options = MasterOptions(
                nodes=settings.nodes,
                rate=min(settings.rate or DEFAULT_RATE, settings.most),
                workers=settings.processes + bool(settings.load),
                directory=directory,
                web_port=settings.dashboard_port,
                token=token_from(os.environ) or new_token(),
                hosts=settings.dashboard_hosts,
                load=settings.load,
                api_users=settings.api_users,
            )
            self._master = LocustMaster(options)

    async def start(self, note: Note) -> str:
        """Start the master, if it is ours; return where workers find it."""
        if self._master is None:
            return self._settings.locust_master
        await self._master.start()
        note(f"dashboard: {self._master.url}")
        await self._start_load(self._master.ports.master)
        return f"{LOOPBACK}:{self._master.ports.master}"

    async def run(
        self,
        stop: asyncio.Event,
        note: Note,
        siblings: Siblings | None,
        leaves_nodes: Callable[[], Awaitable[bool]],
    ) -> None:
        """Serve the dashboard until `stop` is set or the master ends us; then part in order.

        `leaves_nodes` says at the end whether the nodes stay: what comes after removes them all,
        or they are not ours any more.
        """
        settings = self._settings
        host, port = settings.locust_address
        if self._master is not None:
            host, port = LOOPBACK, self._master.ports.master
        link = LocustLink(
            self.fleet,
            host=host,
            port=port,
            shard=(settings.shard or 0) * settings.processes,
            holds=self._master is not None or settings.on_master_quit == "hold",
            note=note,
            background=self._background,
            faults=self._faults,
            sampler=self._sampler,
        )
        need = self._background.need
        following = need("the growth of the fleet", self.fleet.run)
        await self.fleet.resume(self._adopted)
        serving = need("the link to the Locust master", link.run)
        stopped = asyncio.create_task(stop.wait())
        beside: list[asyncio.Task[Any]] = [stopped]
        if (master := self._master) is not None:
            keeping = self._background.keep(
                "the Locust master", lambda: self._keep_master(master, link, note)
            )
            beside.append(keeping)
        try:
            await asyncio.wait((stopped, following, serving), return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                removes = not following.done() and not await leaves_nodes()
                await link.leave(removes=removes)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(serving, FAREWELL_S_MAX)
        finally:
            await give_up(*beside)
            await give_up(*self._loading)
            if self._load_worker is not None:
                await self._remove_access()
            if siblings is not None:  # their last figures are for the master's report
                await siblings.stop()
            if self._master is not None:
                await self._master.stop()
            await give_up(following, serving)

    async def _keep_master(self, master: LocustMaster, link: LocustLink, note: Note) -> None:
        """Start a master that died again; its nodes stay, and it adopts them."""
        while True:
            code = await master.wait()
            note(f"the Locust master ended with {code}; starting it again, the nodes stay")
            await asyncio.sleep(RESTART_S)
            try:
                await master.start()
            except SetupError as error:
                note(str(error))
                continue
            link.redirect(LOOPBACK, master.ports.master)
            note(f"dashboard: {master.url}")
            if self._load_worker is not None:  # it would wait a minute for the old master
                await self._begin_load(self._load_worker, master.ports.master)

    async def _start_load(self, port: int) -> None:
        """Start the API users, under a service account of their own."""
        settings, kubeconfig = self._settings, self._kubeconfig
        if not settings.load or kubeconfig is None:
            return
        try:
            token = await self._access.create()
        except FleetError:
            await self._remove_access()
            raise
        theirs = self._private_file(with_token(kubeconfig.read_bytes(), token))
        namespace = self._access.namespace
        self._load_worker = LoadWorker(
            settings.load, theirs, self._directory, self._run_id, namespace
        )
        await self._begin_load(self._load_worker, port)

    async def _begin_load(self, worker: LoadWorker, port: int) -> None:
        """Keep one worker of API users for the master on a port."""
        await give_up(*self._loading)
        self._loading = [self._background.keep("API users", lambda: worker.serve(port))]

    async def _remove_access(self) -> None:
        with contextlib.suppress(FleetError):
            await self._access.remove()
