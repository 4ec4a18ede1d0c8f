"""A local control plane: started, watched and torn down as child processes of this one.

    etcd -> kube-apiserver -> roles -> kube-scheduler and kube-controller-manager -> ready

Each step waits for the health of the one before: a component that finds its server missing backs
off for longer than the wait takes. Ready means that a node can join and a pod can be created.
Source: cmd/kubeadm/app/phases/bootstraptoken/node/tlsbootstrap.go, and cmd/kubeadm/app/phases/
kubeconfig/kubeconfig.go for the administrators.
Differs: the API server's kubelet client gets the one role that it needs, not an administrator's.
"""

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import secrets
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from signal import Signals
from typing import Self

import aiohttp

from fleet.controlplane import directory
from fleet.controlplane.binaries import Binaries
from fleet.controlplane.build import provide_binaries
from fleet.controlplane.flags import (
    AUDIT_POLICY,
    LOOPBACK,
    SERVICE_IP,
    Ports,
    choose_ports,
    component_flags,
    fixed_ports,
    read_ports,
)
from fleet.controlplane.kubeconfig import (
    check_kubeconfig_out,
    render_kubeconfig,
    write_kubeconfig_out,
)
from fleet.controlplane.options import (
    APISERVER,
    COMPONENTS,
    CONTROLLER_MANAGER,
    ETCD,
    KUBECTL,
    NODE_BINDINGS,
    SCHEDULER,
    ComponentDeath,
    ControlPlaneInfo,
    ControlPlaneOptions,
    Progress,
    no_progress,
)
from fleet.controlplane.process import Component
from fleet.errors import SetupError
from fleet.k8s import roles
from fleet.k8s.well_known import BINDINGS

log = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0  # for each component, on a machine that is busy with other things
POLL_S = 0.05  # between looks at a start that takes two seconds or more
STARTS_MAX = 3
"""How often the whole start is tried with new ports when somebody was faster to take one."""
GRACE_S = 3.0  # for etcd, whose data are kept; the others have nothing to lose
PORT_TAKEN = "address already in use"

ADMIN = "admin"
ADMIN_TOKEN = "admin-token"  # noqa: S105  # a file's name

REQUEST_TIMEOUT_S = 5.0
CREATED = (200, 201, 409)  # 409: of an earlier start in the same directory

ROLE_BINDINGS = (
    *NODE_BINDINGS,
    ("fleet:kubelet-api-admin", "system:kubelet-api-admin", "User", directory.KUBELET_CLIENT_USER),
)

NODE_LEASES = "/api/v1/namespaces/kube-node-lease"
DEFAULT_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"

OnDeath = Callable[[ComponentDeath], None]


class _PortTakenError(SetupError):
    """Somebody took a port between our choice and the component's listening."""


class Probe:
    """Asks the components how they are, as the administrator."""

    def __init__(self, ca_file: Path, admin: directory.Pair) -> None:
        context = ssl.create_default_context(cafile=str(ca_file))
        context.load_cert_chain(admin.certificate, admin.key)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._session.close()

    async def is_ok(self, url: str) -> bool:
        """Whether a GET is answered with 200; whatever else happens means not yet."""
        try:
            async with self._session.get(url) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def binds_roles(self, url: str) -> bool:
        """Let bootstrap tokens join as nodes and the API server speak to kubelets.

        Return False if the API server did not answer: what is bound already is no error the next
        time. SetupError if it refused.
        """
        for name, role, kind, subject in ROLE_BINDINGS:
            body = roles.binding(name, role, roles.subject(subject, kind=kind))
            try:
                async with self._session.post(url + BINDINGS, json=body) as response:
                    if response.status not in CREATED:
                        answer = await response.text()
                        raise SetupError(f"ClusterRoleBinding {name}: {response.status} {answer}")
            except (aiohttp.ClientError, TimeoutError, OSError):
                return False
        return True


@dataclasses.dataclass(eq=False)
class ControlPlane:
    """One control plane; it dies with the process, and with the thread that started it.

    `on_death` is called in the loop when a component ends that nobody stopped.
    """

    options: ControlPlaneOptions = dataclasses.field(default_factory=ControlPlaneOptions)
    _: dataclasses.KW_ONLY
    progress: Progress = no_progress
    on_death: OnDeath | None = None
    _components: dict[str, Component] = dataclasses.field(default_factory=dict)
    _watches: dict[str, asyncio.Task[None]] = dataclasses.field(default_factory=dict)
    _held: directory.HeldDirectory | None = None
    _certificates: directory.Certificates | None = None
    _info: ControlPlaneInfo | None = None

    @property
    def info(self) -> ControlPlaneInfo:
        """Where it is and how to speak to it; only while it runs."""
        assert self._info is not None, "not started"
        return dataclasses.replace(self._info, pids=self.pids)

    @property
    def pids(self) -> dict[str, int]:
        """The process ids of the components that run."""
        return {name: part.pid for name, part in self._components.items() if part.is_running}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    async def start(self) -> ControlPlaneInfo:
        """Find or build the programs, start them and wait until all are ready.

        Raises UsageError for an option that cannot be, SetupError if a component does not come up;
        then nothing runs any more, and the message names the log.
        """
        assert self._held is None, "started twice"
        fixed = check_options(self.options)
        binaries = await provide_binaries(
            self.options.binaries, self.progress, release=self.options.release
        )
        self._held = directory.hold_directory(self.options.directory, keep=self.options.keep)
        try:
            self._info = await self._start_with_free_ports(self._held.layout, binaries, fixed)
        except BaseException as error:
            await self._end_components(grace_s=0)
            held, self._held = self._held, None
            held.release(with_logs=not isinstance(error, SetupError))  # the message names them
            raise
        for name in self._components:
            self._watches[name] = asyncio.create_task(self._watch(name))
        return self.info

    async def stop(self) -> None:
        """End all components and remove the directory, unless it is to be kept."""
        if self._held is None:
            return
        for watch in self._watches.values():
            watch.cancel()
        self._watches.clear()
        # Nothing is worth a polite end if all that was written goes away.
        await self._end_components(grace_s=GRACE_S if self._held.keep else 0)
        self._held.release()
        self._held = None
        self._info = None

    async def kill(self, component: str) -> None:
        """End one component with SIGKILL, without a report of its death."""
        watch = self._watches.pop(component, None)
        if watch is not None:
            watch.cancel()
        await self._components[component].stop(grace_s=0)

    def signal(self, component: str, number: Signals) -> None:
        self._components[component].signal(number)

    async def revive(self, component: str) -> None:
        """Start a component again with the same port and flags, and wait until it is ready."""
        assert self._certificates is not None
        async with _probe(self._certificates) as probe:
            await self._start_component(component, self._health(component, probe))
        self._watches[component] = asyncio.create_task(self._watch(component))

    async def _start_with_free_ports(
        self, layout: directory.Layout, binaries: Binaries, fixed: dict[str, int]
    ) -> ControlPlaneInfo:
        wanted = read_ports(layout.ports)
        for attempt in range(1, STARTS_MAX + 1):
            ports = choose_ports(wanted, fixed)
            try:
                return await self._start_all(layout, binaries, ports)
            except _PortTakenError:
                if attempt == STARTS_MAX:
                    raise
                await self._end_components(grace_s=0)
                wanted = {}
        raise AssertionError(STARTS_MAX)

    async def _start_all(
        self, layout: directory.Layout, binaries: Binaries, ports: Ports
    ) -> ControlPlaneInfo:
        started = time.monotonic()
        self.progress("starting the control plane")
        certificates = self._certificates = await _write_certificates(layout.pki)
        url = f"https://{LOOPBACK}:{ports[APISERVER]}"
        self._write_files(layout, url, certificates)
        layout.ports.write_text(json.dumps(ports))
        controllers = all(name in binaries.commands for name in COMPONENTS)
        flags = component_flags(
            self.options, layout, ports, certificates, with_controllers=controllers
        )
        self._components = {
            name: Component(
                name, (*binaries.commands[name], *flags[name]), layout.logs / f"{name}.log"
            )
            for name in COMPONENTS
            if name in binaries.commands
        }
        self._info = ControlPlaneInfo(
            directory=layout.root,
            url=url,
            kubeconfig=layout.kubeconfig(ADMIN),
            token_kubeconfig=layout.kubeconfig(ADMIN_TOKEN),
            ca_file=certificates.ca.certificate,
            admin_certificate=certificates.admin.certificate,
            admin_key=certificates.admin.key,
            server_version=binaries.version,
            kubectl=binaries.commands.get(KUBECTL, ()),
            etcd_fsync=self.options.fsync,
            ports={name: ports[name] for name in self._components},
            logs={name: component.log for name, component in self._components.items()},
            warnings=binaries.warnings,
            owner_pid=os.getpid(),
        )
        async with _probe(certificates) as probe:
            await self._bring_up(probe, url)
        seconds = time.monotonic() - started
        ready = f"control plane {binaries.version} ready at {url} after {seconds:.1f} s"
        log.info(ready)
        self.progress(ready)
        return self._info

    async def _bring_up(self, probe: Probe, url: str) -> None:
        await self._start_component(ETCD, self._health(ETCD, probe))
        await self._start_component(APISERVER, self._health(APISERVER, probe))
        await asyncio.gather(
            self._wait(APISERVER, lambda: probe.binds_roles(url)),
            *(
                self._start_component(name, self._health(name, probe))
                for name in (SCHEDULER, CONTROLLER_MANAGER)
                if name in self._components
            ),
        )
        await self._wait(APISERVER, lambda: probe.is_ok(url + NODE_LEASES))
        if CONTROLLER_MANAGER in self._components:
            # It makes this account; without it no pod is admitted.
            await self._wait(CONTROLLER_MANAGER, lambda: probe.is_ok(url + DEFAULT_ACCOUNT))

    def _health(self, component: str, probe: Probe) -> Callable[[], Awaitable[bool]]:
        """Make the question whether the component is ready."""
        assert self._info is not None
        host = f"{LOOPBACK}:{self._info.ports[component]}"
        urls = {
            ETCD: f"http://{host}/health",
            APISERVER: f"https://{host}/readyz",
            SCHEDULER: f"https://{host}/healthz",
            CONTROLLER_MANAGER: f"https://{host}/healthz",
        }
        return lambda: probe.is_ok(urls[component])

    async def _start_component(self, name: str, is_ready: Callable[[], Awaitable[bool]]) -> None:
        await self._components[name].start()
        await self._wait(name, is_ready)

    async def _wait(self, name: str, is_ready: Callable[[], Awaitable[bool]]) -> None:
        """Wait until `is_ready`. Raises SetupError if the component ends or takes too long."""
        component = self._components[name]
        end = asyncio.create_task(component.wait())
        deadline = time.monotonic() + START_TIMEOUT_S
        try:
            while not await is_ready():
                await asyncio.wait({end}, timeout=POLL_S)
                if end.done():
                    kind = _PortTakenError if PORT_TAKEN in component.output() else SetupError
                    raise kind(f"{end.result()}")
                if time.monotonic() > deadline:
                    what = f"{name} was not ready after {START_TIMEOUT_S:.0f} s; its log is"
                    lines = (f"{what} {component.log}:", *component.last_lines())
                    raise SetupError("\n  ".join(lines))
        finally:
            end.cancel()

    async def _watch(self, name: str) -> None:
        """Report a component that ends by itself."""
        death = await self._components[name].wait()
        self._watches.pop(name, None)
        log.error("%s", death)
        if self.on_death is not None:
            self.on_death(death)

    async def _end_components(self, *, grace_s: float) -> None:
        """End all that runs. Only etcd has something to lose, and it ends after its clients."""
        others = [part for name, part in self._components.items() if name != ETCD]
        await asyncio.gather(*(component.stop(grace_s=0) for component in others))
        if ETCD in self._components:
            await self._components[ETCD].stop(grace_s)

    def _write_files(
        self, layout: directory.Layout, url: str, certificates: directory.Certificates
    ) -> None:
        ca_file = certificates.ca.certificate
        users: tuple[tuple[str, str, directory.Pair | str], ...] = (
            (ADMIN, directory.ADMIN_USER, certificates.admin),
            (ADMIN_TOKEN, directory.ADMIN_USER, _admin_token(layout)),
            (SCHEDULER, "system:kube-scheduler", certificates.scheduler),
            (CONTROLLER_MANAGER, "system:kube-controller-manager", certificates.controller_manager),
        )
        for name, user, credentials in users:
            content = render_kubeconfig(url, ca_file, user, credentials)
            directory.write_private(layout.kubeconfig(name), content)
            if name == ADMIN and self.options.kubeconfig_out is not None:
                write_kubeconfig_out(self.options.kubeconfig_out, content)
        layout.audit_policy.write_text(AUDIT_POLICY)
        if self.options.audit_log is not None:
            _make_audit_log(self.options.audit_log.absolute())


def check_options(options: ControlPlaneOptions) -> dict[str, int]:
    """Return the ports that the options fix. Raises UsageError for an option that cannot be."""
    if options.kubeconfig_out is not None:
        check_kubeconfig_out(options.kubeconfig_out)
    return fixed_ports(options.extra_flags)


async def _write_certificates(into: Path) -> directory.Certificates:
    """Have another process make them: its library takes 7 MB, and ours is there for the run.

    Raises SetupError.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "fleet.controlplane.pki", str(into), SERVICE_IP),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, problem = await process.communicate()
    finally:
        if process.returncode is None:  # the start is given up, and its directory removed
            process.kill()
            await process.wait()
    if process.returncode:
        why = problem.decode(errors="replace").strip().rpartition("\n")[2]
        raise SetupError(f"no certificates in {into}: {why or process.returncode}")
    return directory.Certificates.within(into)


def _make_audit_log(path: Path) -> None:
    """Make it with its directory. Raises SetupError, which says more than kube-apiserver would."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
    except OSError as error:
        raise SetupError(f"--audit-log {path}: {error.strerror}") from error


def _probe(certificates: directory.Certificates) -> Probe:
    return Probe(certificates.ca.certificate, certificates.admin)


def _admin_token(layout: directory.Layout) -> str:
    """Read the administrator's token, or make it."""
    with contextlib.suppress(FileNotFoundError):
        return layout.tokens.read_text().partition(",")[0]
    token = secrets.token_urlsafe(32)
    line = f'{token},{directory.ADMIN_USER},{directory.ADMIN_USER},"{directory.ADMIN_GROUP}"\n'
    directory.write_private(layout.tokens, line.encode())
    return token
