"""What fleet adds to the pages of a Locust master: charts, and faults to ask for and to heal.

    page --form--> FaultDesk --fleet-fault--> each fleet worker that takes it
    page <-JSON--- FaultDesk <-fleet-fault-told-- ...

A worker says what is on with each report, and with each answer. Of a run of several processes the
first one answers, and hands on to the others. Names and colours of charts are the report's. This
module never imports Locust, and so patches nothing; what it waits for is gevent's.
"""

import functools
import itertools
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flask import Blueprint, Response, request
from gevent.event import Event

import fleet.report
from fleet.dashboard.locust_dispatcher import shard_of
from fleet.dashboard.locust_protocol import FAULT_ORDER, FAULT_TOLD
from fleet.faults import fault
from fleet.profile.schema import key_of
from fleet.report.appearance import CHARTS, variable, variables

ANSWER_S_MAX = 40.0  # somewhat more than a fleet of several processes waits for those
FIELD_CHARACTERS_MAX = 4_096
SCRIPT = Path(__file__).with_name("faults.js")

Json = dict[str, Any]


class Told(NamedTuple):
    """What a worker said last of the faults of its run, and when."""

    on: list[Json]
    at_s: float


class Asked(NamedTuple):
    """An order that is on its way."""

    missing: set[str]
    answers: dict[str, Json]
    is_complete: Event


class FaultDesk:
    """Hands orders to fleet workers and knows what is on; see the top of this file."""

    def __init__(self, runner: Any) -> None:
        """Take Locust's MasterRunner."""
        self._runner = runner
        self._told: dict[str, Told] = {}
        self.zones: set[str] = set()
        self._asked: dict[int, Asked] = {}
        self._numbers = itertools.count(1)
        runner.register_message(FAULT_TOLD, self.on_told)

    def on_report(self, client_id: str, data: Json) -> None:
        """Learn from a worker's report what is on, and that it takes orders."""
        faults = data.get("fleet", {}).get("faults")
        if faults is not None:
            self._told[client_id] = Told(faults, time.monotonic())
            self.zones.update(data["fleet"].get("zones", ()))

    def on_told(self, msg: Any, **_: object) -> None:
        """Take a worker's answer; one that nobody waits for any more still says what is on."""
        self._told[msg.node_id] = Told(msg.data["on"], time.monotonic())
        asked = self._asked.get(msg.data["number"])
        if asked is not None and msg.node_id in asked.missing:
            asked.missing.discard(msg.node_id)
            asked.answers[msg.node_id] = msg.data["answer"]
            if not asked.missing:
                asked.is_complete.set()

    def takers(self) -> list[str]:
        """Return the workers that take orders, by shard."""
        self._told = {each: told for each, told in self._told.items() if self._is_there(each)}
        return sorted(self._told)

    def _is_there(self, client_id: str) -> bool:
        client = self._runner.clients.get(client_id)
        return client is not None and client.state != "missing"

    def on(self) -> list[Json]:
        """Return the faults that are on in all runs."""
        now_s, found = time.monotonic(), []
        for taker in self.takers():
            on, at_s = self._told[taker]
            for each in on:
                age_s, left_s = now_s - at_s, each["left_s"]
                found.append(
                    {
                        **each,
                        "shard": shard_of(taker),
                        "for_s": each["for_s"] + age_s,
                        "left_s": None if left_s is None else max(0.0, left_s - age_s),
                    }
                )
        return found

    def ask(self, order: Json, shard: str = "") -> tuple[bool, str]:
        """Give an order to all runs, or to one; return whether any did it, and what to show."""
        takers = [each for each in self.takers() if shard in {"", shard_of(each)}]
        if not takers:
            return False, "no connected fleet accepts faults"
        number = next(self._numbers)
        asked = self._asked[number] = Asked(set(takers), {}, Event())
        try:
            for taker in takers:
                self._runner.send_message(FAULT_ORDER, {"number": number, "order": order}, taker)
            asked.is_complete.wait(ANSWER_S_MAX)
        finally:
            del self._asked[number]
        silent = ", ".join(map(shard_of, sorted(asked.missing)))
        answers = [asked.answers[each] for each in sorted(asked.answers)]
        errors = [each["error"].removeprefix("--") for each in answers if "error" in each]
        done = [each["told"].replace("\n", ", ") for each in answers if "told" in each]
        words = [*dict.fromkeys(done or errors)]
        if silent:
            words.append(f"no answer within {ANSWER_S_MAX:.0f} s of {silent}")
        return bool(done), "; ".join(words)


@functools.cache
def form() -> Json:
    """Return what the page makes its form of: the types, and what each takes."""
    return {
        "types": [
            {
                "type": kind.value,
                "words": told.words,
                "takes": [key_of(each) for each in told.takes],
                "needs": [key_of(each) for each in told.needs],
                "isInstant": told.is_instant,
                "hitsNodes": not told.of_control_plane,
            }
            for kind, told in fault.FAULTS.items()
        ],
        "choices": {
            key: [each.value for each in kind]
            for key, kind in {
                "heartbeats": fault.Heartbeat,
                "mode": fault.PartitionMode,
                "component": fault.PlaneComponent,
                "status": fault.ConditionStatus,
            }.items()
        },
    }


def order_of(given: Mapping[str, str]) -> Json:
    """Return the order that a form means; the run reads its fields. Raises ValueError."""
    if strange := sorted(given.keys() - {"type", "for", *fault.FLAT_KEYS}):
        raise ValueError(f"the form has no {', '.join(strange)}")
    filled = {key: value.strip() for key, value in given.items() if value.strip()}
    for key, value in filled.items():
        if len(value) > FIELD_CHARACTERS_MAX:
            raise ValueError(f"{key}: more than {FIELD_CHARACTERS_MAX:,} characters")
    return {"do": "inject", "form": filled}


def add_routes(routes: Blueprint, desk: FaultDesk) -> None:
    """Add what the page asks for, below the blueprint's prefix."""

    @routes.get("/fleet/faults")
    def faults() -> Response:
        zones, takers = sorted(desk.zones), len(desk.takers())
        return _answer({**form(), "on": desk.on(), "takers": takers, "zones": zones})

    @routes.get("/fleet/faults.js")
    def script() -> Response:
        return Response(SCRIPT.read_text(encoding="utf-8"), mimetype="text/javascript")

    @routes.get("/fleet/uplot.js")
    def uplot() -> Response:
        text = (UPLOT / "uPlot.iife.min.js").read_text(encoding="utf-8")
        return Response(text, mimetype="text/javascript")

    @routes.post("/fleet/faults/inject")
    def inject() -> Response:
        try:
            order = order_of(request.form.to_dict())
        except ValueError as error:
            return _result(is_done=False, message=str(error))
        is_done, message = desk.ask(order)
        return _result(is_done=is_done, message=message)

    @routes.post("/fleet/faults/heal")
    def heal() -> Response:
        what, shard = request.form.get("what", ""), request.form.get("shard", "")
        is_done, message = desk.ask({"do": "heal", "what": what}, shard)
        return _result(is_done=is_done, message=message)


def _result(*, is_done: bool, message: str) -> Response:
    found = _answer({"success": is_done, "message": message})
    found.status_code = 200 if is_done else 400
    return found


def _answer(content: Json) -> Response:
    return Response(json.dumps(content), mimetype="application/json")


PAGE = Path(__file__).with_name("dashboard.html")
UPLOT = Path(fleet.report.__file__).parent / "assets/uplot"
CHARTED: tuple[tuple[str, str, Mapping[str, str], tuple[str, ...]], ...] = (
    (
        "latency",
        "ms",
        {"requestP99": "all p99, clients"},
        ("writes p99, server", "reads p99, server"),
    ),
    ("load", "per second", {"requestsPerS": "requests", "errorsPerS": "errors"}, ()),
    ("cpu", "cores", {}, ("API server", "etcd", "scheduler", "controllers")),
    ("inflight", "requests", {}, ("executing", "queued", "rejected/s")),
    ("nodes", "nodes", {"target": "target", "ready": "Ready", "notReady": "NotReady"}, ()),
    ("pods", "pods", {"podsRunning": "Running", "podsFailed": "Failed"}, ()),
    ("starts", "ms", {"podStartP99": "p99 in all"}, ()),
    ("leases", "ms", {"leaseLateP99": "p99"}, ()),
    ("lag", "ms", {"timerLagP99": "p99"}, ()),
)
"""Plot, unit, the label of each figure that a worker or Locust reports, and lines of `newest`."""
MEASURED = (*(f"{name}/{each}" for name, _, _, lines in CHARTED for each in lines), "problem")
"""What the page shows of the figures of the control plane, and why there are none."""


def charts() -> list[dict[str, object]]:
    """Return each chart with its lines: the label and the variable of the colour, by figure."""
    found: list[dict[str, object]] = []
    for name, unit, own, measured in CHARTED:
        chart = CHARTS[name]
        labels = {**{f"{name}/{label}": label for label in measured}, **own}
        lines = {key: [label, variable(chart.lines[label])] for key, label in labels.items()}
        found.append({"title": chart.title, "unit": unit, "lines": lines})
    return found


def page() -> str:
    text = PAGE.read_text(encoding="utf-8")
    for mark, value in (
        ("/*LIGHT*/", variables(dark=False)),
        ("/*DARK*/", variables(dark=True)),
        ("/*UPLOT*/", (UPLOT / "uPlot.min.css").read_text(encoding="utf-8")),
        ("/*CHARTS*/[]", json.dumps(charts())),
    ):
        assert mark in text, mark
        text = text.replace(mark, value)
    return text
