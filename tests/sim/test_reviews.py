"""Reviews of tokens and accesses, in virtual time: how often they are sent, and when."""

import asyncio
import itertools

import pytest
from world.pod_world import model_of
from world.server_world import DirectCalls
from world.sim_faults import ApiServerAnswers, ConnectionsRefused, Fault
from world.simulation import Simulation

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.effects import NodeId
from fleet.server.auth import TOKEN_REVIEWS, AccessControl, token_review

pytest_plugins = ("sim_encodings",)

NODE = NodeId(0)
STEP_S = 0.01


def reviews(sim: Simulation, count: int = 1, fault: Fault | None = None) -> tuple[int, list[int]]:
    """Send reviews one after the other; return the last code, and when each attempt left in ms."""

    async def sleep(seconds: float) -> None:
        until_s = sim.now_s + seconds
        while sim.now_s < until_s:  # noqa: ASYNC110 - of virtual time
            await asyncio.sleep(0)

    async def ask() -> int:
        access, code = AccessControl(sim.reactor, DirectCalls(sim), sleep), 0
        for _ in range(count):
            code = (await access._send(NODE, TOKEN_REVIEWS, token_review("secret"))).code
        return code

    async def play() -> int:
        asked = asyncio.ensure_future(ask())
        while not asked.done():
            await asyncio.sleep(0)
            sim.run_for(STEP_S)
        return await asked

    sim.run_for(60)
    if fault is not None:
        sim.inject(fault, seconds=600)
    began_ns = sim.clock.now_ns()
    code = asyncio.run(play())
    sent = sim.calls(verb="POST", path="tokenreviews", since_s=began_ns / NS_PER_S)
    return code, [(each.t_ns - began_ns) // NS_PER_MS for each in sent]


@pytest.mark.parametrize("code", [429, 500, 504])
def test_a_review_that_fails_for_now_is_sent_five_times(code: int) -> None:
    found, times = reviews(Simulation(seed=1), fault=ApiServerAnswers(code))
    assert found == code
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert len(gaps) == 4
    for gap, least in zip(gaps, (500, 750, 1125, 1687), strict=True):
        assert least <= gap <= least * 1.2 + 100


@pytest.mark.parametrize("code", [401, 403, 422, 503])
def test_a_review_that_fails_for_good_is_sent_once(code: int) -> None:
    found, times = reviews(Simulation(seed=1), fault=ApiServerAnswers(code))
    assert (found, len(times)) == (code, 1)


def test_client_go_tries_again_by_itself_within_each_attempt() -> None:
    found, times = reviews(Simulation(seed=1), fault=ApiServerAnswers(503, retry_after_s=2))
    assert (found, len(times)) == (503, 5 * 11)
    assert times[10] >= 20_000


def test_a_refused_connection_fails_at_once() -> None:
    code, times = reviews(Simulation(seed=1), fault=ConnectionsRefused())
    assert (code, len(times)) == (0, 1)


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
def test_reviews_go_by_the_limits_of_the_main_client(*, light: bool) -> None:
    kubelet = {"kubeAPIQPS": 2, "kubeAPIBurst": 4}
    sim = Simulation(seed=1, light=light, model=model_of(kubeletConfiguration=kubelet))
    _, times = reviews(sim, 8, ApiServerAnswers(401))
    assert len(times) == 8
    assert times[3] < 300
    assert (times[7] - times[3] >= 1900) is not light
