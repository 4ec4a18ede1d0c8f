"""Two halves: trouble, in which safety must hold; then recovery, which has a stated time.

Safety: a lease that the server answers for never lapses, a terminal phase never changes, a pod is
deleted once, what is deleted does not come back. Recovery, within CONVERGE_S: every node Ready,
every pod where it should be, every watch open, nothing tried again any more.
"""

from collections.abc import Callable
from itertools import pairwise

import pytest
from sim_faults import (
    AnswersSlow,
    ApiServerAnswers,
    ConnectionsDropped,
    ConnectionsRefused,
    Fault,
    RequestsVanish,
    Throttled,
    VersionsExpired,
    WatchesEnded,
)
from simulation import LEASE_DURATION_S, Simulation, seeds

from fleet.clock import NS_PER_S, Draws
from fleet.effects import Op

pytest_plugins = ("sim_encodings",)

NODES = 6
PODS = 24
TROUBLE_S = 150
OUTAGE_MAX_S = 20
CONVERGE_S = 300
"""Back-off of mounts (122 s) and of reflectors (60 s), a resync (90 s), and a status pass."""

FAULTS: tuple[Callable[[float], Fault], ...] = (
    lambda share: ApiServerAnswers(500 + int(share * 5)),
    lambda _: ApiServerAnswers(503, retry_after_s=2),
    lambda _: ConnectionsRefused(),
    lambda _: ConnectionsDropped(),
    lambda _: RequestsVanish(),
    lambda share: AnswersSlow(share * 3),
    lambda _: VersionsExpired(),
    lambda _: WatchesEnded(),
    lambda share: Throttled(("GET", "PUT", "PATCH", "POST", "WATCH")[int(share * 5)], 20),
)
COMMANDS = (["serve"], ["sleep", "9"], ["sh", "-c", "sleep 3; exit 1"])


class Trouble:
    """One seed's story: pods come and go while the server misbehaves."""

    def __init__(self, seed: int, *, light: bool) -> None:
        self.sim = Simulation(nodes=NODES, seed=seed, light=light)
        self.draws = Draws(seed ^ 0x7B0B1E)
        self.count = 0
        self.pods: dict[str, str] = {}  # name to uid
        self.policies: dict[str, str] = {}
        self.deleted: set[str] = set()
        self.outages: list[tuple[float, float]] = []
        self.healed_s = 0.0

    def share(self) -> float:
        self.count += 1
        return self.draws.uniform(0, 0, self.count)

    def play(self) -> None:
        sim = self.sim
        sim.run_for(seconds=5 + 20 * self.share())  # some leases are not made yet
        for index in range(PODS):
            sim.after(TROUBLE_S * self.share(), lambda index=index: self._create(index))  # type: ignore[misc]
        until_s = sim.now_s + TROUBLE_S
        while sim.now_s < until_s:
            fault = FAULTS[int(self.share() * len(FAULTS))](self.share())
            lasts_s = OUTAGE_MAX_S * self.share()
            sim.inject(fault, seconds=lasts_s)
            self.outages.append((sim.now_s, sim.now_s + lasts_s))
            sim.run_for(seconds=lasts_s + 25 * self.share())
        sim.run_for(seconds=OUTAGE_MAX_S)
        self.healed_s = sim.now_s

    def _create(self, index: int) -> None:
        name = f"pod-{index}"
        policy = ("Always", "OnFailure", "Never")[int(self.share() * 3)]
        command = COMMANDS[int(self.share() * len(COMMANDS))]
        node = f"n-{index % NODES}"
        self.pods[name] = self.sim.create_pod(name, node, command=command, restartPolicy=policy)
        self.policies[name] = "serves" if command == ["serve"] else policy
        if self.share() < 0.5:
            grace_s = (0, 1, 30)[int(self.share() * 3)]
            self.sim.after(40 * self.share(), lambda: self._delete(name, grace_s))

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
        assert len(posts) <= NODES
        for name in self.sim.names:
            assert self.longest_unrenewed_s(name) < LEASE_DURATION_S / 2, name

    def longest_unrenewed_s(self, node: str) -> float:
        """Return how long a server that answers has waited for one renewal at most."""
        made = self.sim.calls(node, "POST", "/leases", code=201)
        renewed = self.sim.calls(node, "PUT", "/leases/", code=200)
        times = [each.t_ns / NS_PER_S for each in (*made, *renewed)]
        assert len(times) > 5, (node, times)
        return max(self.answered_s(*gap) for gap in pairwise([*times, self.sim.now_s]))

    def answered_s(self, since_s: float, until_s: float) -> float:
        """Return how much of a time no fault was on."""
        faulty = (min(until_s, end) - max(since_s, begin) for begin, end in self.outages)
        return until_s - since_s - sum(max(0.0, each) for each in faulty)

    def check_recovery(self) -> None:
        sim = self.sim
        assert sim.ready() == NODES
        assert sim.longest_gap_s(Op.RENEW_LEASE, self.healed_s) < LEASE_DURATION_S / 2
        light = sim.env.light
        for name in self.pods:
            phase = sim.phase(name)
            if name in self.deleted:
                assert not phase, (name, phase)
            elif self.policies[name] == "serves":
                assert phase == "Running", (name, phase)
            elif self.policies[name] == "Never":
                assert phase in {"Succeeded", "Failed"}, (name, phase)
        for entry in sim.reactor.entries:
            assert entry.kubelet is not None
            loop = entry.kubelet.sync_loop
            kept = {pod.name for pod in loop.pods()} if loop is not None else set()
            bound = {
                str(pod["metadata"]["name"])
                for pod in sim.server.all("pods")
                if pod["spec"]["nodeName"] == entry.kubelet.name
            }
            assert kept == bound
        if not light:
            assert len(sim.server.all("csinodes")) == NODES
        assert sim.server.open_watches >= (2 if light else 5 * NODES)

    def check_calm(self) -> None:
        """Look at a minute in which nothing happens: only leases, and pods that crash."""
        sim = self.sim
        before_s = sim.now_s
        sim.run_for(seconds=60)
        sent = sim.calls(since_s=before_s)
        assert {each.code for each in sent} <= {200, 201}, [s for s in sent if s.code > 201]
        for name in sim.names:
            assert 5 <= sum(each.verb == "PUT" and each.node == name for each in sent) <= 6
        limit_ns = (before_s - LEASE_DURATION_S) * NS_PER_S
        assert all(limit_ns < sim.node_seen_ns(name) for name in sim.names)


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
@pytest.mark.parametrize("seed", seeds(20))
def test_a_fleet_survives_trouble(seed: int, *, light: bool) -> None:
    trouble = Trouble(seed, light=light)
    trouble.play()
    trouble.check_safety()
    trouble.sim.run_for(seconds=CONVERGE_S)
    trouble.check_safety()
    trouble.check_recovery()
    trouble.check_calm()
