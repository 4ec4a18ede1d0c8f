"""Makes the picture of a report that README.md shows (`make picture`).

Of RUN_DIR if one is named, else of a run of two minutes on a local control plane, as a browser of
1280 pixels shows it.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/images/report.png"
SIZE = "1280,1330"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LOAD = """
kubectl create deployment web --image=nginx --replicas=100
kubectl rollout status deployment/web --timeout=120s
sleep 40
kubectl scale deployment/web --replicas=160
sleep 45
"""


def main() -> None:
    """Run, and take the picture."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("no Chromium: make chromium")
    fleet = (sys.executable, "-m", "fleet.cli")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "run"
        if len(sys.argv) == 1:
            spawn = ("spawn", "--nodes=300", f"--run-dir={run}", "--", "sh", "-c", LOAD)
            subprocess.run([*fleet, *spawn], check=True)
        page = Path(folder) / "report.html"
        subprocess.run([*fleet, "report", str(run), f"--out={page}"], check=True)
        PICTURE.parent.mkdir(exist_ok=True)
        shot = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
        command = [browser, *shot, f"--screenshot={PICTURE}", f"--window-size={SIZE}"]
        subprocess.run([*command, page.as_uri()], check=True, capture_output=True)
    sys.stdout.write(f"{PICTURE}\n")


if __name__ == "__main__":
    main()
