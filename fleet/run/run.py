"""The life of one run: check, prepare, bring up, keep, drain, clean up, judge.

    machine -> control plane or named cluster -> permissions -> safety -> run Lease
      -> nodes -> Ready -> COMMAND, --duration or Ctrl-C -> silence -> clean up -> summary

Nothing is created before every check has passed. What was begun is undone in reverse order, also
on an error. The first Ctrl-C ends the run in order, the second at once. Until the first kubelet
starts, the first one cancels whatever is being prepared, a question too.
"""

import asyncio
import contextlib
import os
import platform
import shlex
import time
from functools import partial

from fleet.background import Background
from fleet.cluster.agent_access import prepare_agents
from fleet.cluster.api_client import RUN, Cluster
from fleet.cluster.cleanup import PATIENCE_S
from fleet.cluster.daemonsets import FAKE_TAINT
from fleet.cluster.identity import Identity, authorize, features_of
from fleet.cluster.managed import opted_in
from fleet.cluster.preflight import Ask, TargetFacts
from fleet.cluster.run_id import new_run_id
from fleet.cluster.runs import RunLease, Size, claim_addresses
from fleet.cluster.statefulset import check
from fleet.controlplane.options import KUBECTL, ComponentDeath
from fleet.errors import DeniedError, FleetError, RunInterruptedError, SetupError, UsageError
from fleet.faults.injector import attach_problem
from fleet.host.machine import Load, available_bytes, check_memory, check_ports, raise_descriptors
from fleet.host.node_certificates import Bootstrap, open_bootstrap
from fleet.host.node_host import NodeHost
from fleet.host.siblings import Siblings, keep_live, sibling_arguments
from fleet.host.static_pods import run_static_sources
from fleet.profile.loader import NodeMix, mix_of
from fleet.profile.settings import ServeMode, Settings
from fleet.quantity import format_duration
from fleet.report.control_plane import ControlPlaneSampler
from fleet.report.display import Display, LiveFigures
from fleet.report.figure import combined
from fleet.report.meter import Meter
from fleet.report.record import Record, judged, so_far
from fleet.report.report import RunFigures
from fleet.report.run_directory import RunDirectory, read_records
from fleet.report.service_levels import load_objectives
from fleet.report.summary_text import size
from fleet.run import garbage
from fleet.run.adoption import adopt_nodes, clear_lost_shards, remove_applied
from fleet.run.applied import Applied
from fleet.run.bring_up import bring_up, find_preset, tell_unregistered
from fleet.run.control_socket import Json, Listed, open_socket
from fleet.run.ending import Ending, RunOutcome, about_run, exit_code_of, how_longer, report_of
from fleet.run.fault_control import FaultControl
from fleet.run.interrupts import Interrupts
from fleet.run.lead import Follower, Leader
from fleet.run.observation import Observation, serve_metrics
from fleet.run.permission import how_to_grant, may_load
from fleet.run.records import Records
from fleet.run.scaling import Scaling
from fleet.run.scenario_player import ScenarioPlayer, Stage
from fleet.run.server_health import watch_health
from fleet.run.target import Target, find_standing
from fleet.run.user_command import check_command, environment_of, run_command
from fleet.runtime.programs import load_programs
from fleet.server.kubelet_servers import KubeletServers
from fleet.storage.csi_controller import check_drivers, simulate_csi
from fleet.wire.sockets.connection import connection_health

FRAME_S = 1.0
LEAD = "lead"  # the purpose of requests about the other shards
LEASE_TRIES_MAX = 4
"""Within seven seconds: a fleet that cannot renew its Lease must end before another takes it."""


class Run:
    """Runs one `fleet spawn`."""

    def __init__(
        self,
        settings: Settings,
        *,
        display: Display | None = None,
        ask: Ask | None = None,
        player: ScenarioPlayer | None = None,
    ) -> None:
        self._whole = settings  # of all processes of the run
        self._settings = settings = settings.shares()[0]
        self._siblings: Siblings | None = None
        self._display = display or Display(is_quiet=settings.quiet)
        self._ask = ask  # None without a terminal
        load_programs(settings.programs)
        self._mix: NodeMix = mix_of(settings)
        end = max(each.node_index(each.most) for each in self._whole.shares())
        self._mix.check_addresses(end)
        self._health = connection_health(os.environ)
        seed = os.getpid() ^ time.monotonic_ns()
        self._run_id = settings.run_id or new_run_id(time.time_ns(), seed)
        self._figures = RunFigures(
            run_id=self._run_id,
            fidelity=settings.fidelity,
            pace=settings.pace,
            start="settled" if settings.makes_settled else "cold",
            identity=settings.identity,
            encoding=settings.wire_encoding,
            watches="per-node" if settings.has_own_watches else "shared",
            how_longer=how_longer(settings, has_scenario=player is not None),
        )
        self.interrupts = Interrupts()
        self._stop = self.interrupts.stop
        self._background = Background(self._end_for)
        self._failure: FleetError | None = None
        self._target = Target(settings, self._display, self._on_death)
        self.ending = Ending(
            self._whole, self._run_id, self._target, self.interrupts, self._figures, self._display
        )
        self._is_led = player is not None and settings.follows  # by the shard that plays it
        self._player = player = None if self._is_led else player
        # A further shard cannot judge: the first one looks at the control plane.
        slo = None if settings.shard else settings.slo
        self._objectives = player.objectives() if player else load_objectives(slo)
        self._records: Records | None = None
        self._scaling: Scaling | None = None
        self._leader: Leader | None = None  # of a run of several shards, in the first of them
        self._follower: Follower | None = None  # in the others
        self._has_begun = False  # something was created in the cluster
        # Made one after the other, as the run goes on.
        self._about: dict[str, object]
        self._directory: RunDirectory
        self._cluster: Cluster
        self._facts: TargetFacts
        self._lease: RunLease
        self._node_host: NodeHost
        self._meter: Meter
        self._faults: FaultControl
        self._observation: Observation

    async def run(self) -> RunOutcome:
        """Play the whole run. Raises FleetError when it cannot begin, or may not any more."""
        settings = self._settings
        is_local = not settings.names_cluster
        self._check_machine(is_local=is_local)
        if not is_local or settings.command[:1] != (KUBECTL,):  # which the control plane brings
            check_command(settings.command, os.environ)
        self._directory = directory = RunDirectory(self._run_id, settings.run_dir)
        asyncio.get_running_loop().set_exception_handler(self._background.on_loop_error)
        self._about = about_run(self._whole, is_local=is_local)
        directory.describe(self._about)
        self._display.start()
        if settings.shared is None:  # the first process of a run says it for all
            for line in self._mix.warnings:
                self._display.note(line)
        try:
            with self.interrupts.taken():
                code = await self._run_in()
        except (FleetError, OSError):
            if not self._has_begun:
                directory.discard()
            raise
        finally:
            self._display.stop()
            directory.close()
        own, restarts = self._record(is_over=True), 0
        records = {directory.path: own}
        if self._siblings is not None:
            restarts = self._siblings.restarts
            records = read_records(directory.path) | records
        figures = judged([*records.values()], restarts, is_whole=self._whole.shard is None)
        ended = exit_code_of(figures, code)
        outcome = RunOutcome(figures, directory.path, ended, self.ending.next_steps())
        try:
            directory.keep(own)
            directory.finish(figures)
            outcome.report = report_of(self._whole, directory.path)
        except SetupError as error:  # on a full disk: the terminal has it, and nothing else
            outcome.give_up_files(str(error))
        if self._failure is not None:
            raise self._failure
        return outcome

    def plan(self) -> dict[str, object]:
        """Return what the run will be, once this machine is known to hold it: `--dry-run`."""
        settings, models = self._whole, self._mix.models
        if not settings.names_cluster:
            find_standing(settings)
        cluster = "the one of the service account" if settings.in_cluster else "a local one"
        if settings.kubeconfig or settings.context:
            named = (settings.kubeconfig or "the usual kubeconfig", settings.context or "current")
            cluster = "{}, context {}".format(*named)
        files, needed = self._check_machine(is_local=not settings.names_cluster)
        mix = (f"{each.ordinals_per_period} {each.name}" for each in models)
        end = f"{format_duration(settings.duration_ns or 0)} after all nodes are Ready"
        if settings.duration_ns is None:
            end = "when all nodes are Ready" if settings.until_ready else "at Ctrl-C"
        return {
            "nodes": settings.nodes,
            "names": " to ".join(settings.end_names),
            "profiles": ", ".join(mix),
            "cluster": cluster,
            "fidelity": str(settings.fidelity),
            "identity": str(settings.identity),
            "pace": settings.pace,
            "processes": settings.processes,
            "end": shlex.join(settings.command) or end,
            "memory": f"{size(needed)} of {size(available_bytes())}",
            "open files": files,
        }

    def _check_machine(self, *, is_local: bool) -> tuple[int, int]:
        """Return the open files and bytes needed. Raises SetupError if this machine lacks them."""
        settings, whole = self._settings, self._whole
        kind = settings.fidelity, self._mix.agents_per_node, settings.has_own_watches
        listening = settings.most if settings.serve is ServeMode.PORTS else 0
        files = raise_descriptors(Load(settings.most, *kind), listening)
        check_ports(load := Load(whole.most, *kind))
        return files, check_memory(load, is_local=is_local)

    async def _run_in(self) -> int | None:
        """Run on the cluster that is meant; return the command's exit code, if there was one."""
        try:
            async with (
                self._target.open() as selection,
                await Cluster.connect(selection) as self._cluster,
            ):
                return await self._run_on()
        except asyncio.CancelledError:
            if not self.interrupts.is_early:
                raise
            what = "what was created is removed" if self._has_begun else "nothing was created"
            is_left = self._figures.invalid_reasons or (self._has_begun and self._settings.keep)
            told = self.ending.left_behind() if is_left else f"interrupted; {what}"
            raise RunInterruptedError(told) from None
        finally:
            await self._background.stop()

    def _on_death(self, death: ComponentDeath) -> None:
        """End the run: a component of its control plane is gone, though nobody stopped it."""
        self._display.note(str(death))
        self.ending.invalidate(f"{death.component} ended while the run was on")
        self._stop.set()

    def _give_up(self, error: FleetError) -> None:
        """End the run in order, and then the program with this error."""
        self._failure = error
        self._figures.incomplete_reasons = [str(error)]
        self._stop.set()

    def _end_for(self, reason: str) -> None:
        """End the run: a task failed that it cannot go on without."""
        self._display.note(f"the run ends: {reason}")
        self.ending.invalidate(reason)
        self._stop.set()

    # ---- the run ----

    async def _run_on(self) -> int | None:
        """Run on a cluster that was reached; return the command's exit code, if there was one."""
        settings, cluster = self._settings, self._cluster
        environment = environment_of(self._target, self._directory.path, self._run_id)
        check_command(settings.command, environment)
        self._figures.server_version = cluster.version
        lines = self._mix.choose_version(settings.kubelet_version, cluster.version)
        for line in lines if settings.shared is None else ():
            self._display.note(line)
        self._figures.etcd_fsync = self._target.etcd_fsync
        self._display.phase("checking the cluster")
        api = cluster.api("preflight")
        features = features_of(settings, self._mix.models)
        names, note, is_local = self._whole.end_names, self._display.note, bool(self._target.local)
        self._directory.describe(self._about | {"cluster": cluster.credentials.context})
        try:
            identity = await authorize(api, settings.identity, names, features)
            lacking = await prepare_agents(api, identity, self._mix, names[0], is_local=is_local)
        except DeniedError as error:
            raise SetupError(f"{error}; {await how_to_grant(api, self._whole)}") from error
        for agent, why in lacking.items():
            how = await how_to_grant(api, self._whole)
            note(f"no node runs {agent}: {why}; {how}, or leave agents out with --no-agents")
        if settings.statefulset is not None:
            await check(settings.statefulset)
        self._facts = facts = await may_load(
            cluster, self._whole, self._mix, self._run_id, self._display, self._ask, self._player
        )
        # Of Nodes that a fleet has served the drivers are simulated ones.
        machines = facts.foreign_names - facts.managed_names
        await check_drivers(api, self._mix.models, machines)
        self._lease = lease = self._run_lease(cluster)
        try:
            await lease.acquire()
        except BaseException:
            await lease.release()  # it may have been written when we were interrupted
            raise
        self._has_begun = True
        try:
            self._target.write_kubeconfig(cluster.credentials.context)
            claim = await claim_addresses(api, lease, self._mix.address_plan, settings)
            if claim.moved_from is not None:
                note("another fleet has addresses of the adopted nodes: these get others")
            uid, local = facts.kube_system_uid, self._target.local
            async with open_bootstrap(settings, cluster, uid, local, self._background) as found:
                servers = KubeletServers(
                    settings,
                    is_local=local is not None,
                    address_shift=claim.shift,
                )
                try:
                    return await self._keep_nodes(identity, found, servers, claim.shift)
                finally:
                    servers.stop()
        finally:
            await self._settle(cluster, lease)

    def _run_lease(self, cluster: Cluster) -> RunLease:
        """Return the claim to the names of this process; `fleet scale` finds its size there."""
        settings = self._settings
        holder = settings.holder or f"{platform.node()}-{os.getpid()}"
        size = Size(settings.nodes, settings.most, settings.nodes)
        return RunLease(
            cluster.api(RUN),
            settings.lease_prefix,
            self._run_id,
            holder=holder,
            size=size if self._fixed_by is None else None,
        )

    async def _settle(self, cluster: Cluster, lease: RunLease) -> None:
        """Remove the nodes or leave them, and keep what they measured."""
        await self.ending.settle(cluster, lease)
        if self._records is not None and not self.interrupts.is_second:
            await self._records.keep(self._record(is_over=True))

    async def _keep_nodes(
        self,
        identity: Identity,
        bootstrap: Bootstrap | None,
        servers: KubeletServers,
        address_shift: int,
    ) -> int | None:
        """Bring the nodes up, do what the run is for, and let them fall silent."""
        settings, cluster, facts = self._settings, self._cluster, self._facts
        if settings.manage and facts.is_shared:
            settings = settings.model_copy(update={"manage": opted_in(settings.manage)})
        servers.open(self._mix.models)
        self._mix.adapt(
            zone_labels=settings.zone_labels or not facts.is_shared,
            serving=servers.serving,
            address_shift=address_shift,
        )
        await remove_applied(cluster, self._lease, self._display)
        adopted, taint = 0, None
        if not settings.manage:
            adopted = await adopt_nodes(cluster, facts, settings, self._lease, self._display)
            taint = FAKE_TAINT if facts.is_shared and not settings.no_taint else None
        self._node_host = node_host = NodeHost(
            settings,
            cluster,
            identity,
            self._mix,
            self._lease,
            is_shared=facts.is_shared,
            fake_taint=taint,
            bootstrap=bootstrap,
            preset=await find_preset(cluster, self._target.local, settings, self._run_id),
            health=self._health,
        )
        pids = self._target.local.pids if self._target.local else {}
        self._meter = meter = Meter(self._figures, node_host.counts, node_host.state, pids)
        self._faults = faults = self._open_faults(meter)
        sampler, asked = self._sampler(), cluster.requests
        self._observation = Observation(
            self._objectives, node_host, meter, faults, self._player, sampler, asked
        )
        self._background.keep("the time series", self._sample)
        self._start_background_tasks()
        garbage.begin()
        self.interrupts.is_preparing = False
        node_host.start()
        try:
            # The first process of a run answers for all of them.
            directory = self._directory.path
            known = Listed(directory, self._run_id, self._whole.nodes)
            is_first = settings.shared is None
            async with open_socket(directory, self._answer, known if is_first else None):
                await servers.start(
                    node_host, cluster, self._background, bootstrap.store if bootstrap else None
                )
                if settings.metrics_port:
                    await serve_metrics(self._background, node_host)
                if settings.is_on_dashboard:
                    await self._serve_dashboard(adopted, sampler)
                    return None
                await self._start_siblings(self._whole)
                return await self._ready_then_work()
        finally:
            await self._drain(servers)
            garbage.end()

    async def _drain(self, servers: KubeletServers) -> None:
        """Let the nodes fall silent, and bring the figures to their end."""
        self._display.phase("draining")
        await self._faults.close()
        self._display.update(self._live())
        self._display.over()
        if self._siblings is not None:
            await self._siblings.stop()
        last_look = self._observation.over
        await self._background.persist("the last look at the run", last_look, tries_max=1)
        self._meter.figures()
        servers.stop()
        self._node_host.silence()
        await self._background.stop()
        await self._node_host.last_answers()
        self._meter.count_requests()
        self.ending.judge(self._node_host, self._cluster, self._background.reasons())
        await self._node_host.close()

    def _open_faults(self, meter: Meter) -> FaultControl:
        """Let faults begin, in the first shard of a run for all of them."""
        settings, host, api = self._settings, self._node_host, self._cluster.api(LEAD)
        if settings.shard == 0:
            self._leader = Leader(self._lease, api, is_played=self._player is not None)
        tell, plane = self._display.tell, lambda: self._target.plane
        faults = FaultControl(host, meter.elapsed_s, tell, self._leader, plane)
        if settings.follows:
            first = settings.model_copy(update={"shard": 0}).lease_prefix
            self._follower = Follower(self._lease, api, first, host.state, faults.follow)
        return faults

    def _sampler(self) -> ControlPlaneSampler | None:
        """Look at the control plane, in the first process of a run: the others would ask again."""
        if self._settings.shared is not None or self._settings.shard not in {None, 0}:
            return None
        local, keep_line = self._target.local, self._directory.keep_control_plane
        queues, elapsed_s = self._node_host.on_queues, self._meter.elapsed_s
        sampler = ControlPlaneSampler(self._cluster, local, elapsed_s, keep_line, queues)
        self._background.keep("the look at the control plane", sampler.run)
        return sampler

    def _start_background_tasks(self) -> None:
        """Start the tasks that run next to the nodes; `Background` says what a failure does."""
        settings, keep, note = self._settings, self._background.keep, self._display.note
        node_host, cluster = self._node_host, self._cluster

        async def keep_lease() -> None:
            """Hold the names; without them the run must end and delete nothing."""
            await self._lease.keep()
            self._stop.set()

        def stop_early(reason: str) -> None:
            self.ending.stop_early(reason, cluster)
            self._stop.set()

        keep("the renewal of credentials", node_host.refresh_credentials)
        keep("the Lease of the run", keep_lease, tries_max=LEASE_TRIES_MAX)
        keep("what keeps nodes from registering", lambda: tell_unregistered(node_host, note))
        keep("static pods", lambda: run_static_sources(node_host.static_sources))
        if (labels := node_host.admin_labels) is not None:
            api = cluster.api("labels", patience_s=60.0)
            keep("labels of Nodes", lambda: labels.run(api, note))
        csi = (cluster, self._mix.models, settings, self._background, self._run_id)
        problem = partial(attach_problem, node_host.reactor)
        keep("simulated CSI", lambda: simulate_csi(*csi, problem))
        rules = settings.stop_rules(is_shared=self._facts.is_shared)
        if rules.are_on and settings.shared is None:  # the first process looks for all of a run
            health = (cluster.api("health"), node_host, rules, stop_early)
            now_s = asyncio.get_running_loop().time
            keep("the look at the server's health", lambda: watch_health(*health, now_s))
        if self._whole.keeps_records and not self._target.is_own:
            self._records = records = Records(cluster, self._directory.path, note)
            keep("the record", lambda: records.run(self._record))
        if (part := self._leader or self._follower) is not None:
            keep("the plan of the run", part.run)
        keep("the search for lost shards", lambda: clear_lost_shards(cluster, self._whole, note))

    async def _ready_then_work(self) -> int | None:
        settings = self._settings
        self._tell_use()
        if self._is_led:
            self._background.keep("the end of the scenario", self._end_as_led)
        await self.interrupts.until_stopped(self._observation.begun())
        lacking = await bring_up(
            self._node_host,
            self._cluster,
            self._whole,
            self._siblings,
            self.interrupts,
            self._background,
            self._display,
        )
        if lacking:
            self._figures.incomplete_reasons = self._figures.incomplete_reasons or [lacking]
            return None
        self._display.update(self._live())
        if self._follower is not None:
            self._follower.is_up = True
        elif self._leader is not None:
            self._faults.go_on(self._leader)
            if self._player is not None:
                rest = self._whole.nodes_of_run - self._settings.nodes
                self._display.phase("waiting for the other shards")
                await self.interrupts.until_stopped(self._leader.wait_ready(rest))
        if self._player is None or not self._player.prepares:
            await self.interrupts.until_stopped(self._observation.steady())
        self._display.phase("running")
        self._open_scaling()
        if settings.command:
            return await self._command()
        if self._player is not None:
            await self._play(self._player)
        elif not settings.until_ready:
            limit_s = None if settings.duration_ns is None else settings.duration_ns / 1e9
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), limit_s)
        return None

    async def _end_as_led(self) -> None:
        """End the run with the shard that plays the scenario, also while nodes are not Ready."""
        assert self._follower is not None
        await self._follower.is_over.wait()
        if self._follower.lost:
            self.ending.lacks(self._follower.lost)
        self._stop.set()

    def _open_scaling(self) -> None:
        """Let `fleet scale` change the number of nodes, if nothing else decides it."""
        if self._fixed_by is None:
            self._scaling = Scaling(
                self._whole,
                self._node_host,
                self._lease,
                self._cluster.api("scale"),
                self._background,
                self._observation,
            )
            self._scaling.open()

    async def _play(self, player: ScenarioPlayer) -> None:
        """Play a scenario; one that is interrupted makes the run incomplete."""
        api = self._cluster.api("scenario", patience_s=PATIENCE_S)
        lead, state = self._leader, self._node_host.state
        stage = Stage(
            self._faults,
            self._meter.elapsed_s,
            lambda: state().ready + (lead.ready() if lead is not None else 0),
            self._whole.nodes_of_run,
            self._display.tell,
            self._display.phase,
            Applied(api, self._run_id, self._lease.note),
            self._observation.steady,
            lead,
        )
        try:
            await self.interrupts.until_stopped(player.play(stage))
        finally:
            # A control plane of the run's own takes all objects with it.
            if not self._target.is_own and (problem := await player.clean_up(stage)):
                self._display.note(problem)
                self.ending.invalidate(problem)
        if unplayed := player.unplayed():
            self.ending.lacks(unplayed)

    async def _serve_dashboard(self, adopted: int, sampler: ControlPlaneSampler | None) -> None:
        """Have as many nodes as the dashboard wants, until it or Ctrl-C ends the run."""
        from fleet.dashboard.dashboard import DashboardRun  # noqa: PLC0415 - an extra, and 0.1 s

        settings = self._settings
        run = DashboardRun(
            self._node_host,
            self._cluster,
            self._whole,
            self._directory.path,
            self._target.kubeconfig,
            self._target.private_file,
            adopted,
            self._background,
            self._run_id,
            self._faults if not settings.follows else None,
            sampler,
        )
        self._display.phase("following the dashboard")
        self._background.keep("the look for a steady part", self._observation.follow)
        self._tell_use()
        address = await run.start(self._display.note)
        await self._start_siblings(
            self._whole.model_copy(update={"locust_master": address, "dashboard": False})
        )
        if self._follower is not None:
            self._follower.is_up = True  # for faults: it is never known to have all its nodes
        leaves_nodes = partial(self.ending.leaves_nodes, self._lease)
        await run.run(self._stop, self._display.note, self._siblings, leaves_nodes)

    async def _start_siblings(self, settings: Settings) -> None:
        if settings.processes == 1:
            return
        kubeconfig = self._target.local.token_kubeconfig if self._target.local else None
        confirmation = self._facts.confirmation if self._facts.is_shared else ""
        commands = [
            sibling_arguments(settings, number, self._run_id, kubeconfig, confirmation)
            for number in range(1, settings.processes)
        ]
        directory, note = self._directory.path, self._display.note
        self._siblings = Siblings(commands, directory, note, self._give_up)
        await self._siblings.start(self._background)

    async def _answer(self, order: Json) -> Json:
        """Carry out an order that came by the run's socket."""
        match order.get("do"):
            case "status":
                return self._status()
            case "ready":
                if self._leader is None or self._whole.shard is None:  # no other machine has any
                    return {"ready": self._observation.latest.nodes_ready}
                # Processes of this machine are shards, too: `latest` would count them twice.
                return {"ready": self._node_host.state().ready + self._leader.ready()}
            case "scale":
                return await self._scale(order.get("nodes"))
        return await self._faults.answer(order)

    def _status(self) -> Json:
        live, records = self._observation.latest, read_records(self._directory.path)
        known = [*(records | {self._directory.path: self._record()}).values()]
        return {
            "nodes": live.nodes_requested,
            "ready": live.nodes_ready,
            "age_s": self._meter.elapsed_s(),
            "verdict": so_far(known, is_whole=self._whole.shard is None),
        }

    async def _scale(self, nodes: object) -> Json:
        try:
            if not isinstance(nodes, int) or nodes < 0:
                raise UsageError(f"--nodes {nodes!r} is no number of nodes")
            if self._fixed_by is not None:
                raise UsageError(f"this run cannot be scaled: {self._fixed_by}")
            if self._scaling is None:
                raise UsageError("not all nodes of this run have become Ready yet; try again")
            return await self._scaling.scale(nodes, self._siblings)
        except FleetError as error:
            return {"error": str(error), "code": int(error.exit_code)}

    @property
    def _fixed_by(self) -> str | None:
        """Say what decides how many nodes there are, if `fleet scale` does not."""
        if self._settings.is_on_dashboard:
            return "its dashboard decides how many nodes there are"
        if self._settings.manage:
            return "others make its Nodes"
        has_scenario = self._player is not None or self._is_led
        return "its scenario decides how many nodes there are" if has_scenario else None

    def _record(self, *, is_over: bool = False) -> Record:
        """Return what this process has measured so far."""
        about = self._about | {"cluster": self._cluster.credentials.context}
        return self._observation.record(self._figures, self._whole, about, is_over=is_over)

    def _tell_use(self) -> None:
        """Say how to reach a control plane of ours, and how to end."""
        if self._target.local is not None:
            written = self._settings.kubeconfig_out or self._target.kubeconfig
            self._display.tell(f"export KUBECONFIG={written}")
        self._display.hint("Ctrl-C ends the run")

    def _live(self) -> LiveFigures:
        """Return how the run stands, all of its processes."""
        live = self._meter.live()
        if self._siblings is not None:
            others, scaling = self._siblings.live(), self._scaling
            live = combined([live, *others])
            if len(others) < self._whole.processes - 1 and not self._settings.is_on_dashboard:
                # Some have not begun, or begin again: they are to have their nodes all the same.
                live.nodes_requested = scaling.nodes if scaling else self._whole.nodes
        self._observation.tell(live)
        return live

    async def _command(self) -> int:
        """Run the user's command once; return its exit code, 128 + N if a signal N ended it."""
        self._display.stop()
        environment = environment_of(
            self._target, self._directory.path, "" if self._settings.manage else self._run_id
        )
        code = await run_command(self._settings.command, environment, self._stop)
        self._display.start()
        return code

    # ---- next to the run ----

    async def _sample(self) -> None:
        """Draw the display and write one line of the time series, once a second."""
        while True:
            await asyncio.sleep(FRAME_S)
            live = self._live()
            self._display.update(live)
            if news := self._directory.sample(self._meter.figures()):
                self._display.note(news)
            if self._whole.run_id:  # others may share the run; one that is killed loses a frame
                with contextlib.suppress(SetupError):  # the series reports a full disk
                    keep_live(self._directory.path, live)
                    self._directory.keep(self._record())
