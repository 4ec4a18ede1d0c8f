"""Run in a process of its own: a real web UI of Locust's, asked as browsers and scripts would.

Prints what was answered as JSON: see test_locustfile.py.
"""

import json
import os
import re
import sys
from typing import Any

import gevent
from locust import argument_parser, events
from locust.env import Environment
from locust.runners import WorkerNode

import fleet.dashboard.locustfile as fleet

TOKEN = "a-token-that-nobody-guesses"
KEY = {"X-Fleet-Token": TOKEN}
STRANGE = ("html_file", "csv_prefix", "logfile", "expect_workers", "dashboard_host", "no_such")
FORM = {"user_count": "3", "spawn_rate": "1", "run_time": "1h", "fleet_nodes": "2"}


def main() -> None:
    os.environ["FLEET_DASHBOARD_TOKEN"] = TOKEN
    base = sys.argv[1]
    sys.argv[1:] = ["--web-base-path", base] if base else []
    options = argument_parser.get_parser().parse_args()
    options.html_file = options.csv_prefix = None
    environment = Environment(user_classes=[fleet.VirtualNode], parsed_options=options)
    runner: Any = environment.create_master_runner("127.0.0.1", 0)
    web_ui: Any = environment.create_web_ui(
        host="127.0.0.1", port=0, web_base_path=base, delayed_start=True
    )
    events.init.fire(environment=environment, runner=runner, web_ui=web_ui)  # type: ignore[no-untyped-call]
    started: list[tuple[int, float]] = []
    runner.start = lambda count, rate: started.append((count, rate))
    client = web_ui.app.test_client()
    rules = [(rule.rule, rule.methods or ()) for rule in web_ui.app.url_map.iter_rules()]

    statuses = {}
    for path, methods in rules:
        asked = path.replace("<path:path>", "index.html").replace("<path:filename>", "x")
        for method in sorted(methods):
            answer = client.open(asked, method=method)
            statuses[f"{method} {path}"] = answer.status_code
    swarm = f"{base}/swarm"

    def told(headers: dict[str, str], **more: str) -> list[object]:
        """Post the form; return the answer, and what it has changed or opened."""
        before = dict(vars(options))
        answer = client.post(swarm, data={**FORM, **more}, headers=headers)
        if web_ui._swarm_greenlet is not None:
            web_ui._swarm_greenlet.join()
        changed = sorted(key for key, value in vars(options).items() if value != before[key])
        opened = [key for key, _ in answer.headers if key.startswith("Access-Control")]
        changed += [f"started {users}" for users, _ in started]
        changed += [f"host {environment.host}"] if environment.host else []
        return [answer.status_code, [*changed, *opened]]

    page = client.get(f"{base}/fleet", headers=KEY)
    index = client.get(f"{base}/", headers=KEY).text
    script = client.get(f"{base}/fleet/faults.js", headers=KEY).text
    faults = client.get(f"{base}/fleet/faults", headers=KEY)
    inject, kind = f"{base}/fleet/faults/inject", {"type": "NodeDown"}
    strange = client.post(inject, data={**kind, "html_file": "/tmp/a"}, headers=KEY)
    nobody = client.post(inject, data=kind, headers=KEY)
    user = {"user_class_name": "VirtualNode"}
    found = {
        "routes": statuses,
        "page": [page.status_code, "waiting for data" in page.text],
        "links": {
            link: client.get(f"{base}/{link}", headers=KEY).status_code
            for link in re.findall(r'(?:href|src)="\./([^"]*)"', page.text)
        },
        "user": client.post(f"{base}/user", json=user, headers=KEY).status_code,
        "script": index.count("./fleet/faults.js") == 1 and "fleet-faults" in script,
        "faults": [faults.status_code, faults.json["on"], len(faults.json["types"]) > 20],
        "strange fault": [strange.status_code, strange.json],
        "fault for nobody": [nobody.status_code, nobody.json],
        "no token": told({}),
        "foreign origin": told({**KEY, "Origin": "https://evil.test"}),
        "foreign host": told({**KEY, "Host": "evil.test"}),
        "foreign site": told({**KEY, "Sec-Fetch-Site": "cross-site"}),
        **{key: told(KEY, **{key: "/tmp/a"}) for key in STRANGE},
        "own form": told(KEY, host="https://evil.test", profile="p"),
    }
    print(json.dumps(found | {"history": history(environment, client, base)}))


def history(environment: Environment, client: Any, base: str) -> list[Any]:
    """Return what the page gets of a worker's report: once, and only what it shows."""
    worker = "fleet-0000_a"
    environment.runner.clients[worker] = WorkerNode(worker)  # type: ignore[union-attr]
    plane = {"cpu/API server": 0.5, "memory/etcd": 80.0, "latency/writes p99, server": 9.0}
    data = {"fleet": {"ready": 3, "plane": plane}}
    environment.events.worker_report.fire(client_id=worker, data=data)  # type: ignore[no-untyped-call]

    def asked(since: float) -> list[dict[str, Any]]:
        answer = client.get(f"{base}/fleet/history?since={since}", headers=KEY).json
        assert "plane" not in answer["rows"][0]
        points: list[dict[str, Any]] = answer["points"]
        return points

    while not (points := [each for each in asked(0) if each["ready"]]):
        gevent.sleep(0.1)
    shown = [points[0].get(key) for key in ("ready", "requestsPerS", "errorsPerS", *plane)]
    return [shown, asked(points[-1]["at"])]


main()
