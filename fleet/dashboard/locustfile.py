"""The locustfile that makes an unmodified `locust --master` show a fleet.

Loaded by the master and by plain Locust workers, never imported by fleet itself: importing Locust
patches the whole process. A user of class VirtualNode is one virtual node; it is run by a fleet
worker, never here.

Source: locust/runners.py, MasterRunner; locust/web.py, WebUI.
"""

import csv
import io
import json
import logging
import os
import signal
import sys
import time
from typing import Any

import gevent
from flask import Blueprint, Response, jsonify, request
from locust import User, __version__, argument_parser, constant, events, runners, task
from locust.env import Environment
from locust.runners import MasterRunner
from werkzeug.datastructures import ImmutableMultiDict

from fleet.dashboard import fleet_tab
from fleet.dashboard.door import EVERYWHERE, LOOPBACKS, Door, new_token, token_from
from fleet.dashboard.fleet_tab import FaultDesk, add_routes
from fleet.dashboard.locust_dispatcher import FleetDispatcher, guarded, is_fleet, shard_of
from fleet.errors import UsageError

ADOPT_AFTER_S = 8.0
"""Workers find within so long, one after the other, that their master is a new one."""
ADOPT_S_MAX = 60.0  # for those that --expect-workers promises
ADOPT_RATE = 100
LOOK_S = 1.0
FORGET_AT = -60  # heartbeats that a worker of API users missed
HISTORY_MAX = 1800  # samples of 2 s: an hour
PORTS_WAIT_S = 0.05
FAULTS_SCRIPT = '<script src="./fleet/faults.js"></script>'

log = logging.getLogger("fleet")
runners.HEARTBEAT_LIVENESS = 15  # a long pause of a worker must not look like its death
runners.HEARTBEAT_DEAD_INTERNAL = -sys.maxsize  # or it deals again, and what is held is lost

VERSIONS = ((2, 47), (3, 0))  # from, to


def check_version(version: str) -> None:
    """End with a clear line if this is a Locust that fleet was not made for."""
    if not VERSIONS[0] <= tuple(map(int, version.split(".")[:2])) < VERSIONS[1]:
        sys.stderr.write(
            f"fleet: its locustfile needs Locust 2.47 or a later 2.x, this is {version}: "
            "pip install 'locust>=2.47,<3'\n"
        )
        sys.exit(3)


check_version(__version__)


class VirtualNode(User):
    """One virtual node. The master needs the name; a plain worker that gets one only waits."""

    host = "kube-apiserver"  # or the form asks for one; the workers know theirs
    wait_time = constant(3600)

    @task
    def idle(self) -> None:
        """Do nothing: fleet workers do what there is to do."""


class Fleet:
    """What the fleet workers report of themselves, and how that went over time."""

    def __init__(self, environment: Environment, runner: MasterRunner) -> None:
        self.environment = environment
        self.runner = runner
        self.reports: dict[str, dict[str, Any]] = {}
        self.history: list[dict[str, Any]] = []
        self.has_begun = False  # a run, in this master's life
        options = environment.parsed_options
        assert options is not None
        self._options = options
        self._has_others = len(environment.user_classes) > 1
        self._api_users = self._others_of(options.num_users or 0)
        self._joined: set[str] = set()
        self._joined_s = 0.0

    def _others_of(self, users: int) -> int:
        return max(0, users - int(self._options.fleet_nodes)) if self._has_others else 0

    @property
    def api_users(self) -> int:
        """Return how many of the users are no nodes: of this run, or of the next one."""
        if self.runner.state in ON:
            return self._others_of(self.runner.target_user_count or 0)
        return self._api_users

    def on_report(self, client_id: str, data: dict[str, Any]) -> None:
        """Keep the fleet's part of a report."""
        if "fleet" in data and client_id in self.runner.clients:
            self.reports[client_id] = data["fleet"]

    def on_start(self, **_: object) -> None:
        self.has_begun = True

    def watch_workers(self) -> None:
        """Do each second what the master leaves undone as workers come, go and return."""
        while True:
            gevent.sleep(LOOK_S)
            self.look()

    @guarded
    def look(self) -> None:
        """Deal out what lies undealt; adopt nodes that a former master left running."""
        self._forget_missing()
        runner = self.runner
        dispatcher: Any = runner._users_dispatcher  # noqa: SLF001 - a FleetDispatcher or None
        if runner.state in IDLE:
            if self._is_time_to_adopt():
                self._adopt()
        elif dispatcher and dispatcher.is_behind and runner.spawning_completed:
            runner.start(runner.target_user_count, runner.spawn_rate)

    def _forget_missing(self) -> None:
        """Drop workers that are missing for good; a run cannot stop while the master has them.

        A fleet worker of a run that goes on stays: it is the sign that its share is held.
        """
        clients, is_on = self.runner.clients, self.runner.state in ON
        missing = [each for each in clients.values() if each.state == runners.STATE_MISSING]
        living = {shard_of(each) for each in clients if clients[each] not in missing}
        for each in missing:
            is_old = not is_fleet(each.id) and each.heartbeat <= FORGET_AT
            if is_old or not is_on or shard_of(each.id) in living:
                del clients[each.id]
        if self.runner.state == runners.STATE_STOPPING:
            self.runner.check_stopped()

    def _is_time_to_adopt(self) -> bool:
        """Return whether all workers of whose nodes a new master must know are here.

        They come one after the other: a late one would learn that it has no nodes.
        """
        clients, options = self.runner.clients, self._options
        fleets = {each for each in clients if is_fleet(each)}
        if fleets != self._joined:
            self._joined, self._joined_s = fleets, time.monotonic()
        if not any(clients[each].user_count for each in fleets):
            return False
        waited_s = time.monotonic() - self._joined_s
        if not self._begins_by_itself:
            return waited_s > ADOPT_AFTER_S
        have_reported = all(clients[each].user_classes_count for each in fleets)
        is_complete = have_reported and len(clients) >= options.expect_workers
        return is_complete or waited_s > ADOPT_S_MAX

    def _adopt(self) -> None:
        """Begin a run of the nodes that there are, and of the API users of the command line."""
        options, clients = self._options, self.runner.clients
        nodes = sum(clients[each].user_count for each in self._joined)
        log.info("adopting %d running nodes", nodes)
        options.fleet_nodes = nodes
        users = nodes + self._api_users
        if self._begins_by_itself and not self.has_begun:
            # It waits for workers that are ready, and would begin when this run is stopped.
            options.num_users, options.spawn_rate, options.expect_workers = users, ADOPT_RATE, 0
        else:
            self.runner.start(users, ADOPT_RATE)

    @property
    def _begins_by_itself(self) -> bool:
        """Whether the master waits for --expect-workers, and then starts its run."""
        return bool(self._options.autostart or self._options.headless)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row a worker, by shard."""
        known = [each for each in self.reports if each in self.runner.clients]
        rows = [
            {key: value for key, value in self.reports[each].items() if key != "plane"}
            | {"shard": shard_of(each)}
            for each in sorted(known, key=shard_of)
        ]
        for row in rows:  # the web UI shows no booleans
            row["valid"] = "yes" if row.get("valid", True) else "no"
        return rows

    def total(self) -> dict[str, Any]:
        """Return the sum of all workers, of delays the worst, and what the API server is doing."""
        rows = self.rows()
        total: dict[str, Any] = {"valid": all(row["valid"] == "yes" for row in rows)}
        for _, key, adds in FIGURES:
            values = [row[key] for row in rows if row.get(key) is not None]
            total[key] = (sum(values) if adds else max(values)) if values else None
        for each in self.reports.keys() & self.runner.clients.keys():
            plane = self.reports[each].get("plane") or {}  # the first process of a run has it
            total |= {key: plane[key] for key in fleet_tab.MEASURED if key in plane}
        asked = self.environment.stats.total
        return total | {
            "requestsPerS": round(asked.current_rps, 1),
            "errorsPerS": round(asked.current_fail_per_sec, 1),
            "requestP99": asked.get_current_response_time_percentile(0.99),
        }

    def sample(self) -> None:
        """Add to the history, for as long as the master lives."""
        while True:
            gevent.sleep(2)
            self.history.append({"at": round(time.time(), 1), **self.total()})
            del self.history[:-HISTORY_MAX]


IDLE = (runners.STATE_INIT, runners.STATE_STOPPED)
ON = (runners.STATE_SPAWNING, runners.STATE_RUNNING)
FORM = ("user_count", "spawn_rate", "run_time")
PICKER = ("user_classes", "shape_class")
IGNORED = frozenset({"host", "profile"})
"""The form has these, and nodes do not: where they go is not the dashboard's to say."""
FIGURES = (  # title, key, whether the sum of all workers means something
    ("Target", "target", True),
    ("Registered", "registered", True),
    ("Ready", "ready", True),
    ("NotReady", "notReady", True),
    ("Pods Running", "podsRunning", True),
    ("Pods Failed", "podsFailed", True),
    ("Lease late p99 [ms]", "leaseLateP99", False),
    ("Pod start p99 [ms]", "podStartP99", False),
    ("Timer lag p99 [ms]", "timerLagP99", False),
    ("Open watches", "watches", True),
)
COLUMNS = (*((key, title) for title, key, _ in FIGURES), ("valid", "Valid"))
"""Of the table: a row for each worker."""


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_arguments(parser: Any) -> None:
    """Add what a fleet needs to the command line and to the form."""
    parser.add_argument(
        "--fleet-nodes",
        type=int,
        default=0,
        env_var="FLEET_NODES",
        help="How many of the users are virtual nodes, if there are API users next to them",
    )
    parser.add_argument(
        "--fleet-shard-loss",
        choices=("hold", "move"),
        default="hold",
        env_var="FLEET_SHARD_LOSS",
        include_in_web_ui=False,
        help="Hold the nodes of a lost fleet worker for its return, or move them",
    )
    parser.add_argument(
        "--dashboard-host",
        action="append",
        default=[],
        env_var="FLEET_DASHBOARD_HOST",
        include_in_web_ui=False,
        help="A name that browsers know the dashboard by, besides the bound address and localhost",
    )


@events.init.add_listener  # type: ignore[untyped-decorator]
def begin(environment: Environment, runner: Any, web_ui: Any = None, **_: object) -> None:
    """Set the master up; there is nothing to do on a plain worker."""
    options = environment.parsed_options
    assert options is not None
    address = "" if web_ui is None else close(web_ui, options)
    if not isinstance(runner, MasterRunner):
        return
    end_on_interrupt()
    environment.dispatcher_class = FleetDispatcher  # type: ignore[assignment]
    FleetDispatcher.nodes_wanted = staticmethod(lambda: options.fleet_nodes)
    FleetDispatcher.moves_lost = staticmethod(lambda: options.fleet_shard_loss == "move")
    fleet = Fleet(environment, runner)
    environment.events.worker_report.add_listener(fleet.on_report)  # type: ignore[no-untyped-call]
    environment.events.test_start.add_listener(fleet.on_start)  # type: ignore[no-untyped-call]
    desk = FaultDesk(runner)
    environment.events.worker_report.add_listener(desk.on_report)  # type: ignore[no-untyped-call]
    gevent.spawn(fleet.sample)
    gevent.spawn(fleet.watch_workers)
    gevent.spawn(tell_ports, runner, web_ui, address)
    if web_ui is not None:
        extend(web_ui, fleet, desk, options.web_base_path.rstrip("/") or "/")


def end_on_interrupt() -> None:
    """Have the first Ctrl-C end the greenlet that calls this, which is Locust's main one.

    Left to Python, it is raised in whichever greenlet runs: that may swallow it, or it holds the
    lock of the log, without which Locust ends no better than by a kill, and writes no HTML.
    """
    main = gevent.getcurrent()
    seen: list[int] = []

    def interrupt() -> None:
        seen.append(signal.SIGINT)
        if len(seen) == 1:  # else it would end the writing of the report
            gevent.kill(main, KeyboardInterrupt)

    gevent.signal_handler(signal.SIGINT, interrupt)


def close(web_ui: Any, options: Any) -> str:
    """Put the door before the web UI; return its address, with `{port}` in place of the port."""
    try:
        base = options.web_base_path.rstrip("/")
        given = token_from(os.environ)
        token = given or new_token()
        hosts = " ".join(options.dashboard_host).split()
        app = web_ui.app
        app.wsgi_app = Door(app.wsgi_app, token, bound=web_ui.host, hosts=hosts, base=base)
        app.before_request(lambda: take_known_keys(web_ui))
    except Exception as error:  # noqa: BLE001 - Locust would log it, and open without a door
        sys.stderr.write(f"fleet: the dashboard stays closed: {error}\n")
        sys.exit(2 if isinstance(error, UsageError | ValueError) else 3)
    scheme = "https" if web_ui.tls_cert else "http"
    host = LOOPBACKS[1] if web_ui.host in EVERYWHERE else web_ui.host
    shown = f"[{host}]" if ":" in host else host
    # A token that was given is known to its giver; logs are read by others.
    key = " (open to the token that was given)" if given else f"?token={token}"
    return f"{scheme}://{shown}:{{port}}{base}/fleet{key}"


def take_known_keys(web_ui: Any) -> Response | None:
    """Leave of a form what the page shows; refuse anything else, of which nothing is taken.

    Locust sets whatever option a key names: where its report goes, whom it says it is.
    """
    picks = web_ui.userclass_picker_is_active
    if request.endpoint == "locust.update_user" and not picks:
        return refusal("there is no class picker: start the master with --class-picker")
    if request.endpoint != "locust.swarm":
        return None
    known = {*FORM, *argument_parser.ui_extra_args_dict(), *(PICKER if picks else ())}
    strange = sorted({*request.form, *request.files} - known - IGNORED)
    if strange:
        return refusal(f"the form has no {', '.join(strange)}")
    taken = [(key, value) for key, value in request.form.items(multi=True) if key in known]
    request.form = ImmutableMultiDict(taken)
    return None


def refusal(message: str) -> Response:
    """Return an answer as the page of Locust shows it."""
    answer: Response = jsonify({"success": False, "message": message})
    answer.status_code = 400
    return answer


def tell_ports(runner: MasterRunner, web_ui: Any, address: str) -> None:
    """Print the ports that were found, as one JSON line for the starter of this master, and where.

    The address goes to stderr as it is: the tab Logs shows what is logged.
    """
    while web_ui is not None and (web_ui.server is None or not web_ui.server.started):
        gevent.sleep(PORTS_WAIT_S)
    web_port = web_ui.server.server_port if web_ui is not None else None
    sys.stdout.write(json.dumps({"fleet": {"master": runner.server.port, "web": web_port}}) + "\n")
    sys.stdout.flush()
    if web_ui is not None:
        sys.stderr.write(f"dashboard: {address.replace('{port}', str(web_port))}\n")


def extend(web_ui: Any, fleet: Fleet, desk: FaultDesk, base: str) -> None:
    """Add the Fleet tab with its faults and CSV, and a page with charts, below `base`."""
    columns = (("shard", "Shard"), *COLUMNS)
    structure = [{"key": key, "title": title} for key, title in columns]
    web_ui.template_args.update(
        extended_tabs=[{"title": "Fleet", "key": "fleet"}],
        extended_tables=[{"key": "fleet", "structure": structure}],
        extended_csv_files=[
            {"href": "./fleet/nodes.csv", "title": "Download fleet CSV"},
            {"href": "./fleet", "title": "Open the page of the fleet"},
        ],
    )
    app = web_ui.app
    own = Blueprint("fleet", __name__, url_prefix=base)

    @app.after_request  # type: ignore[untyped-decorator]
    def add_rows(response: Response) -> Response:
        if request.path.endswith("/stats/requests") and response.is_json:
            added = {"extended_stats": [{"key": "fleet", "data": fleet.rows()}]}
            shown = {**(response.json or {}), **added}
            # The page stops asking once it has read `stopping`, and would show that for ever:
            # the nodes of a fleet take longer to go than the 2 s between its questions.
            if shown.get("state") == runners.STATE_STOPPING:
                shown["state"] = runners.STATE_RUNNING
            response.set_data(app.json.dumps(shown))
        return response

    @app.after_request  # type: ignore[untyped-decorator]
    def add_faults(response: Response) -> Response:
        """Add to Locust's page what draws the faults into the tab: it has no place for a form."""
        if request.endpoint == "locust.index" and response.mimetype == "text/html":
            page = response.get_data(as_text=True)
            response.set_data(page.replace("</body>", f"{FAULTS_SCRIPT}</body>", 1))
        return response

    @own.route("/fleet/nodes.csv")
    def nodes_csv() -> Response:
        text = io.StringIO()
        writer = csv.DictWriter(text, [key for key, _ in columns], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(fleet.rows())
        return Response(text.getvalue(), mimetype="text/csv")

    @own.route("/fleet/history")
    def history() -> Response:
        since_s = request.args.get("since", 0.0, float)
        shown = {
            "columns": columns,
            "rows": fleet.rows(),
            "points": [each for each in fleet.history if each["at"] > since_s],
            "state": fleet.runner.state,
            "apiUsers": fleet.api_users,
        }
        return Response(json.dumps(shown), mimetype="application/json")

    @own.route("/fleet")
    def page() -> Response:
        return Response(fleet_tab.page(), mimetype="text/html")

    add_routes(own, desk)
    app.register_blueprint(own)
