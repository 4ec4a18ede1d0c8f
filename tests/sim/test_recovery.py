"""Two halves: trouble, in which safety must hold; then recovery, which has a stated time.

Safety: a lease that the server answers for never lapses, a terminal phase never changes, a pod is
deleted once, what is deleted does not come back. Recovery, within CONVERGE_S: every node Ready,
every pod where it should be, every watch open, nothing tried again any more.
"""

import random
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
from world.sim_faults import (
    AnswersSlow,
    ApiServerAnswers,
    ClockSteps,
    ConnectionsDropped,
    ConnectionsRefused,
    EventsLate,
    Fault,
    RequestsVanish,
    Throttled,
    VersionsExpired,
    WatchesEnded,
)
from world.simulation import LEASE_DURATION_S, WATCHES, Simulation, seeded
from world.strategic_merge import Object
from world.transport import Pools

from fleet.clock import NS_PER_S, Draws
from fleet.k8s.effects import NodeId, Op
from fleet.kubelet.environment import LIGHT
from fleet.wire.api.requests import CALL_TIMEOUT_NS

pytest_plugins = ("sim_encodings",)

NODES = 6
PODS = 24
TROUBLE_S = 150
OUTAGE_MAX_S = 20
STRANDS = 2
"""Series of faults, one fault after the other in each: two at once, of other nodes or the same."""
RESTARTS = 4
EDITS = 6
"""How often somebody else writes into a Node what its kubelet says, and puts right."""
LABEL, ELSEWHERE = "kubernetes.io/os", "plan9"
BACK_OFF_S = 7
"""Longest wait between two tries to renew. Source: lease/controller.go, maxBackoff."""
CONVERGE_S = 300
"""Back-off of mounts (122 s) and of reflectors (60 s), a resync (90 s), and a status pass."""

FAULTS: tuple[Callable[[float, Pools], Fault], ...] = (
    lambda share, pools: ApiServerAnswers(500 + int(share * 5), pools=pools),
    lambda _, pools: ApiServerAnswers(503, retry_after_s=2, pools=pools),
    lambda _, pools: ApiServerAnswers(429, retry_after_s=1, pools=pools),
    lambda _, pools: ApiServerAnswers(401, pools=pools),
    lambda share, _: ClockSteps(600 * (share - 0.5)),
    lambda share, _: EventsLate(5 * share),
    lambda _, pools: ConnectionsRefused(pools),
    lambda _, pools: ConnectionsDropped(pools),
    lambda _, pools: RequestsVanish(pools),
    lambda share, pools: AnswersSlow(share * 3, pools),
    lambda _share, _pools: VersionsExpired(),
    lambda _share, _pools: WatchesEnded(),
    lambda share, _: Throttled(("GET", "PUT", "PATCH", "POST", "WATCH")[int(share * 5)], 20),
)
COMMANDS = (["serve"], ["sleep", "9"], ["sh", "-c", "sleep 3; exit 1"])
PROBE: Object = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 2}
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
UNSTEADY = {"fleet.emulator/readiness-probe": "Success, Failure after 20s, Success after 60s"}
CONTAINERS_MAX = 3


class Trouble:
    """One seed's story: pods come and go while servers and kubelets misbehave."""

    def __init__(self, seed: int, *, light: bool) -> None:
        self.sim = Simulation(nodes=NODES, seed=seed, light=light)
        self.light = light
        self.draws = Draws(seed ^ 0x7B0B1E)
        self.others = random.Random(seed)
        self.removed = 0
        self.count = 0
        self.pods: dict[str, str] = {}  # name to uid
        self.ends: dict[str, str] = {}  # what becomes of each
        self.deleted: set[str] = set()
        self.outages: list[tuple[float, float]] = []
        self.restarted: set[int] = set()
        self.healed_s = 0.0

    def share(self) -> float:
        self.count += 1
        return self.draws.uniform(0, 0, self.count)

    def play(self) -> None:
        sim = self.sim
        sim.run_for(seconds=5 + 20 * self.share())  # some leases are not made yet
        for index in range(PODS):
            sim.after(TROUBLE_S * self.share(), partial(self._create, index))
        for _ in range(RESTARTS):
            sim.after(TROUBLE_S * self.share(), self._restart)
        for _ in range(EDITS):
            sim.after(TROUBLE_S * self.others.random(), self._edit)
        sim.after(TROUBLE_S * self.others.random(), self._remove)
        for _ in range(STRANDS):
            self._go_wrong(sim.now_s + TROUBLE_S)
        sim.run_for(seconds=TROUBLE_S + OUTAGE_MAX_S)
        self.healed_s = sim.now_s

    def _go_wrong(self, until_s: float) -> None:
        """Let one thing go wrong now, and the next when that is healed, on all nodes or some."""
        sim = self.sim
        if sim.now_s >= until_s:
            return
        pools = self._some() if self.share() < 0.5 else None
        fault = FAULTS[int(self.share() * len(FAULTS))](self.share(), pools)
        lasts_s = OUTAGE_MAX_S * self.share()
        sim.inject(fault, seconds=lasts_s)
        self.outages.append((sim.now_s, sim.now_s + lasts_s))
        sim.after(lasts_s + 25 * self.share(), lambda: self._go_wrong(until_s))

    def _some(self) -> Pools:
        """Draw some nodes by their connections; in light they share one."""
        if self.light:
            return None
        return frozenset(node for node in range(NODES) if self.share() < 0.4)

    def _restart(self) -> None:
        """Kill the kubelets of some nodes, which begin anew."""
        nodes = [node for node in range(NODES) if self.share() < 0.4]
        self.sim.reactor.restart([NodeId(node) for node in nodes])
        self.restarted.update(nodes)

    def _edit(self) -> None:
        """Write as somebody else into a Node what its kubelet says."""
        name = self.others.choice(self.sim.names)
        edit: Object = {"metadata": {"labels": {LABEL: ELSEWHERE}}}
        if self.others.random() < 0.5:
            edit["status"] = {"capacity": {"cpu": "1"}, "addresses": []}
        if self.sim.server.find("nodes", name) is not None:
            self.sim.server.update("nodes", name, edit)

    def _remove(self) -> None:
        """Delete a Node as somebody else; its kubelet is restarted some time later."""
        node = self.others.randrange(NODES)
        if self.sim.server.find("nodes", self.sim.names[node]) is not None:
            self.sim.server.remove(("nodes", "", self.sim.names[node]))
            self.removed += 1
            self.restarted.add(node)
            self.sim.after(30 * self.others.random(), partial(self._restart_one, node))

    def _restart_one(self, node: int) -> None:
        self.sim.reactor.restart([NodeId(node)])

    def _create(self, index: int) -> None:
        name = f"pod-{index}"
        policy = ("Always", "OnFailure", "Never")[int(self.share() * 3)]
        containers = [self._container(at) for at in range(1 + int(self.share() * CONTAINERS_MAX))]
        extra: Object = {"annotations": UNSTEADY} if self.share() < 0.2 else {}
        if self.share() < 0.3:
            extra["initContainers"] = [{"name": "i", "image": "nginx:1", "command": ["true"]}]
        node = f"n-{index % NODES}"
        self.pods[name] = self.sim.create_pod(
            name, node, containers=containers, restartPolicy=policy, **extra
        )
        serving = sum(each["command"] == ["serve"] for each in containers)
        if serving:
            self.ends[name] = "serves" if serving == len(containers) else "runs"
        else:
            self.ends[name] = "ends" if policy == "Never" else "restarts"
        if self.share() < 0.5:
            grace_s = (0, 1, 30)[int(self.share() * 3)]
            self.sim.after(40 * self.share(), lambda: self._delete(name, grace_s))

    def _container(self, at: int) -> Object:
        """Draw a container; its probes are such that a healthy one succeeds."""
        command = COMMANDS[int(self.share() ** 2 * len(COMMANDS))]
        probes = {kind: PROBE for kind in PROBES if self.share() < 0.3}
        return {"name": f"c{at}", "image": "nginx:1", "command": command, **probes}

    def _delete(self, name: str, grace_s: int) -> None:
        self.deleted.add(name)
        if self.sim.phase(name):
            self.sim.server.delete_pod(name, grace_s=grace_s)

    def check_safety(self) -> None:
        server = self.sim.server
        uids = [uid for _, uid in server.deleted]
        assert len(uids) == len(set(uids)), server.deleted
        for uid, phases in server.phases.items():
            ended = [phase for phase in phases if phase in {"Succeeded", "Failed"}]
            assert len(ended) <= 1, (uid, phases)
            assert not ended or phases[-1] == ended[0], (uid, phases)
        assert self.sim.reactor.counts.quarantined == 0
        assert not self.sim.reactor.counts.rejected
        posts = self.sim.calls(verb="POST", path="/api/v1/nodes", code=201)
        assert len(posts) <= NODES + self.removed
        for node, name in enumerate(self.sim.names):
            # One that begins anew waits for its registration, which may have vanished.
            waits_s = CALL_TIMEOUT_NS / NS_PER_S if node in self.restarted else 0
            assert self.longest_unrenewed_s(name) < LEASE_DURATION_S / 2 + waits_s, name

    def longest_unrenewed_s(self, node: str) -> float:
        """Return how long a server that answers has waited for one renewal at most."""
        made = self.sim.calls(node, "POST", "/leases", code=201)
        renewed = self.sim.calls(node, "PUT", "/leases/", code=200)
        times = [each.t_ns / NS_PER_S for each in (*made, *renewed)]
        assert times, node  # one that begins again may wait for minutes
        return max(self.answered_s(*gap) for gap in pairwise([*times, self.sim.now_s]))

    def answered_s(self, since_s: float, until_s: float) -> float:
        """Return how much of a time no fault was on.

        Between two faults a kubelet may be waiting for its next try until the second one begins.
        """
        answered, at_s = 0.0, since_s
        for begin_s, end_s in sorted(self.outages):  # they overlap
            waits_s = BACK_OFF_S if at_s > since_s else 0
            answered += max(0.0, min(begin_s, until_s) - at_s - waits_s)
            at_s = max(at_s, end_s)
        return answered + max(0.0, until_s - at_s)

    def check_recovery(self) -> None:
        sim = self.sim
        assert sim.ready() == NODES
        steady = [f"n-{node}" for node in range(NODES) if node not in self.restarted]
        assert sim.longest_gap_s(Op.RENEW_LEASE, self.healed_s, steady) < LEASE_DURATION_S / 2
        registered_s = self.healed_s + CALL_TIMEOUT_NS / NS_PER_S
        assert sim.longest_gap_s(Op.RENEW_LEASE, registered_s) < LEASE_DURATION_S / 2
        light = sim.env.fidelity is LIGHT
        for name in self.pods:
            phase = sim.phase(name)
            if name in self.deleted:
                assert not phase, (name, phase)
            elif self.ends[name] in {"serves", "runs"}:
                assert phase == "Running", (name, phase)
                if self.ends[name] == "serves":
                    self._check_ready(name)
            elif self.ends[name] == "ends":
                assert phase in {"Succeeded", "Failed"}, (name, phase)
        for entry in sim.reactor.entries:
            assert entry.kubelet is not None
            loop = entry.kubelet.pods
            kept = {pod.name for pod in loop} if loop is not None else set()
            bound = {
                str(pod["metadata"]["name"])
                for pod in sim.server.all("pods")
                if pod["spec"]["nodeName"] == entry.kubelet.name
            }
            assert kept == bound
        if not light:
            assert len(sim.server.all("csinodes")) == NODES
            for node in sim.server.all("nodes"):
                assert node["metadata"]["labels"][LABEL] != ELSEWHERE
                assert node["status"]["capacity"]["cpu"] != "1"
        assert sim.server.open_watches >= (2 if light else WATCHES * NODES)

    def _check_ready(self, name: str) -> None:
        """Every container of a pod that serves runs and is ready, and the pod says the same."""
        pod = self.sim.server.get("pods", name, "default")
        told = pod["status"]["containerStatuses"]
        assert [each["name"] for each in told] == [
            each["name"] for each in pod["spec"]["containers"]
        ]
        for each in told:
            assert "running" in each["state"], (name, each)
            assert each["ready"], (name, each)
            assert each["restartCount"] == 0, (name, each)  # of a kubelet's restart none ends
        conditions = {each["type"]: each["status"] for each in pod["status"]["conditions"]}
        assert conditions["Ready"] == conditions["ContainersReady"] == "True", (name, conditions)

    def check_calm(self) -> None:
        """Look at a minute in which nothing happens: only leases, and pods that crash."""
        sim = self.sim
        before_s = sim.now_s
        sim.run_for(seconds=60)
        sent = sim.calls(since_s=before_s)
        # An Event of which the first POST was refused is patched by the next one: 404, then POST.
        bad = [s for s in sent if s.code > 201 and (s.verb, s.code) != ("PATCH", 404)]
        assert not bad
        for name in sim.names:
            assert 5 <= sum(each.verb == "PUT" and each.node == name for each in sent) <= 6
        limit_ns = (before_s - LEASE_DURATION_S) * NS_PER_S
        assert all(limit_ns < sim.node_seen_ns(name) for name in sim.names)


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
@seeded(8)
def test_a_fleet_survives_trouble(seed: int, *, light: bool) -> None:
    trouble = Trouble(seed, light=light)
    trouble.play()
    assert trouble.restarted
    trouble.check_safety()
    trouble.sim.run_for(seconds=CONVERGE_S)
    trouble.check_safety()
    trouble.check_recovery()
    trouble.check_calm()
