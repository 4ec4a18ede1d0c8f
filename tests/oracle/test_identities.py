"""Addresses, UIDs and IDs: each is another one for each node, and used in the same places."""

from collections.abc import Callable, Sequence

import pytest

from oracle.built_traces import HOSTS, Log, container_id, uid
from oracle.exchange import Trace
from oracle.normalisation import Json
from oracle.value_comparison import Comparison

ADDRESSES = {"real": "127.77.0", "fleet": "10.244.0"}
SEEDS = {"real": 100, "fleet": 7000}


def status(log: Log, address: int | str = 0, ids: Sequence[int] = (), **more: object) -> Json:
    """Return a status with a host's address, a pod's and the IDs of a container's last runs."""
    host = HOSTS[log.side]
    found: Json = {"phase": "Running", "hostIP": host, "hostIPs": [{"ip": host}], **more}
    if address:
        ip = address if isinstance(address, str) else f"{ADDRESSES[log.side]}.{address}"
        found |= {"podIP": ip, "podIPs": [{"ip": ip}]}
    if ids:
        now, *before = (container_id(SEEDS[log.side] + each) for each in ids)
        made: Json = {"name": "c", "restartCount": len(before), "containerID": now}
        made["state"] = {"running": {}}
        if before:
            made["lastState"] = {"terminated": {"containerID": before[0], "exitCode": 1}}
        found["containerStatuses"] = [made]
    return found


def lines(real: Callable[[Log], object], fleet: Callable[[Log], object]) -> list[str]:
    """Return in what two nodes differ of which each is played by a function."""
    return Comparison(played("real", real), played("fleet", fleet)).run(["node", "scene"]).lines


def played(side: str, act: Callable[[Log], object]) -> Trace:
    log = Log(side)
    log.registers()
    act(log)
    return log.trace()


def words(trace: Trace, path: str) -> list[object]:
    return [each.state[path] for each in trace.exchanges if path in each.state]


def test_the_address_of_a_pod_is_not_that_of_its_node() -> None:
    def own(log: Log) -> None:
        log.reports("web", status(log, 5))

    def of_the_node(log: Log) -> None:
        log.reports("web", status(log, HOSTS[log.side]))

    assert not lines(own, own)
    assert any(
        "status.podIP: real 'IP-1', fleet 'IP-1 of NODE'" in x for x in lines(own, of_the_node)
    )
    # In the host's network that is what it is, on both nodes.
    assert not lines(of_the_node, of_the_node)
    assert words(played("fleet", of_the_node), "status.hostIP") == ["IP-1 of NODE"]


def test_a_container_that_is_restarted_has_another_id() -> None:
    def restarted(log: Log) -> None:
        log.reports("web", status(log, 5, [1]))
        log.reports("web", status(log, 5, [2, 1]))

    def kept(log: Log) -> None:
        log.reports("web", status(log, 5, [1]))
        log.reports("web", status(log, 5, [1, 1]))

    assert not lines(restarted, restarted)
    assert lines(restarted, kept)
    path = "status.containerStatuses[name=c].containerID"
    assert words(played("real", restarted), path) == ["containerd://ID-1", "containerd://ID-2"]


@pytest.mark.parametrize("number", [1, 9])
def test_a_precondition_has_the_uid_of_its_pod(number: int) -> None:
    def deleted(log: Log, last: int = 1) -> None:
        log.reports("web", status(log, 5))
        log.reports("other", status(log, 6))
        log.ask("delete", "pods", "web", {"preconditions": {"uid": uid(last)}})

    found = lines(deleted, lambda log: deleted(log, number))
    assert bool(found) is (number != 1)


def test_an_event_and_a_token_have_the_uid_of_their_pod() -> None:
    def tells(log: Log, of_event: int = 1, of_token: int = 1) -> None:
        log.reports("web", status(log, 5))
        about = {"kind": "Pod", "name": "web", "uid": uid(of_event)}
        log.ask("create", "events", "", {"involvedObject": about, "reason": "Started"}, code=201)
        bound = {"kind": "Pod", "name": "web", "uid": uid(of_token)}
        log.ask("create", "serviceaccounts/token", "default", {"spec": {"boundObjectRef": bound}})

    assert not lines(tells, tells)
    assert lines(tells, lambda log: tells(log, of_event=2))
    assert lines(tells, lambda log: tells(log, of_token=2))


def test_which_of_two_pods_comes_first_is_chance() -> None:
    def first(log: Log) -> None:
        log.reports("web", status(log, 5, [1]))
        log.reports("other", status(log, 6, [2]))

    def second(log: Log) -> None:
        log.reports("other", status(log, 6, [2]))
        log.reports("web", status(log, 5, [1]))

    assert not lines(first, second)


def test_two_pods_share_no_address_while_both_run() -> None:
    def runs(log: Log, address: int = 6, phase: str = "Running") -> None:
        log.reports("web", status(log, 5))
        log.reports("web", status(log, 5, phase=phase))
        log.reports("other", status(log, address))

    assert any("IP-1 of web" in line for line in lines(runs, lambda log: runs(log, 5)))
    # One that has ended gives its address back: who gets it is chance.
    ended = lines(
        lambda log: runs(log, phase="Succeeded"), lambda log: runs(log, 5, phase="Succeeded")
    )
    assert not ended


def test_a_status_that_is_reported_with_the_next_does_not_shift_the_ids() -> None:
    def both(log: Log, *, at_once: bool) -> None:
        of = {name: container_id(SEEDS[log.side] + at) for at, name in enumerate("zab")}
        statuses = [
            {"name": name, "restartCount": 0, "containerID": of[name], "state": {"running": {}}}
            for name in "abz"
        ]
        if not at_once:
            log.reports("web", status(log, 5, containerStatuses=statuses[2:]))
            log.step_s = 0.2
        log.reports("web", status(log, 5, containerStatuses=statuses))

    assert not lines(lambda log: both(log, at_once=True), lambda log: both(log, at_once=False))
