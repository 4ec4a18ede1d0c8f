"""Nodes as a Locust dashboard wants them: the master beside us or elsewhere, the worker in here."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from fleet.background import Background, give_up
from fleet.cluster.api_client import Cluster
from fleet.controlplane.flags import LOOPBACK
from fleet.dashboard.door import new_token, token_from
from fleet.dashboard.elastic import ElasticFleet
from fleet.dashboard.load_access import LoadAccess, with_token
from fleet.dashboard.load_workers import LoadWorker
from fleet.dashboard.locust_master import DEFAULT_RATE, LocustMaster, MasterOptions
from fleet.dashboard.locust_worker import Faults, LocustLink
from fleet.errors import FleetError, SetupError
from fleet.host.node_host import NodeHost
from fleet.host.siblings import Siblings
from fleet.profile.settings import Settings

RESTART_S = 2.0
FAREWELL_S_MAX = 2.0

Note = Callable[[str], None]


class Kubeconfigs(Protocol):
    """Where the credentials of a run are; see `Target`."""

    @property
    def kubeconfig(self) -> Path | None:
        """Return what reaches the cluster as the user does, None inside of it."""

    def private_file(self, content: bytes) -> Path:
        """Write a file for its owner only, which ends with the run."""
        ...


class DashboardRun:
    """One run whose number of nodes the dashboard decides."""

    def __init__(
        self,
        node_host: NodeHost,
        cluster: Cluster,
        settings: Settings,
        directory: Path,
        kubeconfigs: Kubeconfigs,
        adopted: int,
        background: Background,
        run_id: str,
        faults: Faults | None,
    ) -> None:
        self._settings = settings
        self._background = background
        self._run_id = run_id
        self._faults = faults
        self._access = LoadAccess(cluster.api("load"), run_id, settings.load_cluster_role)
        self._directory = directory
        self._kubeconfigs = kubeconfigs
        self._adopted = adopted
        self._load_worker: LoadWorker | None = None
        self._loading: asyncio.Task[None] | None = None
        self.fleet = ElasticFleet(node_host, cluster.api("scale"))
        self._master: LocustMaster | None = None
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
        note(_where(self._master))
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

        `leaves_nodes` tells at the end whether the nodes stay: what comes after removes them all,
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
            await self._stop_load()
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
            note(_where(master))
            if self._load_worker is not None:  # it would wait a minute for the old master
                await self._begin_load(self._load_worker, master.ports.master)

    async def _start_load(self, port: int) -> None:
        """Start the API users, under a service account of their own."""
        settings, kubeconfig = self._settings, self._kubeconfigs.kubeconfig
        if not settings.load or kubeconfig is None:
            return
        try:
            token = await self._access.create()
        except FleetError:
            await self._remove_access()
            raise
        theirs = self._kubeconfigs.private_file(with_token(kubeconfig.read_bytes(), token))
        namespace = self._access.namespace
        self._load_worker = LoadWorker(
            settings.load, theirs, self._directory, self._run_id, namespace
        )
        await self._begin_load(self._load_worker, port)

    async def _begin_load(self, worker: LoadWorker, port: int) -> None:
        """Keep one worker of API users for the master on a port."""
        await self._end_load()
        self._loading = self._background.keep("API users", lambda: worker.serve(port))

    async def _end_load(self) -> None:
        if self._loading is not None:
            await give_up(self._loading)

    async def _stop_load(self) -> None:
        if self._load_worker is not None:
            await self._end_load()
            await self._remove_access()

    async def _remove_access(self) -> None:
        with contextlib.suppress(FleetError):
            await self._access.remove()


def _where(master: LocustMaster) -> str:
    return f"dashboard: {master.url}"
