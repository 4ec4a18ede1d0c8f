"""What must hold after the trouble is over, each by its name, as the API server alone shows it."""

import asyncio
import datetime as dt
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from e2e.e2e_world import condition

from chaos.admin import (
    CSI_NODES,
    DEPLOYMENTS,
    ERRORS,
    EVENTS,
    LEASES,
    NODES,
    PODS,
    SLICES,
    Json,
)
from chaos.stage import Fleet, Stage

RENEWED_S_MAX = 25.0
"""A Lease is renewed each 10 s, and lasts 40."""
EVENTS_OF_ONE_MAX = 30
"""client-go's spam filter lets 25 about one object through, then one in five minutes."""
POLL_S = 1.0

Question = Callable[[Stage], Awaitable[str]]
"""Returns what is wrong; "" if it holds."""


class Invariant(NamedTuple):
    """A row of the table."""

    question: Question
    within: float
    """In how many of the limits of the run it must come true: 1 is the 60 s of the nodes."""


INVARIANTS: dict[str, Invariant] = {}


def invariant(name: str, within: float = 1.0) -> Callable[[Question], Question]:
    """Add a row to the table."""

    def add(question: Question) -> Question:
        INVARIANTS[name] = Invariant(question, within)
        return question

    return add


def some(wrong: list[str] | set[str]) -> str:
    """Show the first few of what is wrong."""
    ordered = sorted(wrong)
    return f"{len(ordered)}: {', '.join(ordered[:4])}" if ordered else ""


def expected(stage: Stage) -> set[str]:
    return set().union(*(fleet.expected() for fleet in stage.fleets))


def is_over(pod: Json) -> bool:
    return pod["status"].get("phase") in {"Succeeded", "Failed"}


@invariant("every node is Ready")
async def _nodes_ready(stage: Stage) -> str:
    nodes = {each["metadata"]["name"]: each for each in await stage.admin.items(NODES)}
    wrong = {
        name
        for name in expected(stage)
        if name not in nodes or condition(nodes[name], "Ready") != "True"
    }
    return some(wrong | {f"{name} is back" for name in nodes.keys() - expected(stage)})


@invariant("every node renews its Lease")
async def _leases_fresh(stage: Stage) -> str:
    now = dt.datetime.now(dt.UTC)
    leases = await stage.leases()
    wrong = []
    for name in expected(stage):
        text = leases.get(name, "")
        age_s = (now - dt.datetime.fromisoformat(text)).total_seconds() if text else 999.0
        if not -1 < age_s < RENEWED_S_MAX:
            wrong.append(f"{name} {age_s:.0f} s ago")
    return some(wrong)


@invariant("every pod is where it belongs", 3)
async def _pods_placed(stage: Stage) -> str:
    nodes = expected(stage)
    pods = await stage.admin.items(PODS)
    wrong = [
        f"{each['metadata']['name']} on {each['spec'].get('nodeName')} {each['status']['phase']}"
        for each in pods
        if condition(each, "Ready") != "True" or each["spec"].get("nodeName") not in nodes
    ]
    counts = Counter(each["metadata"].get("labels", {}).get("app", "") for each in pods)
    wrong += [
        f"{name} has {counts[name]} of {wanted}"
        for name, wanted in stage.replicas.items()
        if counts[name] != wanted
    ]
    for each in await stage.admin.items(DEPLOYMENTS):
        if each["status"].get("readyReplicas", 0) != stage.replicas[each["metadata"]["name"]]:
            wrong.append(f"{each['metadata']['name']}: {each['status']}")
    return some(wrong)


@invariant("no Lease and no pod is doubled")
async def _nothing_doubled(stage: Stage) -> str:
    wrong = [
        f"Lease {each['metadata']['name']} of {each['spec'].get('holderIdentity')}"
        for each in await stage.admin.items(LEASES)
        if each["spec"].get("holderIdentity") != each["metadata"]["name"]
    ]
    pods = [each for each in await stage.admin.items(PODS) if not is_over(each)]
    addresses = Counter(each["status"].get("podIP", "") for each in pods)
    addresses.pop("", None)
    wrong += [f"pods at {address}" for address, count in addresses.items() if count > 1]
    nodes = Counter(
        each["status"]["addresses"][0]["address"] for each in await stage.admin.items(NODES)
    )
    return some(wrong + [f"nodes at {address}" for address, count in nodes.items() if count > 1])


@invariant("no container was restarted")
async def _nothing_restarted(stage: Stage) -> str:
    return some(
        [
            f"{pod['metadata']['name']} {each['restartCount']} times"
            for pod in await stage.admin.items(PODS)
            for each in pod["status"].get("containerStatuses", ())
            if each["restartCount"]
        ]
    )


@invariant("no object is without an owner", 2)
async def _nothing_unowned(stage: Stage) -> str:
    nodes = set(await stage.admin.names(NODES))
    wrong = [
        f"{path.rpartition('/')[2]} {name}"
        for path in (LEASES, CSI_NODES)
        for name in await stage.admin.names(path)
        if name not in nodes
    ]
    wrong += [
        f"slice of {each['spec'].get('nodeName')}"
        for each in await stage.admin.items(SLICES)
        if each["spec"].get("nodeName") not in nodes
    ]
    return some(wrong)


@invariant("no storm of Events")
async def _no_event_storm(stage: Stage) -> str:
    found: Counter[str] = Counter()
    for each in await stage.admin.items(EVENTS):
        if each.get("source", {}).get("component") == "kubelet":
            about = each["involvedObject"]
            found[f"{about['kind']} {about['name']} {about.get('uid', '')}"] += 1
    return some([f"{what}: {count}" for what, count in found.items() if count > EVENTS_OF_ONE_MAX])


@invariant("no traceback in the log")
async def _no_traceback(stage: Stage) -> str:
    return some([each for fleet in stage.fleets for each in tracebacks(fleet)])


def tracebacks(fleet: Fleet) -> list[str]:
    """Return what the logs of all starts of a fleet have of them."""
    return [
        f"{log.stem}: {each}"
        for log in fleet.logs()
        for each in re.findall("Traceback|bug in fleet", log.read_text())
    ]


async def check(stage: Stage, limit_s: float) -> dict[str, str]:
    """Wait until each invariant holds; return what is wrong, by name, "" where nothing is."""
    begin_s = asyncio.get_running_loop().time()
    found = {}
    for name, (question, within) in INVARIANTS.items():
        while True:
            try:
                wrong = await question(stage)
            except ERRORS as error:
                wrong = repr(error)
            late_s = asyncio.get_running_loop().time() - begin_s
            if not wrong or late_s > within * limit_s:
                break
            await asyncio.sleep(POLL_S)
        found[name] = wrong
    return found
