"""What the comparison leaves out stands in a table, has a side and a count, and no more is."""

import dataclasses
import re
from collections.abc import Callable

import pytest
from support.listed_differences import judge, read_listed

from oracle import left_out
from oracle.built_traces import Log
from oracle.exchange import LIMITS_OF_V1, NO_LIMIT_OF_V1, Trace
from oracle.left_out import (
    CGROUP_OF_AN_ENDED_POD,
    EITHER,
    LEASE_IN_AN_OUTAGE,
    LEFT_OUT,
    LIMIT_OF_V1,
    PATCH_OF_A_CGROUP,
    PATCH_OF_AN_ADDRESS,
    PATCH_WITHOUT_LIMIT,
    READ_AT_A_START,
    READ_FOR_A_DRIVER,
    READ_OF_A_GONE_POD,
    READY_OF_A_NODE,
    REPEAT_OF_A_LEASE,
    REPORT,
    REQUEST_OF_FLEET,
    SNAPSHOT,
    UNNOTED,
    WATCH,
    Ledger,
)
from oracle.normalisation import Json
from oracle.oracle_limits import PAGE
from oracle.request_streams import without_refusals
from oracle.value_comparison import Comparison

RUNNING: Json = {"phase": "Running"}
DELETED: Json = {"phase": "Succeeded", "observedGeneration": 2}
NO_ADDRESS: Json = {"podIP": None, "podIPs": None}


def differences(real: Trace, fleet: Trace) -> list[str]:
    return Comparison(real, fleet).run(["node", "scene"]).lines


def test_every_row_is_used_and_says_its_side_count_and_source() -> None:
    named = [value for name, value in vars(left_out).items() if name.isupper()]
    used = {value for value in named if isinstance(value, str) and value in LEFT_OUT}
    assert used == {*LEFT_OUT}
    for row in LEFT_OUT.values():
        assert row.side in ("real", "fleet", EITHER)
        assert row.most > 0
        assert re.search(r"\.go\b|/impersonation$", row.source), row


@pytest.mark.parametrize(
    ("name", "told", "after"),
    [
        (PATCH_WITHOUT_LIMIT, {"resources": {"limits": LIMITS_OF_V1}}, RUNNING),
        (PATCH_OF_A_CGROUP, {"resources": None}, DELETED),
        (PATCH_OF_AN_ADDRESS, NO_ADDRESS, DELETED),
    ],
)
def test_a_patch_is_left_out_on_its_side_as_often_as_its_row_says(
    name: str, told: Json, after: Json
) -> None:
    row = LEFT_OUT[name]
    for side in ("real", "fleet"):
        log, ledger = Log(side), Ledger(side)
        for _ in range(row.most + 1):
            log.reports("web", after, told=told)
        log.reports("other", after, told=told)
        kept = [each.name for each in log.trace(ledger).exchanges if each.verb == "patch"]
        if row.side in (EITHER, side):
            assert kept == ["web"]
            assert ledger.totals[name] == row.most + 1
        else:
            assert len(kept) == row.most + 2


def test_only_the_limit_of_v1_is_left_out_of_a_status_and_only_of_the_real_node() -> None:
    def told(side: str, resources: Json | None) -> Trace:
        """Report a pod as it starts, and then as it runs: a patch has what has changed."""
        log = Log(side)
        log.reports("web", {"phase": "Pending", "resources": {}})
        log.at_s += 5
        status = {**RUNNING, "resources": resources}
        log.reports("web", status, told=status if resources != {} else RUNNING)
        return log.trace()

    real = told("real", {"limits": LIMITS_OF_V1})
    assert real.left_out == {LIMIT_OF_V1: 1}
    assert not differences(real, told("fleet", {}))
    assert differences(real, told("fleet", {"limits": LIMITS_OF_V1}))
    # Beside it there may be others, and those are compared.
    both = {"limits": {**LIMITS_OF_V1, "cpu": "1"}}
    assert not differences(told("real", both), told("fleet", {"limits": {"cpu": "1"}}))
    assert differences(told("real", both), told("fleet", {"limits": {"cpu": "2"}}))
    # On a machine with cgroup v2 an empty object is a value as any other.
    assert differences(told("real", {}), told("fleet", None))
    assert differences(told("real", {}), told("fleet", {"limits": None}))


def test_a_limit_that_is_taken_back_is_left_out_if_it_was_the_one_of_v1() -> None:
    def told(before: Json, limits: Json | None) -> list[str]:
        log = Log("real")
        log.reports("web", {**RUNNING, "resources": {"limits": before}})
        log.at_s += 5
        after = {"phase": "Pending", "resources": {}}
        log.reports("web", after, told={"phase": "Pending", "resources": {"limits": limits}})
        return [path for path in log.trace().exchanges[-1].body if "resources" in path]

    assert told(LIMITS_OF_V1, None) == []
    assert told({"cpu": "1"}, None) == ["status.resources.limits"]
    both = {**LIMITS_OF_V1, "cpu": "1"}
    assert told(both, {"memory": None}) == []
    assert told(both, {"memory": None, "cpu": "2"}) == ["status.resources.limits.cpu"]
    assert told(both, None) == ["status.resources.limits"]
    assert told({"memory": "1Gi"}, {"memory": None}) == ["status.resources.limits.memory"]


def test_a_pod_of_which_one_container_alone_has_a_limit_keeps_it_as_with_cgroup_v2() -> None:
    def told(side: str, limit: str) -> Trace:
        log = Log(side)
        log.reports("web", {"phase": "Pending", "resources": {"limits": {"memory": "64Mi"}}})
        log.at_s += 5
        log.reports(
            "web",
            {**RUNNING, "resources": {"limits": {"memory": limit}}},
            told={**RUNNING, "resources": {"limits": {"memory": limit}}}
            if limit[0] == "9"
            else RUNNING,
        )
        log.at_s += 5
        ended = {"phase": "Pending", "resources": {}}
        log.reports("web", ended, told={"resources": {"limits": None}})
        return log.trace()

    assert not differences(told("real", NO_LIMIT_OF_V1), told("fleet", "64Mi"))
    assert differences(told("real", NO_LIMIT_OF_V1), told("fleet", "32Mi"))


def test_what_is_taken_back_together_with_the_limit_of_v1() -> None:
    def told(side: str, limits: Json | None, after: Json) -> Trace:
        log = Log(side)
        log.reports("web", {"phase": "Pending", "resources": {"limits": {"disk": "1Mi"}}})
        log.at_s += 5
        status = {**RUNNING, "resources": after}
        log.reports("web", status, told={**RUNNING, "resources": {"limits": limits}})
        return log.trace()

    real = told("real", {"disk": None, **LIMITS_OF_V1}, {"limits": LIMITS_OF_V1})
    assert not differences(real, told("fleet", None, {}))
    assert differences(real, told("fleet", {"disk": "2Mi"}, {"limits": {"disk": "2Mi"}}))


def test_the_cgroup_of_a_pod_is_left_out_once_the_pod_has_ended() -> None:
    def told(side: str, phase: str, resources: Json | None) -> Trace:
        log = Log(side)
        log.reports("web", {"phase": phase, "resources": resources})
        return log.trace()

    ended = told("real", "Failed", {}), told("fleet", "Failed", None)
    assert not differences(*ended)
    assert ended[0].left_out == ended[1].left_out == {CGROUP_OF_AN_ENDED_POD: 1}
    assert differences(told("real", "Running", {}), told("fleet", "Running", None))
    assert differences(told("real", "Failed", {"limits": {"cpu": "1"}}), ended[1])


@pytest.mark.parametrize("code", [403, 404])
def test_reads_of_a_pod_that_is_gone_have_a_limit(code: int) -> None:
    def read(side: str, times: int) -> Trace:
        log = Log(side)
        log.reports("web", RUNNING)
        for _ in range(times):
            log.ask("get", "pods", "web", code=code)
        return log.trace()

    most = LEFT_OUT[READ_OF_A_GONE_POD].most
    assert not differences(read("real", 0), read("fleet", most))
    assert differences(read("real", 0), read("fleet", most + 3))


def of_fleet(log: Log) -> None:
    log.ask("create", "selfsubjectreviews", "", namespace="")
    log.events[-1]["userAgent"] = "fleet/1.0 (preflight)"


def report(log: Log) -> None:
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    log.ask("patch", "nodes/status", log.node, {"status": status}, status, namespace="")


def existing(log: Log) -> None:
    """Try to make the Node: whether it is Ready yet differs each time."""
    condition = {"type": "Ready", "status": "False", "message": f"{log.side} at {log.at_s}"}
    status = {"conditions": [condition]}
    log.ask("create", "nodes", log.node, {"status": status}, namespace="", code=409)


def watch(log: Log) -> None:
    log.ask("watch", "services", "?resourceVersion=7&watch=true", namespace="")


@pytest.mark.parametrize(
    ("name", "ask", "first"),
    [
        (REQUEST_OF_FLEET, of_fleet, 0),
        (REPORT, report, 1),
        (REPEAT_OF_A_LEASE, lambda log: lease(log, "get", 404), 1),
        (WATCH, watch, 0),
        (READ_AT_A_START, lambda log: log.ask("get", "nodes", log.node, namespace=""), 0),
    ],
)
def test_a_row_leaves_out_as_many_as_it_says(
    name: str, ask: Callable[[Log], None], first: int
) -> None:
    def asked(side: str, times: int) -> Trace:
        log = Log(side, step_s=0.01)
        log.registers()
        for _ in range(times):
            ask(log)
        return log.trace()

    most = LEFT_OUT[name].most
    assert not differences(asked("real", first), asked("fleet", first + most))
    assert differences(asked("real", first), asked("fleet", first + most + 1))


def test_reads_for_drivers_are_left_out_as_often_as_their_row_says() -> None:
    def asked(side: str, times: int, *, writes: bool = True) -> Trace:
        log = Log(side, step_s=0.01)
        log.registers()
        log.at_s += 20
        for _ in range(times):
            log.ask("get", "nodes", log.node, namespace="")
        if writes:
            log.ask("update", "csinodes", log.node, namespace="")
        return log.trace()

    most = LEFT_OUT[READ_FOR_A_DRIVER].most
    assert not differences(asked("real", most), asked("fleet", 0))
    assert differences(asked("real", most + 1), asked("fleet", 0))
    assert differences(asked("real", most, writes=False), asked("fleet", 0, writes=False))


def test_what_a_node_that_exists_says_of_ready_is_left_out_as_often_as_its_row_says() -> None:
    def tried(side: str, times: int) -> Trace:
        log = Log(side, step_s=0.01)
        for _ in range(times):
            existing(log)
        return log.trace()

    most = LEFT_OUT[READY_OF_A_NODE].most
    assert not differences(tried("real", most), tried("fleet", most))
    assert differences(tried("real", most + 1), tried("fleet", most + 1))


@pytest.mark.parametrize("name", [LEASE_IN_AN_OUTAGE, SNAPSHOT])
def test_what_an_outage_leads_to_is_left_out_as_often_as_its_row_says(name: str) -> None:
    most = LEFT_OUT[name].most
    log = Log("real", step_s=0)
    log.ask("watch", "services", "?sendInitialEvents=true", namespace="", code=503)
    for _ in range(most + 2):
        if name == SNAPSHOT:
            log.ask("watch", "services", "?sendInitialEvents=true", namespace="")
        else:
            lease(log, "get", 200)
    ledger = Ledger("real")
    kept = without_refusals(log.trace().exchanges, [(log.at_s, log.at_s)], ledger)
    whole = [each for each in kept if each.verb == "get" or each.query]
    assert len(whole) == 2
    assert ledger.totals[name] == most


def lease(log: Log, verb: str, code: int) -> None:
    log.ask(verb, "leases", log.node, namespace="kube-node-lease", code=code)


def test_a_feature_that_is_not_listed_is_found() -> None:
    def declared(side: str, *features: str) -> Trace:
        log = Log(side)
        status = {"declaredFeatures": sorted(features)}
        log.ask("create", "nodes", log.node, {"status": status}, namespace="", code=201)
        log.ask("create", "nodes", log.node, {"status": status}, namespace="", code=409)
        return log.trace()

    def found(real: Trace, fleet: Trace) -> list[str]:
        rows = read_listed(PAGE)
        return [line for line in judge(differences(real, fleet), rows) if "unused" not in line]

    web, other = "ExtendWebSocketsToKubelet", "GuaranteedQoSPodCPUResize"
    assert not found(declared("real", web, other), declared("fleet", other))
    assert found(declared("real", web, other), declared("fleet", web))
    assert found(declared("real", web, other), declared("fleet", web, other, "Made"))
    assert found(declared("real", other), declared("fleet", other, web))


def test_a_request_without_headers_is_found_if_others_have_some() -> None:
    def noted(side: str, times: int) -> Trace:
        log = Log(side)
        for _ in range(times + 1):
            log.ask("create", "csinodes", log.node, namespace="")
        first, *rest = log.trace().exchanges
        return log.trace()._replace(
            exchanges=[dataclasses.replace(first, headers={"accept": "x"}), *rest]
        )

    most = LEFT_OUT[UNNOTED].most
    assert not differences(noted("real", most), noted("fleet", most))
    assert differences(noted("real", most + 1), noted("fleet", most + 1))
