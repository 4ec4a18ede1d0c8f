"""The cluster of a run: the one that was named, else a local control plane, ours if none stands."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from fleet.cluster import ClusterSelection
from fleet.config import Settings
from fleet.controlplane import (
    APISERVER,
    CONTROLLER_MANAGER,
    ETCD,
    SCHEDULER,
    ComponentDeath,
    ControlPlane,
    ControlPlaneInfo,
    ControlPlaneOptions,
    attach,
    write_kubeconfig_out,
)
from fleet.display import Display
from fleet.errors import UsageError
from fleet.kubeconfig_file import write_only_context


class Target:
    """Opened once. `local` and `kubeconfig` are known while it is open."""

    def __init__(
        self, settings: Settings, display: Display, on_death: Callable[[ComponentDeath], None]
    ) -> None:
        self._settings = settings
        self._display = display
        self._on_death = on_death
        self.local: ControlPlaneInfo | None = None
        self.is_own = False  # it ends with the run, with everything in it
        self.kubeconfig: Path | None = None  # for kubectl and the command

    @property
    def etcd_fsync(self) -> bool | None:
        """Whether etcd waits for the disk; None where we do not know."""
        return self.local.etcd_fsync if self.local is not None else None

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[ClusterSelection]:
        """Yield what to connect to; a control plane of our own lives as long."""
        settings = self._settings
        if settings.names_cluster:
            yield self._named()
            return
        standing = attach()
        if standing is not None:
            self._display.note(f"using the local control plane in {standing.directory}")
            for flag in settings.local_only:
                raise UsageError(
                    f"{flag}: the control plane in {standing.directory} runs already; end it with "
                    "`fleet controlplane down`, or start it with that flag"
                )
            self._take(standing)
            if settings.kubeconfig_out is not None:
                write_kubeconfig_out(settings.kubeconfig_out, standing.kubeconfig.read_bytes())
            yield ClusterSelection(kubeconfig=standing.token_kubeconfig)
            return
        self.is_own = True
        self._display.phase("starting a local control plane")
        options = ControlPlaneOptions(
            binaries=settings.controlplane_bin,
            kubeconfig_out=settings.kubeconfig_out,
            audit_log=settings.audit_log,
            fsync=settings.fsync,
            extra_flags={
                ETCD: settings.etcd_flags,
                APISERVER: settings.apiserver_flags,
                SCHEDULER: settings.scheduler_flags,
                CONTROLLER_MANAGER: settings.controller_manager_flags,
            },
        )
        plane = ControlPlane(options, progress=self._display.note, on_death=self._on_death)
        async with plane:
            self._take(plane.info)
            yield ClusterSelection(kubeconfig=plane.info.token_kubeconfig)
            self._display.phase("stopping the local control plane")

    def write_kubeconfig(self, context: str, directory: Path) -> None:
        """Provide the kubeconfig of a named context, for the command and `--kubeconfig-out`."""
        settings = self._settings
        if self.local is not None or settings.in_cluster:
            return
        path = (directory / "kubeconfig").absolute()
        targets = [path, *filter(None, [settings.kubeconfig_out])]
        write_only_context(self._named().paths(), context, targets)
        self.kubeconfig = path

    def _named(self) -> ClusterSelection:
        settings = self._settings
        return ClusterSelection(
            kubeconfig=settings.kubeconfig,
            context=settings.context or None,
            in_cluster=settings.in_cluster,
        )

    def _take(self, info: ControlPlaneInfo) -> None:
        self.local = info
        self.kubeconfig = info.kubeconfig
        for warning in info.warnings:
            self._display.note(f"warning: {warning}")
