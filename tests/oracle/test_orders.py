"""Which order of requests about different objects is compared, and how many each node sends."""

import dataclasses
import re
from collections.abc import Callable

import pytest

from oracle.built_traces import BEGIN_S, Log
from oracle.exchange import Trace
from oracle.left_out import Ledger
from oracle.normalisation import Json
from oracle.oracle_limits import LIMITS
from oracle.orders import (
    NODE_ORDERS,
    POD_ORDERS,
    SCENE_ORDERS,
    Order,
    late,
    misordered,
    pod_moments,
)
from oracle.totals import biases, totals
from oracle.value_comparison import Comparison

[LAG_S] = LIMITS["event_lag_s"]
[SHARE], [LEAST] = LIMITS["bias"], LIMITS["bias_min"]


def event(log: Log, reason: str, field: str = "spec.containers{c}") -> Log:
    about = {"kind": "Pod", "name": "web", "fieldPath": field}
    log.ask("create", "events", "", {"involvedObject": about, "reason": reason}, code=201)
    return log


def token(log: Log) -> None:
    spec = {"boundObjectRef": {"name": "web"}}
    log.ask("create", "serviceaccounts/token", "default", {"spec": spec}, code=201)


def container(state: str, restarts: int = 0, reason: str = "x") -> Json:
    made = {"name": "c", "restartCount": restarts, "state": {state: {"reason": reason}}}
    return {"phase": "Running", "containerStatuses": [made]}


STEPS: dict[str, Callable[[Log], object]] = {
    "first-status": lambda log: log.reports("web", {"phase": "Pending"}),
    "watch-certificates": lambda log: log.ask(
        "watch", "configmaps", "?fieldSelector=metadata.name=kube-root-ca.crt"
    ),
    "any-token": token,
    "token": token,
    "first-start": lambda log: event(log, "Pulled"),
    "started": lambda log: event(log, "Started"),
    "runs": lambda log: log.reports("web", container("running")),
    "ended": lambda log: log.reports("web", container("terminated")),
    "killing": lambda log: [event(log, reason) for reason in ("Started", "Killing")],
    "restarted": lambda log: log.reports("web", container("running", 1)),
    "any-killing": lambda log: event(log, "Killing"),
    "delete": lambda log: log.ask("delete", "pods", "web"),
    "back-off": lambda log: event(log, "BackOff"),
    "waits": lambda log: log.reports("web", container("waiting", reason="CrashLoopBackOff")),
    "told": lambda log: event(log, "OutOfcpu", ""),
    "failed": lambda log: log.reports("web", {"phase": "Failed", "reason": "OutOfcpu"}),
    "node": lambda log: log.ask("create", "nodes", log.node, namespace="", code=201),
    "lease": lambda log: log.ask("create", "leases", log.node, namespace="kube-node-lease"),
    "csinode": lambda log: log.ask("create", "csinodes", log.node, namespace=""),
    "report": lambda log: log.ask(
        "patch", "nodes/status", log.node, {}, {"phase": ""}, namespace=""
    ),
}
ORDERS = (*POD_ORDERS, *SCENE_ORDERS, *NODE_ORDERS)


def played(side: str, *steps: str) -> Trace:
    log = Log(side)
    for step in steps:
        STEPS[step](log)
    return log.trace()


def timed(side: str, first: str, then: str, late_s: float) -> Trace:
    """Play two steps, of which the first one comes so much later."""
    log = Log(side, step_s=0)
    for at_s, step in sorted([(late_s, first), (0.0, then)]):
        log.at_s = BEGIN_S + 5 + at_s
        STEPS[step](log)
    return log.trace()


@pytest.mark.parametrize("order", ORDERS, ids=lambda each: f"{each.first}-{each.then}")
def test_a_pair_that_comes_the_other_way_round_is_found(order: Order) -> None:
    """An Event may be late, and a status; what follows from another request's answer may not."""

    def found(real_s: float, fleet_s: float) -> list[str]:
        traces = (
            timed(side, order.first, order.then, late_s)
            for side, late_s in (("real", real_s), ("fleet", fleet_s))
        )
        named = re.compile(rf"(scene|node): order.*: {order.first}( .+)? before {order.then} ?.*")
        return [
            line for line in Comparison(*traces).run(["node", "scene"]).lines if named.match(line)
        ]

    assert not found(-1, -0.2)
    [line] = found(-1, LAG_S + 0.1)
    assert line.endswith("only fleet differs")
    [line] = found(LAG_S + 0.1, -1)
    assert line.endswith("only real differs")
    assert bool(found(-1, LAG_S - 0.1)) is (order.lag_s == 0)
    assert not found(LAG_S + 0.1, LAG_S + 0.1)
    assert order.source


def test_the_order_of_a_mirror_and_its_pod_is_chance() -> None:
    """A static pod starts whether its mirror is there or not, and its mirror goes by itself."""
    real, fleet = (
        [
            dataclasses.replace(each, name="web-NODE") if each.name == "web" else each
            for each in timed(side, first, then, 1).exchanges
        ]
        for side, first, then in (
            ("real", "first-status", "delete"),
            ("fleet", "delete", "first-status"),
        )
    )
    assert pod_moments(real) == pod_moments(fleet) == {}


def test_each_token_of_a_pod_comes_before_its_containers() -> None:
    def asked(side: str, *audiences: str | None) -> Trace:
        """Ask for tokens, or start a container."""
        log = Log(side)
        for audience in audiences:
            spec = {"boundObjectRef": {"name": "web"}, "audiences": [audience]}
            if audience is None:
                event(log, "Pulled")
            else:
                log.ask("create", "serviceaccounts/token", "default", {"spec": spec}, code=201)
        return log.trace()

    real = asked("real", "", "vault", None)
    assert not orders(real, asked("fleet", "vault", "", None))
    assert orders(real, asked("fleet", "", None, "vault"))
    assert orders(real, asked("fleet", "vault", None, ""))


def orders(real: Trace, fleet: Trace) -> list[str]:
    return [*misordered("scene", real.exchanges, fleet.exchanges)]


def test_a_run_says_how_late_events_were() -> None:
    real, fleet = (
        timed(side, "started", "runs", late_s) for side, late_s in (("real", -1), ("fleet", 0.2))
    )
    lines = late(real.exchanges, fleet.exchanges, ["scene"])
    [line] = [each for each in lines if "started before runs" in each]
    assert line.endswith("late by real 0 of 1 (most 0.00 s), by fleet 1 of 1 (most 0.20 s)")


def renewing(side: str, extra: int) -> Trace:
    """Renew leases as often as makes a thousand requests, and some more."""
    log = Log(side)
    for at in range(1000 + extra):
        log.ask("update", "leases", f"node-{at % 1000}")
    return log.trace()


def reading(side: str, idle: int) -> Trace:
    """Read a thousand pods and patch them, and read some of them once more."""
    log = Log(side)
    for at in range(1000):
        log.ask("get", "pods", f"pod-{at}")
        log.ask("patch", "pods/status", f"pod-{at}", {"status": {"phase": "Running"}})
    for at in range(idle):
        log.ask("get", "pods", f"pod-{at}")
    return log.trace()


def test_a_bias_to_one_side_is_found_that_each_pod_allows() -> None:
    most = int(SHARE * 1000)
    real, fleet = renewing("real", 0), renewing("fleet", most)
    assert biases(real, fleet) == []
    assert biases(real, renewing("fleet", most + 2)) == [
        "requests: update leases: fleet sends more"
    ]
    assert biases(renewing("real", most + 2), fleet) == []
    assert biases(renewing("real", most + 2), real) == ["requests: update leases: real sends more"]


def test_reads_that_no_patch_follows_may_differ_by_chance() -> None:
    """80 and 46 of them are 3.03 deviations apart, and 1.7 % of the run."""
    assert not biases(reading("real", 80), reading("fleet", 48))
    [line] = biases(reading("real", 80), reading("fleet", 46))
    assert line == "requests: get pods that no patch follows: real sends more"


def test_a_run_of_few_requests_has_a_limit_of_its_own() -> None:
    def few(side: str, count: int) -> Trace:
        log = Log(side)
        for at in range(count):
            log.ask("update", "leases", f"node-{at}")
        return log.trace()

    assert not biases(few("real", 20), few("fleet", 20 + int(LEAST)))
    assert biases(few("real", 20), few("fleet", 21 + int(LEAST)))


def test_one_report_and_one_renewal_more_of_a_node_that_is_gone_are_five_reads() -> None:
    def reading(side: str, count: int) -> Trace:
        log = Log(side)
        for _ in range(count):
            log.ask("get", "nodes", log.node, code=404)
        return log.trace()

    [try_reads] = LIMITS["reads_of_a_gone_node"]
    most = int(LEAST + try_reads)
    assert not biases(reading("real", 21 + most), reading("fleet", 21))
    assert biases(reading("real", 22 + most), reading("fleet", 21))


def test_looks_at_a_fresh_node_have_a_limit_of_their_own() -> None:
    def telling(side: str, count: int, reason: str) -> Trace:
        log = Log(side)
        for at in range(count):
            log.ask("create", "events", f"event-{at}", {"reason": reason})
        return log.trace()

    for reason, found in (("NodeHasNoDiskPressure", 0), ("NodeReady", 1)):
        more = telling("real", int(LEAST) + 1, reason)
        assert len(biases(more, telling("fleet", 0, reason))) == found


def test_what_may_wait_for_an_api_server_is_no_bias() -> None:
    real, fleet = renewing("real", 0), renewing("fleet", 50)
    all_s = [(fleet.exchanges[0].at_s, fleet.exchanges[-1].at_s)]
    out = [trace._replace(outages_s=all_s) for trace in (real, fleet)]
    assert biases(real, fleet)
    assert not biases(*out)


def test_totals_name_each_kind_of_the_run_and_of_each_scene() -> None:
    real, fleet = (played(side, "first-status", "token") for side in ("real", "fleet"))
    more = played("fleet", "first-status", "token", "delete")
    assert "requests: real 3, fleet 3 (+0.0 % more of real)" in totals(real, fleet, ["scene"])
    found = totals(real, more, ["scene"])
    assert "requests: delete pods: real 0, fleet 1" in found
    assert any(each.startswith("requests of scene") and "delete pods 0/1" in each for each in found)


def test_a_read_of_which_the_patch_is_left_out_is_not_counted() -> None:
    log = Log("real")
    log.reports("web", {"phase": "Failed"}, told={"resources": None})
    ledger = Ledger("real")
    trace = log.trace(ledger)
    assert ledger.totals.total() == 1
    assert totals(trace, trace, [])[0].startswith("requests: real 0, fleet 0")
