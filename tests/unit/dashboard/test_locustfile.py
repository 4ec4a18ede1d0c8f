"""The locustfile that a Locust master loads. Importing it patches a process: not this one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet.dashboard.locust_master import LOCUSTFILE


def load(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    return subprocess.run(
        (sys.executable, "-c", script), capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("version", ["2.46.9", "3.0.0", "3.1.0.dev5"])
def test_a_release_that_it_was_not_made_for_is_refused_in_one_line(version: str) -> None:
    done = load(
        f"import locust; locust.__version__ = {version!r}; import fleet.dashboard.locustfile"
    )
    assert done.returncode == 3
    assert done.stderr == (
        f"fleet: its locustfile needs Locust 2.47 or a later 2.x, this is {version}: "
        "pip install 'locust>=2.47,<3'\n"
    )


def test_a_later_one_is_taken() -> None:
    done = load("import locust; locust.__version__ = '2.99.1'; import fleet.dashboard.locustfile")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module", params=["", "/load/fleet"])
def answers(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Ask every route that the web UI has, and post the form in every wrong way."""
    script = Path(__file__).with_name("locust_routes.py")
    command = (sys.executable, str(script), request.param)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_route_is_behind_the_door(answers: dict[str, Any]) -> None:
    routes = {route.split()[1].removeprefix("/load/fleet") for route in answers["routes"]}
    assert {"/swarm", "/stop", "/logs", "/stats/report", "/fleet", "/fleet/history"} <= routes
    assert {"/fleet/faults", "/fleet/faults/inject", "/fleet/faults/heal"} <= routes
    assert set(answers["routes"].values()) == {403}
    assert answers["page"] == [200, True]


def test_every_link_of_the_page_leads_somewhere(answers: dict[str, Any]) -> None:
    assert {"", "fleet/nodes.csv", "fleet/faults.js"} <= answers["links"].keys()
    assert set(answers["links"].values()) == {200}, answers["links"]


def test_the_page_gets_each_point_once_and_of_the_control_plane_what_it_shows(
    answers: dict[str, Any],
) -> None:
    assert answers["history"] == [[3, 0, 0, 0.5, None, 9.0], []]


def test_faults_are_asked_for_by_what_the_page_has_and_nothing_else(
    answers: dict[str, Any],
) -> None:
    assert answers["script"]
    assert answers["faults"] == [200, [], True]
    told = {"success": False, "message": "the form has no html_file"}
    assert answers["strange fault"] == [400, told]
    told = {"success": False, "message": "no connected fleet accepts faults"}
    assert answers["fault for nobody"] == [400, told]


@pytest.mark.parametrize("what", ["no token", "foreign origin", "foreign host", "foreign site"])
def test_a_form_of_others_changes_nothing(answers: dict[str, Any], what: str) -> None:
    assert answers[what] == [403, []]


@pytest.mark.parametrize(
    "key", ["html_file", "csv_prefix", "logfile", "expect_workers", "dashboard_host", "no_such"]
)
def test_a_form_with_a_key_that_the_page_has_not_changes_nothing(
    answers: dict[str, Any], key: str
) -> None:
    assert answers[key] == [400, []]
    assert answers["user"] == 400


def test_our_own_form_says_how_many_and_never_where(answers: dict[str, Any]) -> None:
    changed = ["fleet_nodes", "num_users", "run_time", "spawn_rate", "started 3"]
    assert answers["own form"] == [200, changed]


def test_a_web_ui_that_takes_no_door_is_not_opened() -> None:
    """Locust logs what a listener raises, and goes on."""
    script = (
        "import types; from fleet.dashboard.locustfile import begin\n"
        "options = types.SimpleNamespace(web_base_path='', dashboard_host=[])\n"
        "environment = types.SimpleNamespace(parsed_options=options)\n"
        "begin(environment, None, web_ui=types.SimpleNamespace(host='127.0.0.1'))\n"
    )
    done = load(script)
    assert done.returncode == 3
    assert "fleet: the dashboard stays closed: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_dashboard_that_cannot_be_closed_is_not_opened() -> None:
    arguments = ("--master", "--master-bind-port=0", "--web-port=0", "--dashboard-host=https://a")
    command = (sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *arguments)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "fleet: the dashboard stays closed: 'https://a' is no name" in done.stderr
    assert '"fleet"' not in done.stdout


def test_ctrl_c_ends_locust_whichever_greenlet_runs() -> None:
    """By itself it would be raised in the one that runs, which swallows it here; so twice."""
    done = load(
        "import os, signal, gevent\n"
        "from fleet.dashboard.locustfile import end_on_interrupt\n"
        "def swallow():\n"
        "    while True:\n"
        "        try:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "            gevent.sleep(0)\n"
        "        except KeyboardInterrupt:\n"
        "            print('swallowed')\n"
        "end_on_interrupt()\n"
        "busy = gevent.spawn(swallow)\n"
        "try:\n"
        "    busy.join(timeout=60)\n"
        "except KeyboardInterrupt:\n"
        "    gevent.sleep(0.1)\n"
        "    print('ended once')\n"
    )
    assert done.stdout.splitlines()[-1:] == ["ended once"], done.stderr
    assert "swallowed" not in done.stdout
