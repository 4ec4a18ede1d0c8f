"""Faults at the Locust master: whom an order goes to, what their answers make, and the form."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.dashboard import fleet_tab
from fleet.dashboard.fleet_tab import FaultDesk, form, order_of
from fleet.faults.fault import FAULTS, PARAMETERS
from fleet.profile.schema import key_of

ONE, TWO = "fleet-0000_a", "fleet-0001_b"
FAULT = {"number": 1, "fault": "NodeDown", "nodes": 2, "of": 8, "for_s": 3.0, "left_s": 7.0}
INJECT = {"do": "inject", "form": {"type": "NodeDown"}}


class Master:
    """Workers that answer at once, or not at all."""

    def __init__(self, answers: Mapping[str, object]) -> None:
        self.clients = {each: SimpleNamespace(state="running") for each in (ONE, TWO, "plain_c")}
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self._answers = answers
        self._listener: Callable[..., None] | None = None

    def register_message(self, msg_type: str, listener: Callable[..., None]) -> None:
        assert msg_type == "fleet-fault-told"
        self._listener = listener

    def send_message(self, msg_type: str, data: dict[str, Any], client_id: str) -> None:
        assert msg_type == "fleet-fault"
        self.sent.append((client_id, data["order"]))
        if client_id in self._answers:
            assert self._listener is not None
            told = {"number": data["number"], "answer": self._answers[client_id], "on": [FAULT]}
            self._listener(msg=SimpleNamespace(node_id=client_id, data=told), environment=None)


def desk_of(answers: Mapping[str, object]) -> tuple[FaultDesk, Master]:
    """Return a desk that two fleets and a worker of API users have reported to."""
    master = Master(answers)
    desk = FaultDesk(master)
    for each in (ONE, TWO):
        desk.on_report(each, {"fleet": {"target": 4, "faults": [], "zones": ["zone-b"]}})
    desk.on_report("plain_c", {"stats": []})
    return desk, master


def test_an_order_goes_to_every_fleet_and_one_that_has_such_nodes_is_enough() -> None:
    desk, master = desk_of({ONE: {"told": "fault 1: NodeDown"}, TWO: {"error": "hits none"}})
    assert desk.ask(INJECT) == (True, "fault 1: NodeDown")
    assert master.sent == [(ONE, INJECT), (TWO, INJECT)]


def test_the_form_offers_the_zones_of_the_fleets() -> None:
    assert desk_of({})[0].zones == {"zone-b"}


def test_what_no_fleet_can_do_is_told_once() -> None:
    desk, _ = desk_of({ONE: {"error": "hits none"}, TWO: {"error": "hits none"}})
    assert desk.ask(INJECT) == (False, "hits none")


def test_a_fleet_that_says_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_tab, "ANSWER_S_MAX", 0.01)
    desk, _ = desk_of({ONE: {"told": "fault 1: NodeDown"}})
    is_done, message = desk.ask(INJECT)
    assert is_done
    assert message == "fault 1: NodeDown; no answer within 0 s of fleet-0001"


def test_a_fault_is_healed_where_it_is() -> None:
    desk, master = desk_of({TWO: {"told": "fault 1: NodeDown is healed"}})
    heal = {"do": "heal", "what": "1"}
    assert desk.ask(heal, "fleet-0001") == (True, "fault 1: NodeDown is healed")
    assert master.sent == [(TWO, heal)]
    assert desk.ask(heal, "fleet-0009") == (False, "no connected fleet accepts faults")


def test_what_is_on_ages_between_reports_and_goes_with_its_fleet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    desk, master = desk_of({})
    desk.on_report(ONE, {"fleet": {"faults": [FAULT]}})
    now_s += 2.0
    assert desk.on() == [{**FAULT, "shard": "fleet-0000", "for_s": 5.0, "left_s": 5.0}]
    now_s += 20.0
    assert desk.on()[0]["left_s"] == 0.0
    master.clients[ONE].state = "missing"
    assert desk.on() == []
    assert desk.takers() == [TWO]


def test_the_form_offers_every_fault_with_what_it_takes() -> None:
    found = form()
    assert [each["type"] for each in found["types"]] == [each.value for each in FAULTS]
    assert found["choices"]["mode"] == ["Reset", "BlackHole", "Outbound", "Inbound"]
    assert found["choices"]["heartbeats"] == ["Lease", "Status"]
    assert "etcd" in found["choices"]["component"]
    known = set(map(key_of, PARAMETERS))
    assert known.issuperset(name for each in found["types"] for name in each["takes"])


def test_a_form_is_an_order_without_what_is_empty() -> None:
    given = {"type": "Partition", "mode": "Reset", "share": " 25% ", "for": "", "zone": "b"}
    filled = {"type": "Partition", "mode": "Reset", "share": "25%", "zone": "b"}
    assert order_of(given) == {"do": "inject", "form": filled}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"type": "NodeDown", "html_file": "/tmp/a"}, "the form has no html_file"),
        ({"type": "NodeDown", "nodes": "n" * 5_000}, "nodes: more than 4,096 characters"),
    ],
)
def test_a_form_that_the_page_has_not_is_refused(given: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        order_of(given)
