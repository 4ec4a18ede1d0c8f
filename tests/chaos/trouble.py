"""The faults: what goes wrong and for how long. One row each; each heals what it broke."""

import asyncio
import contextlib
import random
import resource
import signal
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

import psutil

from chaos.admin import ERRORS, FLOW, NODES, PODS
from chaos.stage import Fleet, Stage
from fleet.controlplane.directory import Certificates, Layout
from fleet.controlplane.flags import SERVICE_IP
from fleet.controlplane.options import APISERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER
from fleet.controlplane.pki import API_SERVER_NAMES, Authority

LEVEL = "chaos-refuses"
DISK_FULL = "disk-full"
DESCRIPTORS_LEFT = 3
HALF = 0.5
RATE_LEAST = 20_000.0
"""Bytes in a second that a link has at least when its bandwidth is halved."""


class Blow(NamedTuple):
    """One fault, as a seed drew it."""

    kind: str
    hold_s: float
    share: float
    """From 0 to 1: how hard it hits, and which fleet."""


Player = Callable[[Stage, Fleet, Blow], AbstractAsyncContextManager[None]]
Fault = Callable[[Stage, Fleet, Blow], AsyncIterator[None]]
"""Breaks something, yields for as long as the fault lasts, and heals it."""


class Kind(NamedTuple):
    """A row of the table."""

    player: Player
    hold_s: tuple[float, float]
    """For how long it lasts, at least and at most; (0, 0): for an instant."""


KINDS: dict[str, Kind] = {}


def kind(name: str, least_s: float, most_s: float) -> Callable[[Fault], Fault]:
    """Add a row to the table."""

    def add(fault: Fault) -> Fault:
        KINDS[name] = Kind(contextlib.asynccontextmanager(fault), (least_s, most_s))
        return fault

    return add


def possible(stage: Stage) -> list[str]:
    """Return the kinds that can happen on a machine: where nothing may be mounted no disk fills."""
    return [name for name in KINDS if name != DISK_FULL or stage.run_disk is not None]


class Deck:
    """Draws faults: each kind once, in a random order, before any comes again."""

    def __init__(self, draws: random.Random, names: Collection[str]) -> None:
        self._draws = draws
        self._names = names
        self._left: list[str] = []

    def deal(self) -> Blow:
        if not self._left:
            self._left = self._draws.sample(sorted(self._names), len(self._names))
        name = self._left.pop()
        return Blow(name, self._draws.uniform(*KINDS[name].hold_s), self._draws.random())


# ---- the control plane ----


@contextlib.asynccontextmanager
async def _killed(stage: Stage, component: str) -> AsyncIterator[None]:
    await stage.plane.kill(component)
    try:
        yield
    finally:
        await stage.revive(component)


@contextlib.asynccontextmanager
async def _stalled(stage: Stage, component: str) -> AsyncIterator[None]:
    stage.plane.signal(component, signal.SIGSTOP)
    try:
        yield
    finally:
        stage.plane.signal(component, signal.SIGCONT)


def _of(way: Callable[[Stage, str], AbstractAsyncContextManager[None]], component: str) -> Player:
    return lambda stage, _fleet, _blow: way(stage, component)


KINDS |= {
    "apiserver-killed": Kind(_of(_killed, APISERVER), (1, 8)),
    "apiserver-stalled": Kind(_of(_stalled, APISERVER), (2, 12)),
    "etcd-killed": Kind(_of(_killed, ETCD), (1, 8)),
    "etcd-stalled": Kind(_of(_stalled, ETCD), (2, 12)),
    "controllers-killed": Kind(_of(_killed, CONTROLLER_MANAGER), (2, 10)),
    "scheduler-killed": Kind(_of(_killed, SCHEDULER), (2, 10)),
}


@kind("apiserver-new-certificate", 1, 3)
async def _new_certificate(stage: Stage, _fleet: Fleet, _blow: Blow) -> AsyncIterator[None]:
    """Restart it with another certificate of the same authority."""
    certificates = Certificates.within(Layout(stage.plane.info.directory).pki)
    async with _killed(stage, APISERVER):
        names = (*API_SERVER_NAMES, "127.0.0.1", SERVICE_IP)
        Authority.load(certificates.ca).server(certificates.apiserver, "kube-apiserver", names)
        yield


@kind("etcd-slow", 5, 15)
async def _etcd_slow(stage: Stage, _fleet: Fleet, blow: Blow) -> AsyncIterator[None]:
    """Have each request and each answer of etcd take 25 to 250 ms longer, as on a slow disk."""
    stage.disk.delay_s = 0.025 + 0.225 * blow.share
    try:
        yield
    finally:
        stage.disk.delay_s = 0


@kind("429-storm", 3, 12)
async def _throttled(stage: Stage, fleet: Fleet, _blow: Blow) -> AsyncIterator[None]:
    """Refuse whatever the nodes ask: a priority level whose one seat is taken, without a queue.

    A level without any seat still lets one request in, however long it takes. Source: apiserver,
    pkg/util/flowcontrol/fairqueuing/queueset/queueset.go, canAccommodateSeatsLocked.
    """
    limited = {"nominalConcurrencyShares": 0, "limitResponse": {"type": "Reject"}}
    level = {"metadata": {"name": LEVEL}, "spec": {"type": "Limited", "limited": limited}}
    everything = {each: ["*"] for each in ("verbs", "apiGroups", "resources", "namespaces")}
    rule = {**everything, "clusterScope": True}
    subjects = [
        {"kind": "Group", "group": {"name": "system:nodes"}},
        {
            "kind": "ServiceAccount",
            "serviceAccount": {"namespace": "kube-system", "name": fleet.prefix},
        },
    ]
    schema = {
        "metadata": {"name": LEVEL},
        "spec": {
            "matchingPrecedence": 2,
            "priorityLevelConfiguration": {"name": LEVEL},
            "rules": [{"subjects": subjects, "resourceRules": [rule]}],
        },
    }
    ask = stage.admin.change
    await ask("POST", f"{FLOW}/prioritylevelconfigurations", level)
    await ask("POST", f"{FLOW}/flowschemas", schema)
    end = asyncio.Event()

    async def take_the_seat() -> None:
        while not end.is_set():
            with contextlib.suppress(*ERRORS):
                await stage.admin.hold(PODS, fleet.user, end)
            await asyncio.sleep(0.02)

    taking = asyncio.create_task(take_the_seat())
    try:
        yield
    finally:
        end.set()
        await taking
        await ask("DELETE", f"{FLOW}/flowschemas/{LEVEL}")
        await ask("DELETE", f"{FLOW}/prioritylevelconfigurations/{LEVEL}")


# ---- the network ----


@kind("network-reset", 0, 0)
async def _reset(_stage: Stage, fleet: Fleet, _blow: Blow) -> AsyncIterator[None]:
    fleet.link.reset()
    yield


@kind("network-black-hole", 3, 20)
async def _black_hole(_stage: Stage, fleet: Fleet, _blow: Blow) -> AsyncIterator[None]:
    with fleet.link.dark():
        yield


@kind("network-slow", 5, 15)
async def _slow(_stage: Stage, fleet: Fleet, blow: Blow) -> AsyncIterator[None]:
    """Delay each piece by 50 to 800 ms."""
    fleet.link.delay_s = 0.05 + 0.75 * blow.share
    try:
        yield
    finally:
        fleet.link.delay_s = 0


@kind("network-narrow", 5, 15)
async def _narrow(_stage: Stage, fleet: Fleet, _blow: Blow) -> AsyncIterator[None]:
    """Give the link half of the bandwidth that it has used in the last second."""
    before = fleet.link.passed
    await asyncio.sleep(1)
    fleet.link.bytes_per_s = max(RATE_LEAST, HALF * (fleet.link.passed - before))
    try:
        yield
    finally:
        fleet.link.widen()


@kind("network-cut", 2, 6)
async def _cut(_stage: Stage, fleet: Fleet, blow: Blow) -> AsyncIterator[None]:
    """End each connection in the middle of its next piece that is long enough."""
    fleet.link.cut_after = 1 + int(blow.share * 60)
    try:
        yield
    finally:
        fleet.link.cut_after = 0


# ---- fleet and its machine ----


@kind("fleet-stopped", 2, 2)
async def _stopped(_stage: Stage, fleet: Fleet, _blow: Blow) -> AsyncIterator[None]:
    process = psutil.Process(fleet.pid)
    process.suspend()
    try:
        yield
    finally:
        process.resume()


@kind("fleet-killed", 0, 5)
async def _fleet_killed(stage: Stage, fleet: Fleet, _blow: Blow) -> AsyncIterator[None]:
    fleet.kill()
    try:
        yield
    finally:
        await stage.adopt(fleet)
        await fleet.until_ready()


@kind("clock-steps", 5, 10)
async def _clock_steps(_stage: Stage, fleet: Fleet, blow: Blow) -> AsyncIterator[None]:
    """Set the wall clock forward or back by up to five minutes, and right again."""
    fleet.step_clock(600 * (blow.share - 0.5))
    try:
        yield
    finally:
        fleet.step_clock(0)


@kind(DISK_FULL, 5, 10)
async def _disk_full(stage: Stage, _fleet: Fleet, _blow: Blow) -> AsyncIterator[None]:
    assert stage.run_disk is not None
    stage.run_disk.fill()
    try:
        yield
    finally:
        stage.run_disk.empty()


@kind("descriptors-short", 5, 10)
async def _descriptors_short(_stage: Stage, fleet: Fleet, _blow: Blow) -> AsyncIterator[None]:
    """Let the process open half of the files that it has, and lose its connections."""
    process = psutil.Process(fleet.pid)
    soft, hard = process.rlimit(resource.RLIMIT_NOFILE)
    process.rlimit(resource.RLIMIT_NOFILE, (process.num_fds() // 2 + DESCRIPTORS_LEFT, hard))
    fleet.link.reset()
    try:
        yield
    finally:
        process.rlimit(resource.RLIMIT_NOFILE, (soft, hard))


@kind("credentials-rotated", 0, 0)
async def _rotated(stage: Stage, fleet: Fleet, _blow: Blow) -> AsyncIterator[None]:
    await stage.rotate(fleet)
    yield


# ---- others who write to the cluster ----


@kind("node-deleted", 0, 0)
async def _node_deleted(stage: Stage, fleet: Fleet, _blow: Blow) -> AsyncIterator[None]:
    """Delete a Node: its kubelet goes on, and does not register again until it is restarted."""
    name = await stage.a_node(fleet)
    fleet.gone.add(name)
    await stage.admin.change("DELETE", f"{NODES}/{name}")
    yield


@kind("node-relabelled", 5, 10)
async def _relabelled(stage: Stage, fleet: Fleet, _blow: Blow) -> AsyncIterator[None]:
    path = f"{NODES}/{await stage.a_node(fleet)}"
    labels = {"chaos": "yes", "kubernetes.io/hostname": "elsewhere"}
    await stage.admin.change("PATCH", path, {"metadata": {"labels": labels}})
    try:
        yield
    finally:
        back = {"chaos": None, "kubernetes.io/hostname": path.rpartition("/")[2]}
        await stage.admin.change("PATCH", path, {"metadata": {"labels": back}})


@kind("node-tainted", 5, 10)
async def _tainted(stage: Stage, fleet: Fleet, _blow: Blow) -> AsyncIterator[None]:
    """Taint a Node, so that its pods are evicted."""
    path = f"{NODES}/{await stage.a_node(fleet)}"
    taint = {"key": "chaos", "effect": "NoExecute"}
    await stage.admin.change("PATCH", path, {"spec": {"taints": [taint]}})
    try:
        yield
    finally:
        await stage.admin.change("PATCH", path, {"spec": {"taints": None}})
