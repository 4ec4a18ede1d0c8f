"""Makes the pictures of the documentation (`make picture`): a report, the dashboard, a search.

Each of a run of its own on a local control plane, as a browser of 1280 pixels shows it on light
paper. `report`, `dashboard` or `capacity` makes that one alone; RUN_DIR makes the picture of that
run's report, or of that search's page. On a machine that does something else, the runs are slow,
and the pages say INVALID.
"""

import contextlib
import io
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from fleet.report.capacity_report import CAPACITY_REPORT

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs/images"
REPORT, DASHBOARD = IMAGES / "report.png", IMAGES / "dashboard.png"
CAPACITY = IMAGES / "capacity.png"
BYTES_MAX = 250_000
REPORT_SIZE, DASHBOARD_SIZE, CAPACITY_SIZE = "1280,1330", "1280,940", "1280,900"
SEARCH = ("capacity", "--max-nodes=5000", "--no-agents", "--ready-within=20s", "--first=200")
"""Until a size breaks: some ten minutes on two cores."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLEET = (sys.executable, "-m", "fleet.cli")
NODES, DASHBOARD_NODES = 300, 100
WAIT_S_MAX = 300.0
ZONE = "topology.kubernetes.io/zone=zone-b"
LOAD = """
kubectl create deployment web --image=nginx --replicas=100
kubectl rollout status deployment/web --timeout=300s
sleep 20
$FLEET inject ComponentStall --component etcd --for 8s --run-dir "$RUN"
sleep 20
kubectl scale deployment/web --replicas=120
sleep 45
"""


def main() -> None:
    """Run, and take the pictures."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("no Chromium: make chromium")
    IMAGES.mkdir(exist_ok=True)
    asked = sys.argv[1:] or ["report", "dashboard", "capacity"]
    with tempfile.TemporaryDirectory() as folder:
        for what in asked:
            made = Path(folder) / what
            if what == "report":
                environment = {**os.environ, "FLEET": " ".join(FLEET), "RUN": str(made)}
                spawn = ("spawn", f"--nodes={NODES}", f"--run-dir={made}", "--", "sh", "-c", LOAD)
                subprocess.run([*FLEET, *spawn], check=False, env=environment)  # may break a level
                of_report(made, browser)
            elif what == "dashboard":
                of_dashboard(made, browser)
            elif what == "capacity":
                subprocess.run([*FLEET, *SEARCH, f"--run-dir={made}"], check=False)
                of_search(made, browser)
            elif (Path(what) / CAPACITY_REPORT).exists():
                of_search(Path(what), browser)
            else:
                of_report(Path(what), browser)


def of_report(run: Path, browser: str) -> None:
    """Take the picture of a run's report."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        subprocess.run([*FLEET, "report", str(run), f"--out={page}"], check=True)
        shoot(browser, page.as_uri(), REPORT, REPORT_SIZE)


def of_search(search: Path, browser: str) -> None:
    """Take the picture of the page of a search."""
    shoot(browser, (search / CAPACITY_REPORT).resolve().as_uri(), CAPACITY, CAPACITY_SIZE)


def of_dashboard(run: Path, browser: str) -> None:
    """Take the picture of the dashboard's page while a zone has no network."""
    with steered(run) as (url, token, kubeconfig):

        def ask(path: str, form: dict[str, str] | None = None) -> Any:
            data = None if form is None else urllib.parse.urlencode(form).encode()
            headers = {"Authorization": f"Bearer {token}"}
            request = urllib.request.Request(f"{url}{path}", data, headers)  # noqa: S310 - http
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - the same
                return json.loads(answer.read())

        def row() -> dict[str, Any]:
            found: list[dict[str, Any]] = ask("/fleet/history")["rows"]
            return found[0] if found else {}

        def has(key: str, least: int) -> bool:
            return int(row().get(key) or 0) >= least

        until(lambda: has("ready", DASHBOARD_NODES), "nodes are Ready")
        create = ("create", "deployment", "web", "--image=nginx", "--replicas=200")
        kubectl = os.environ.get("KUBECTL", "kubectl")
        subprocess.run([kubectl, f"--kubeconfig={kubeconfig}", *create], check=True)
        until(lambda: has("podsRunning", 200), "pods run")
        time.sleep(15)
        fault = {"type": "NetworkNotReady", "selector": ZONE, "for": "5m"}
        ask("/fleet/faults/inject", fault)
        ask("/fleet/faults/inject", {"type": "LateHeartbeats", "share": "10%", "by": "2s"})
        until(lambda: has("notReady", DASHBOARD_NODES // 4), "nodes are NotReady")
        time.sleep(15)
        shoot(browser, f"{url}/fleet?token={token}", DASHBOARD, DASHBOARD_SIZE)


@contextlib.contextmanager
def steered(run: Path) -> Iterator[tuple[str, str, Path]]:
    """Run a fleet with a dashboard; yield its address, its token, and how to reach the cluster."""
    token, kubeconfig = secrets.token_urlsafe(24), run.with_name("kubeconfig")
    spawn = ("spawn", f"--nodes={DASHBOARD_NODES}", "--rate=20", "--dashboard")
    where = (f"--run-dir={run}", f"--kubeconfig-out={kubeconfig}")
    log = run.with_name("steered.log")
    environment = {**os.environ, "FLEET_DASHBOARD_TOKEN": token}
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [*FLEET, *spawn, *where], env=environment, stdout=subprocess.DEVNULL, stderr=stderr
        )
    try:
        until(lambda: "dashboard: http://" in log.read_text(), "the dashboard is up")
        url = log.read_text().partition("dashboard: ")[2].split("/fleet?")[0]
        yield url, token, kubeconfig
    finally:
        process.terminate()
        process.wait(WAIT_S_MAX)


def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for something that the dashboard shows."""
    deadline_s = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < deadline_s:
        with contextlib.suppress(urllib.error.URLError):
            if is_so():
                return
        time.sleep(1)
    sys.exit(f"not within {WAIT_S_MAX:.0f} s: {what}")


def shoot(browser: str, url: str, picture: Path, size: str) -> None:
    """Write what a browser shows, in as many colours as a picture of text and lines needs."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--screenshot={picture}", f"--window-size={size}", "--virtual-time-budget=4000"]
    subprocess.run([*command, url], check=True, capture_output=True)
    made = io.BytesIO()
    with Image.open(picture) as shot:
        shot.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(made, "PNG", optimize=True)
    picture.write_bytes(made.getvalue())
    if len(made.getvalue()) > BYTES_MAX:
        sys.exit(f"{picture}: {len(made.getvalue()):,} bytes, more than {BYTES_MAX:,}")
    sys.stdout.write(f"{picture}: {len(made.getvalue()):,} bytes\n")


if __name__ == "__main__":
    main()
