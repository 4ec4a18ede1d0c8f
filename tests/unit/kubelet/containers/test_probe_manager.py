"""The probe manager, alone and within the sync loop of one node."""

from itertools import pairwise
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from world.pod_world import NODE, UID, World, container, make_pod
from world.sim_clock import SimClock

from fleet.clock import NS_PER_S, Draws
from fleet.k8s.effects import Outbox, SetTimer, Timer
from fleet.k8s.pods import (
    ContainerSpec,
    ContainerStatus,
    Pod,
    PodCondition,
    PodStatus,
    ProbeSpec,
    RunningState,
)
from fleet.kubelet.containers.probe_manager import ProbeManager
from fleet.kubelet.containers.probe_worker import NEVER, ProbeResult
from fleet.kubelet.environment import KUBELET, LIGHT, Environment
from fleet.kubelet.events import EventRecorder
from fleet.kubelet.node_facts import NodeFacts
from fleet.kubelet.pod_worker import KillReason
from fleet.kubelet.pods.status_generate import apply_update
from fleet.kubelet.turn import Turn
from fleet.profile.container_behavior import ProbeKind
from fleet.profile.loader import load_mix
from fleet.profile.node_model import NodeModel
from fleet.profile.release import V1_36
from fleet.runtime.containers import Container, RunState

MODEL = load_mix().model_of(0)
START_S = 1_000
HTTP = ProbeSpec("httpGet", "http", port=80, path="/")
PROBES = [f"fleet.emulator/{kind}-probe" for kind in ("startup", "readiness", "liveness")]
FIELDS = ("startup_probe", "readiness_probe", "liveness_probe")


class Seen(NamedTuple):
    """What a world sees of one probe: Unhealthy events and results, each with its second."""

    events: list[float]
    results: list[tuple[float, ProbeResult]]


class Bench:
    """A manager with one pod whose container runs, and nothing around it."""

    def __init__(
        self,
        kind: ProbeKind,
        probe: ProbeSpec,
        timeline: str,
        *,
        light: bool,
        model: NodeModel = MODEL,
    ) -> None:
        self.env = Environment(model, Draws(3), fidelity=LIGHT if light else KUBELET)
        self.env.wall_offset_ns = SimClock.EPOCH_NS
        self.recorder = EventRecorder()
        self.facts = NodeFacts(NODE, "n", "192.0.2.1")
        self.facts.started_ns = -NEVER  # long before
        self.manager = ProbeManager(self.env.runtime_of(NODE, "n", "192.0.2.1", ""))
        self.now_ns = START_S * NS_PER_S
        spec = container("c", **{FIELDS[kind]: probe})
        notes = ((PROBES[kind], timeline),)
        self.pod = make_pod(spec, annotations=notes)
        self.status = running_status(self.env.wall_s(self.now_ns), started=bool(kind))
        self.timers = 0
        self._armed_ns = NEVER
        self.seen = Seen([], [])

    def turn(self) -> Turn:
        self.out: Outbox = []
        return Turn(self.facts, self.env, self.recorder, self.now_ns, self.out)

    def begin(self) -> None:
        self.manager.add_pod(self.pod, self.status, self.turn())
        self._take()

    def run(self, seconds: int) -> Seen:
        end_ns = self.now_ns + seconds * NS_PER_S
        while self._armed_ns <= end_ns:
            self.now_ns = max(self.now_ns, self._armed_ns)
            self._armed_ns = NEVER
            before = bytes(self.recorder._seen._records)
            updates = self.manager.on_timer(self.pod, self.status, self.turn())
            after = bytes(self.recorder._seen._records)
            self._take()
            at_s = self.now_ns / NS_PER_S - START_S
            if after != before:
                self.seen.events.append(at_s)
            self.seen.results.extend((at_s, update.result) for update in updates)
            for update in updates:
                self.status = apply_update(self.pod, self.status, update)
            if updates:
                self.manager.on_status(self.pod, self.status, self.turn())
                self._take()
        self.now_ns = end_ns
        return self.seen

    def _take(self) -> None:
        for effect in self.out:
            if isinstance(effect, SetTimer):
                assert effect.timer is Timer.PROBES
                self.timers += 1
                self._armed_ns = effect.due_ns


def running_status(started_s: int, *, started: bool) -> PodStatus:
    found = ContainerStatus(
        name="c",
        state=RunningState(started_s),
        last_state=None,
        ready=False,
        started=started,
        restart_count=0,
        image="docker.io/library/nginx:1",
        image_id="",
        container_id="containerd://1",
    )
    conditions = (PodCondition("Ready", "False"), PodCondition("ContainersReady", "False"))
    return PodStatus("Running", conditions=conditions, pod_ips="10.0.0.9", containers=(found,))


def test_light_plans_no_command_of_a_pod_that_ends() -> None:
    """In `light` a cancelled command is neither an event nor a result."""
    probe = ProbeSpec("exec", command=("ready",), period_s=1)
    model = MODEL.on_server(V1_36.newest)
    bench = Bench(ProbeKind.READINESS, probe, "", light=True, model=model)
    bench.begin()
    assert bench.run(5).results[-1][1] is ProbeResult.SUCCESS
    bench.manager.stop_liveness_and_startup(bench.pod, bench.status, bench.turn())
    bench._take()
    timers = bench.timers
    bench.run(24 * 3600)
    assert bench.timers == timers


def expected(kind: ProbeKind, probe: ProbeSpec, good: list[bool], seconds: int) -> Seen:
    """Tick second by second as a real worker does. `good`: what it finds, by second."""
    seen = Seen([], [])
    initial = (ProbeResult.UNKNOWN, ProbeResult.FAILURE, ProbeResult.SUCCESS)[kind]
    result: ProbeResult | None = None
    last: ProbeResult | None = None
    run = 0
    for second in range(0, seconds + 1, probe.period_s):
        if result is None:
            result = initial
            if kind is not ProbeKind.LIVENESS:
                seen.results.append((second, result))
        if second < probe.initial_delay_s:
            continue
        found = ProbeResult.SUCCESS if good[second] else ProbeResult.FAILURE
        if found is ProbeResult.FAILURE:
            seen.events.append(second)
        run = run + 1 if found is last else 1
        last = found
        failed = found is ProbeResult.FAILURE
        if run < (probe.failure_threshold if failed else probe.success_threshold):
            continue
        if found is not result:
            seen.results.append((second, found))
        result = found
        if kind is ProbeKind.STARTUP or (kind is ProbeKind.LIVENESS and failed):
            break
    return seen


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(ProbeKind),
    st.integers(1, 7),
    st.integers(0, 12),
    st.integers(1, 3),
    st.integers(1, 4),
    st.lists(st.integers(1, 25), max_size=5),
    st.booleans(),
    st.booleans(),
)
def test_looking_ahead_finds_what_ticking_finds(
    kind: ProbeKind,
    period_s: int,
    delay_s: int,
    successes: int,
    failures: int,
    lengths: list[int],
    is_good: bool,  # noqa: FBT001
    light: bool,  # noqa: FBT001
) -> None:
    probe = HTTP._replace(
        period_s=period_s,
        initial_delay_s=delay_s,
        success_threshold=successes if kind is ProbeKind.READINESS else 1,
        failure_threshold=failures,
    )
    phases, good, at_s = [], [], 0
    for length in (*lengths, 100):
        phases.append(f"{{after: {at_s}s, result: {'Success' if is_good else 'Failure'}}}")
        good += [is_good] * length
        at_s += length
        is_good = not is_good
    bench = Bench(kind, probe, f"[{', '.join(phases)}]", light=light)
    bench.begin()
    found = bench.run(90)
    wanted = expected(kind, probe, good, 90)
    assert found.results == wanted.results
    assert found.events == ([] if light else wanted.events)


def test_rare_failures_cost_a_timer_each() -> None:
    timeline = "[{result: Success, failureRate: 0.01}]"
    bench = Bench(ProbeKind.READINESS, HTTP, timeline, light=False)
    bench.begin()
    seen = bench.run(200_000)  # 20,000 ticks
    assert 150 < len(seen.events) < 250
    assert bench.timers < len(seen.events) + 20_000 / 200
    assert [result for _, result in seen.results] == [ProbeResult.FAILURE, ProbeResult.SUCCESS]


def test_what_wants_a_container_killed() -> None:
    for kind, reason in (
        (ProbeKind.LIVENESS, KillReason.LIVENESS_PROBE),
        (ProbeKind.STARTUP, KillReason.STARTUP_PROBE),
        (ProbeKind.READINESS, None),
    ):
        bench = Bench(kind, HTTP, "Failure", light=False)
        this = Container("c", 0, "containerd://1")
        bench.begin()
        bench.run(15)
        assert bench.manager.failed_probe(UID, this) is None
        bench.run(10)
        assert bench.manager.failed_probe(UID, this) is reason
        assert bench.manager.failed_probe(UID, Container("c", 1, "containerd://2")) is None


def test_a_pod_that_was_ended_is_not_probed_any_more() -> None:
    bench = Bench(ProbeKind.READINESS, HTTP, "Failure", light=False)
    bench.begin()
    bench.run(15)
    bench.status = bench.status._replace(phase="Failed")
    bench.manager.on_status(bench.pod, bench.status, bench.turn())
    bench._take()
    assert bench.run(60).events == [0, 10]


# ---- within a node ----


def probed(**probes: ProbeSpec) -> ContainerSpec:
    return container("c", **{f"{kind}_probe": probe for kind, probe in probes.items()})


def later(*, light: bool = False) -> World:
    """Return the world of a kubelet that began an hour ago."""
    world = World(light=light)
    world.now_ns = 3600 * NS_PER_S
    return world


def adopted(world: World, spec: ContainerSpec, *, ready: bool, ago_s: int) -> Pod:
    """Return a pod that a kubelet before this one started."""
    now_s = world.env.wall_s(world.now_ns)
    status = running_status(now_s - ago_s, started=True)
    [shown] = status.containers
    told = "True" if ready else "False"
    conditions = tuple(each._replace(status=told) for each in status.conditions)
    status = status._replace(containers=(shown._replace(ready=ready),), conditions=conditions)
    return make_pod(spec, status=status)


def test_a_pod_that_was_ready_stays_so_over_a_restart_of_the_kubelet() -> None:
    for ready in (True, False):
        world = World()
        world.now_ns = 3600 * NS_PER_S
        world.facts.started_ns = world.now_ns
        world.create(adopted(world, probed(readiness=HTTP), ready=ready, ago_s=600))
        world.run(0.5)
        assert world.container().ready is ready
        world.run(11)  # the first tick comes within a period
        assert world.container().ready
        assert {status.containers[0].ready for status in world.statuses} <= {ready, True}


def test_soon_after_the_kubelet_began_the_first_tick_is_put_off() -> None:
    times = []
    for index in range(20):
        world = World()
        world.now_ns = 100 * NS_PER_S
        world.facts.started_ns = world.now_ns
        world.create(make_pod(probed(readiness=HTTP), uid=(uid := f"u{index}")))
        while not any(each.ready for each in world.pods[uid].status.containers):
            world.run(0.2)
            assert world.now_ns < 115 * NS_PER_S
        times.append(world.now_ns / NS_PER_S - 100)
    assert max(times) > 6
    assert min(times) < 4
    assert len({round(each) for each in times}) > 4


def test_a_pod_that_is_not_ready_is_tried_again_by_its_resync() -> None:
    world = later()
    slow = HTTP._replace(period_s=600)
    notes = ((PROBES[1], "Success after 20s"),)
    world.create(make_pod(probed(readiness=slow), annotations=notes))
    world.run(50)
    assert not world.container().ready
    world.run(60)  # 60 to 90 s after its last sync
    assert world.container().ready


def test_a_restarted_container_keeps_its_started_until_the_next_startup_tick() -> None:
    """As upstream since 1.35: the last status is believed until the startup probe ran."""
    world = later()
    often = HTTP._replace(period_s=1, failure_threshold=1)
    spec = probed(startup=HTTP._replace(period_s=5), liveness=often)
    notes = ((PROBES[2], "Failure after 12s"),)
    world.create(make_pod(spec, annotations=notes, termination_grace_s=0))
    world.run(12)
    assert world.container().started
    seen = []
    for _ in range(200):
        world.run(0.1)
        if world.container().restart_count == 1:
            seen.append(world.container().started)
    changes = [seen[0], *(b for a, b in pairwise(seen) if a is not b)]
    assert changes == [True, False, True]


def test_the_container_of_a_result_runs() -> None:
    """A result says nothing of a container that ended, or of another one."""
    world = later()
    world.create(make_pod(probed(readiness=HTTP), restart_policy="Never"))
    world.run(10)
    syncer = world.loop._syncer
    sandbox = syncer.runtime.sandbox(UID)
    assert sandbox is not None
    sandbox.containers[0].state = RunState.EXITED
    turn = Turn(world.facts, world.env, world.recorder, world.now_ns, [])
    old = world.pods[UID].status
    found = syncer.probes.update_pod_status(world.pods[UID], sandbox, old, turn)
    assert found == {"c": (False, False)}


def test_nothing_is_left_of_a_deleted_pod() -> None:
    for light in (False, True):
        world = later(light=light)
        notes = ((PROBES[1], "Failure"),)
        spec = probed(readiness=HTTP, liveness=HTTP, startup=HTTP)
        world.create(make_pod(spec, annotations=notes))
        world.run(30)
        syncer = world.loop._syncer
        assert list(syncer.probes._pods) == [UID]
        world.delete()
        world.run(60)
        assert not syncer.probes._pods
        assert not world.pods
