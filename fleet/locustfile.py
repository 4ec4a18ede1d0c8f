"""The locustfile that makes an unmodified `locust --master` show a fleet.

Loaded by the master and by plain Locust workers; the only file of fleet that imports Locust, and
never imported by fleet itself. A user of class VirtualNode is one virtual node; it is run by a
fleet worker, never here.

Source: locust/dispatch.py, UsersDispatcher (the interface that FleetDispatcher has);
locust/runners.py, MasterRunner.start; locust/web.py, WebUI.
"""

import csv
import functools
import io
import json
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
from flask import Response, request
from locust import User, constant, events, runners, task
from locust.dispatch import UsersDispatcher
from locust.env import Environment
from locust.runners import MasterRunner, WorkerNode

NODE = "VirtualNode"
FLEET_WORKER = "fleet-"
ADOPT_AFTER_S = 4.0  # all workers have reported by then
ADOPT_RATE = 100
HISTORY_MAX = 1800  # samples of 2 s: an hour
PORTS_WAIT_S = 0.05
PAGE = Path(__file__).with_name("dashboard.html")

log = logging.getLogger("fleet")
runners.HEARTBEAT_LIVENESS = 15  # a long pause of a worker must not look like its death

Layout = dict[str, dict[str, int]]


class VirtualNode(User):
    """One virtual node. The master needs the name; a plain worker that gets one only waits."""

    host = "kube-apiserver"  # or the form asks for one; the workers know theirs
    wait_time = constant(3600)

    @task
    def idle(self) -> None:
        """Do nothing: fleet workers do what there is to do."""


def is_fleet(worker_id: str) -> bool:
    """Return whether a worker hosts virtual nodes."""
    return worker_id.startswith(FLEET_WORKER)


def shard_of(worker_id: str) -> str:
    """Return what stays of a worker's id when it registers again."""
    return worker_id.partition("_")[0]


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Log what a method raises: an exception would kill the master's listener, and with it all."""

    @functools.wraps(method)
    def call(*args: object, **named: object) -> object:
        try:
            return method(*args, **named)
        except Exception:
            log.exception("fleet's dispatcher failed in %s", method.__name__)
            return None

    return call


class FleetDispatcher(UsersDispatcher):
    """Deals nodes to fleet workers and every other class to plain workers, nodes first.

    What a worker has it keeps: growth goes to the emptiest, shrinking takes from the fullest, a
    join moves nothing. The share of a fleet worker that is gone is held for its shard's return, or
    moved to the others with --fleet-shard-loss=move.
    """

    nodes_wanted: Callable[[], int] = staticmethod(lambda: 0)
    moves_lost: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(self, worker_nodes: list[WorkerNode], user_classes: list[type[User]]) -> None:
        self._classes = list(user_classes)
        self._layout: Layout = {}
        self._held: dict[str, int] = {}  # shard: nodes of a worker that is gone
        self._goal: dict[str, int] = {}
        self._step = 1
        self._pause_s = 1.0
        self._is_busy = False
        self._is_dirty = True
        self._steps: Iterator[Layout] = iter(())
        for worker in worker_nodes:
            self._enter(worker)

    @property
    def dispatch_in_progress(self) -> bool:
        """Return whether a ramp is going on."""
        return self._is_busy

    def get_current_user_count(self) -> int:
        """Return how many users are dealt out."""
        return sum(self._have(cls.__name__) for cls in self._classes)

    def new_dispatch(
        self,
        target_user_count: int,
        spawn_rate: float,
        user_classes: list[type[User]] | None = None,
    ) -> None:
        """Aim at a number of users: first nodes, the rest API clients by weight."""
        others = [cls for cls in (user_classes or self._classes) if cls.__name__ != NODE]
        others = others if self._pool(is_node=False) else []
        wanted = self.nodes_wanted() if others else target_user_count
        nodes = min(wanted, target_user_count) if self._pool(is_node=True) or self._held else 0
        self._goal = dict.fromkeys((cls.__name__ for cls in self._classes), 0)
        if NODE in self._goal:
            self._goal[NODE] = nodes
        self._goal.update(by_weight(target_user_count - nodes, others))
        self._step = max(1, math.floor(spawn_rate))
        self._pause_s = self._step / spawn_rate
        self._steps = self._ramp()

    def __next__(self) -> Layout:
        """Return what each worker is to run next."""
        return next(self._steps)

    @guarded
    def add_worker(self, worker_node: WorkerNode) -> None:
        """Take a worker in; one that registers again replaces its older entry."""
        self._enter(worker_node)
        self._is_dirty = True

    @guarded
    def remove_worker(self, worker_node: WorkerNode) -> None:
        """Let a worker go."""
        had = self._layout.pop(worker_node.id, None) or {}
        if is_fleet(worker_node.id) and had.get(NODE) and not self.moves_lost():
            self._held[shard_of(worker_node.id)] = had[NODE]
        self._is_dirty = True

    def _enter(self, worker: WorkerNode) -> None:
        counts = dict.fromkeys((cls.__name__ for cls in self._classes), 0)
        shard = shard_of(worker.id)
        for older in [each for each in self._layout if each != worker.id]:
            if is_fleet(older) and shard_of(older) == shard:
                counts = self._layout.pop(older)
        held = self._held.pop(shard, 0)
        if NODE in counts:
            alive = worker.user_classes_count.get(NODE, 0)
            counts[NODE] = max(counts[NODE], held, alive)
        self._layout[worker.id] = counts

    def _pool(self, *, is_node: bool) -> list[str]:
        return sorted(each for each in self._layout if is_fleet(each) == is_node)

    def _have(self, name: str) -> int:
        held = sum(self._held.values()) if name == NODE else 0
        return held + sum(counts.get(name, 0) for counts in self._layout.values())

    def _ramp(self) -> Iterator[Layout]:
        self._is_busy = True
        try:
            if self._is_dirty or self._is_there():
                self._is_dirty = False
                yield self._copy()
            while not self._is_there() and self._layout:
                began = time.perf_counter()
                if not self._move_a_step():
                    break
                yield self._copy()
                if not self._is_there():
                    gevent.sleep(max(0.0, self._pause_s - (time.perf_counter() - began)))
        finally:
            self._is_busy = False

    def _is_there(self) -> bool:
        return all(self._have(name) == count for name, count in self._goal.items())

    def _move_a_step(self) -> bool:
        """Deal or take back as many users as one step has; return whether any was moved."""
        left = self._step
        for name in sorted(self._goal, key=lambda each: each != NODE):
            pool = self._pool(is_node=name == NODE)
            while pool and left and self._have(name) != self._goal[name]:
                if self._have(name) < self._goal[name]:
                    worker = min(pool, key=lambda each: (self._layout[each].get(name, 0), each))
                    more = 1
                else:
                    worker = max(pool, key=lambda each: (self._layout[each].get(name, 0), each))
                    more = -1
                    if not self._layout[worker].get(name, 0):
                        break  # what is left is held for a worker that is gone
                self._layout[worker][name] = self._layout[worker].get(name, 0) + more
                left -= 1
        return left < self._step

    def _copy(self) -> Layout:
        names = [cls.__name__ for cls in self._classes]  # every worker must list every class
        return {
            worker: {name: counts.get(name, 0) for name in names}
            for worker, counts in self._layout.items()
        }


def by_weight(count: int, classes: list[type[User]]) -> dict[str, int]:
    """Deal `count` users to classes by their weights; `fixed_count` comes first."""
    dealt = {cls.__name__: min(cls.fixed_count, count) for cls in classes}
    count = max(0, count - sum(dealt.values()))
    free = [cls for cls in classes if not cls.fixed_count]
    weight = sum(cls.weight for cls in free) or 1
    for cls in free:
        dealt[cls.__name__] = int(count * cls.weight / weight)
    spare = count - sum(dealt[cls.__name__] for cls in free)
    for cls in free[:spare]:
        dealt[cls.__name__] += 1
    return dealt


class Fleet:
    """What the fleet workers report of themselves, and how that went over time."""

    def __init__(self, environment: Environment, runner: MasterRunner) -> None:
        self.environment = environment
        self.runner = runner
        self.reports: dict[str, dict[str, Any]] = {}
        self.history: list[dict[str, Any]] = []
        self._adopting = False

    def on_report(self, client_id: str, data: dict[str, Any]) -> None:
        """Keep the fleet's part of a report; adopt nodes that a former master left running."""
        if "fleet" not in data or client_id not in self.runner.clients:
            return
        self.reports[client_id] = data["fleet"]
        is_idle = self.runner.state in (runners.STATE_INIT, runners.STATE_STOPPED)
        if is_idle and data["user_count"] and not self._adopting and self.runner.clients.running:
            self._adopting = True
            gevent.spawn_later(ADOPT_AFTER_S, self._adopt)

    @guarded
    def _adopt(self) -> None:
        self._adopting = False
        nodes = sum(worker.user_count for worker in self.runner.clients.values())
        if self.runner.state in (runners.STATE_INIT, runners.STATE_STOPPED) and nodes:
            log.info("adopting %d running nodes", nodes)
            options = self.environment.parsed_options
            assert options is not None
            options.fleet_nodes = nodes
            self.runner.start(nodes, ADOPT_RATE)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row a worker, by shard."""
        known = [each for each in self.reports if each in self.runner.clients]
        rows = [
            {"shard": shard_of(each), **self.reports[each]} for each in sorted(known, key=shard_of)
        ]
        for row in rows:  # the web UI shows no booleans
            row["valid"] = "yes" if row.get("valid", True) else "no"
        return rows

    def total(self) -> dict[str, Any]:
        """Return the sum of all workers; of delays the worst."""
        rows = self.rows()
        total: dict[str, Any] = {"valid": all(row["valid"] == "yes" for row in rows)}
        for _, key, adds in COLUMNS:
            values = [row[key] for row in rows if row.get(key) is not None]
            if key != "valid":
                total[key] = (sum(values) if adds else max(values)) if values else None
        return total

    def sample(self) -> None:
        """Add to the history, for as long as the master lives."""
        while True:
            gevent.sleep(2)
            self.history.append({"at": round(time.time(), 1), **self.total()})
            del self.history[:-HISTORY_MAX]


COLUMNS = (  # title, key, whether the sum of all workers means something
    ("Target", "target", True),
    ("Registered", "registered", True),
    ("Ready", "ready", True),
    ("NotReady", "notReady", True),
    ("Pods running", "podsRunning", True),
    ("Lease late p99 [ms]", "leaseLateP99", False),
    ("Pod start p99 [ms]", "podStartP99", False),
    ("Timer lag p99 [ms]", "timerLagP99", False),
    ("Open watches", "watches", True),
    ("Valid", "valid", False),
)


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_arguments(parser: Any) -> None:
    """Add what a fleet needs to the command line and to the form."""
    parser.add_argument(
        "--fleet-nodes",
        type=int,
        default=0,
        env_var="FLEET_NODES",
        help="How many of the users are virtual nodes, if there are API users beside them",
    )
    parser.add_argument(
        "--fleet-shard-loss",
        choices=("hold", "move"),
        default="hold",
        env_var="FLEET_SHARD_LOSS",
        include_in_web_ui=False,
        help="Hold the nodes of a lost fleet worker for its return, or move them",
    )


@events.init.add_listener  # type: ignore[untyped-decorator]
def begin(environment: Environment, runner: Any, web_ui: Any = None, **_: object) -> None:
    """Set the master up; there is nothing to do on a plain worker."""
    if not isinstance(runner, MasterRunner):
        return
    options = environment.parsed_options
    assert options is not None
    environment.dispatcher_class = FleetDispatcher
    FleetDispatcher.nodes_wanted = staticmethod(lambda: options.fleet_nodes)
    FleetDispatcher.moves_lost = staticmethod(lambda: options.fleet_shard_loss == "move")
    if options.fleet_shard_loss == "move":  # or the master deals nothing out when one is missing
        options.enable_rebalancing = True
    fleet = Fleet(environment, runner)
    environment.events.worker_report.add_listener(fleet.on_report)  # type: ignore[no-untyped-call]
    gevent.spawn(fleet.sample)
    gevent.spawn(tell_ports, runner, web_ui)
    if web_ui is not None:
        extend(web_ui, fleet)


def tell_ports(runner: MasterRunner, web_ui: Any) -> None:
    """Print one JSON line with the ports that were found, for whoever started this master."""
    while web_ui is not None and (web_ui.server is None or not web_ui.server.started):
        gevent.sleep(PORTS_WAIT_S)
    web_port = web_ui.server.server_port if web_ui is not None else None
    sys.stdout.write(json.dumps({"fleet": {"master": runner.server.port, "web": web_port}}) + "\n")
    sys.stdout.flush()


def extend(web_ui: Any, fleet: Fleet) -> None:
    """Add the Fleet tab, its CSV, a page with charts and a metrics route."""
    structure = [{"key": "shard", "title": "Shard"}]
    structure += [{"key": key, "title": title} for title, key, _ in COLUMNS]
    web_ui.template_args.update(
        extended_tabs=[{"title": "Fleet", "key": "fleet"}],
        extended_tables=[{"key": "fleet", "structure": structure}],
        extended_csv_files=[{"href": "./fleet/nodes.csv", "title": "Download fleet CSV"}],
    )
    app = web_ui.app

    @app.after_request  # type: ignore[untyped-decorator]
    def add_rows(response: Response) -> Response:
        if request.path.endswith("/stats/requests") and response.is_json:
            added = {"extended_stats": [{"key": "fleet", "data": fleet.rows()}]}
            shown = {**(response.json or {}), **added}
            # The page stops asking once it was told `stopping`, and would show that for ever:
            # the nodes of a fleet take longer to go than the 2 s between its questions.
            if shown.get("state") == runners.STATE_STOPPING:
                shown["state"] = runners.STATE_RUNNING
            response.set_data(app.json.dumps(shown))
        return response

    @app.route("/fleet/nodes.csv")  # type: ignore[untyped-decorator]
    def nodes_csv() -> Response:
        text = io.StringIO()
        keys = ["shard", *(key for _, key, _ in COLUMNS)]
        writer = csv.DictWriter(text, keys, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(fleet.rows())
        return Response(text.getvalue(), mimetype="text/csv")

    @app.route("/fleet/history")  # type: ignore[untyped-decorator]
    def history() -> Response:
        columns = [("shard", "Shard"), *((key, title) for title, key, _ in COLUMNS)]
        shown = {"columns": columns, "rows": fleet.rows(), "points": fleet.history}
        return Response(json.dumps(shown), mimetype="application/json")

    @app.route("/fleet/metrics")  # type: ignore[untyped-decorator]
    def metrics() -> Response:
        return Response(metrics_text(fleet), mimetype="text/plain; version=0.0.4")

    @app.route("/fleet")  # type: ignore[untyped-decorator]
    def page() -> Response:
        return Response(PAGE.read_text(encoding="utf-8"), mimetype="text/html")


def metrics_text(fleet: Fleet) -> str:
    """Return the master's view in Prometheus' text format."""
    lines = []
    for condition, key in (("Ready", "ready"), ("NotReady", "notReady")):
        lines += [
            f'fleet_nodes{{shard="{row["shard"]}",condition="{condition}"}} {row.get(key) or 0}'
            for row in fleet.rows()
        ]
    for (name, method), entry in fleet.runner.stats.entries.items():
        labels = f'method="{method}",name="{name}"'
        lines.append(f"locust_requests_total{{{labels}}} {entry.num_requests}")
        lines.append(f"locust_failures_total{{{labels}}} {entry.num_failures}")
        lines += [
            f'locust_response_milliseconds{{{labels},quantile="{q}"}} '
            f"{entry.get_response_time_percentile(q)}"
            for q in (0.5, 0.99)
        ]
    return "\n".join(lines) + "\n"
