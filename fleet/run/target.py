"""The cluster of a run: the one that was named, else a local control plane, ours if none stands."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from fleet.cluster.credentials import ClusterSelection
from fleet.cluster.kubeconfig import only_context
from fleet.controlplane import options
from fleet.controlplane.binaries import built_release
from fleet.controlplane.build import provide_binaries
from fleet.controlplane.controlplane import ControlPlane, check_options
from fleet.controlplane.kubeconfig import check_kubeconfig_out, private_file, write_kubeconfig_out
from fleet.controlplane.standing import attach
from fleet.errors import UsageError
from fleet.profile.release import check_skew, minor_of
from fleet.profile.settings import Settings
from fleet.report.display import Display


def named_cluster(settings: Settings) -> ClusterSelection:
    """Return the cluster that the settings name."""
    return ClusterSelection(
        kubeconfig=settings.kubeconfig,
        context=settings.context or None,
        in_cluster=settings.in_cluster,
    )


def plane_options(settings: Settings, directory: Path | None = None) -> options.ControlPlaneOptions:
    """Return how a local control plane is started; `directory` is one that outlives the run."""
    return options.ControlPlaneOptions(
        directory=directory,
        binaries=settings.controlplane_bin,
        release=built_release(settings.kubernetes_version),
        kubeconfig_out=settings.kubeconfig_out,
        audit_log=settings.audit_log,
        fsync=settings.fsync,
        extra_flags={
            options.ETCD: settings.etcd_flags,
            options.APISERVER: settings.apiserver_flags,
            options.SCHEDULER: settings.scheduler_flags,
            options.CONTROLLER_MANAGER: settings.controller_manager_flags,
        },
    )


def find_standing(settings: Settings) -> options.ControlPlaneInfo | None:
    """Return the local control plane that a run joins, None if the run starts one.

    Raises UsageError for options that do not fit the control plane.
    """
    wanted, standing = plane_options(settings), attach()
    version = standing.server_version if standing is not None else wanted.release
    if settings.kubelet_version and version:
        check_skew(settings.kubelet_version, version)
    if standing is None:
        check_options(wanted)
        if settings.confirm_cluster:
            raise UsageError(
                f"--confirm-cluster {settings.confirm_cluster}: no cluster is named, and no local "
                "control plane is running; add --kubeconfig, --context or --in-cluster"
            )
        return None
    for flag in settings.local_only:
        if flag != "--kubernetes-version" or minor_of(version) != minor_of(wanted.release):
            raise UsageError(
                f"{flag}: the control plane in {standing.directory} runs already; end it with "
                "`fleet controlplane down`, or start it with that flag"
            )
    return standing


@dataclass(eq=False)
class Target:
    """Opened once. `local` and `kubeconfig` are known while it is open."""

    _settings: Settings
    _display: Display
    _on_death: Callable[[options.ComponentDeath], None]
    local: options.ControlPlaneInfo | None = None
    plane: ControlPlane | None = None  # while one of our own runs
    is_own: bool = False  # it ends with the run, with everything in it
    kubeconfig: Path | None = None  # for kubectl and the command
    _files: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """What must not outlive the run."""

    @property
    def etcd_fsync(self) -> bool | None:
        """Whether etcd waits for the disk; None where we do not know."""
        return self.local.etcd_fsync if self.local is not None else None

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[ClusterSelection]:
        """Yield what to connect to; a control plane of our own lives as long.

        Raises UsageError, before anything is created, for what cannot be.
        """
        settings = self._settings
        if settings.kubeconfig_out is not None:
            if settings.in_cluster:
                raise UsageError("--kubeconfig-out: --in-cluster has no kubeconfig to write")
            check_kubeconfig_out(settings.kubeconfig_out, self._inputs())
        with self._files:
            async with self._opened() as selection:
                yield selection

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncIterator[ClusterSelection]:
        settings = self._settings
        if settings.names_cluster:
            yield named_cluster(settings)
            return
        standing = find_standing(settings)
        if standing is not None:
            self._display.tell(f"using the local control plane in {standing.directory}")
            self._take(standing)
            if settings.kubeconfig_out is not None:
                write_kubeconfig_out(settings.kubeconfig_out, standing.kubeconfig.read_bytes())
            yield ClusterSelection(kubeconfig=standing.token_kubeconfig)
            return
        self.is_own = True
        self._display.phase("starting a local control plane")
        self._display.pause()  # a build has a bar of its own
        tell, options = self._display.tell, plane_options(settings)
        found = await provide_binaries(options.binaries, tell, release=options.release)
        if settings.kubelet_version:
            check_skew(settings.kubelet_version, found.version)
        self._display.start()
        plane = ControlPlane(options, progress=tell, on_death=self._on_death)
        async with plane:
            self._take(plane.info)
            self.plane = plane
            try:
                yield ClusterSelection(kubeconfig=plane.info.token_kubeconfig)
            finally:
                self.plane = None
            self._display.phase("stopping the local control plane")

    def write_kubeconfig(self, context: str) -> None:
        """Provide the kubeconfig of a named context, for the command and `--kubeconfig-out`."""
        settings = self._settings
        if self.local is not None or settings.in_cluster:
            return
        content = yaml.safe_dump(only_context(named_cluster(settings).paths(), context)).encode()
        if settings.kubeconfig_out is not None:
            write_kubeconfig_out(settings.kubeconfig_out, content, self._inputs())
        if settings.command or settings.load:
            self.kubeconfig = self.private_file(content)

    def private_file(self, content: bytes) -> Path:
        """Write a credential that others read, as long as the run lasts.

        Not into the run's directory: those are kept, and CI uploads them.
        """
        return self._files.enter_context(private_file(content))

    def _inputs(self) -> list[Path]:
        settings = self._settings
        named = named_cluster(settings).paths() if settings.kubeconfig or settings.context else []
        return [*named, *filter(None, [settings.bootstrap_kubeconfig])]

    def _take(self, info: options.ControlPlaneInfo) -> None:
        self.local = info
        self.kubeconfig = info.kubeconfig
        for warning in info.warnings:
            self._display.note(f"warning: {warning}")
