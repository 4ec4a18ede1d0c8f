"""`make pythons`: the unit tests and simulations on each Python from 3.11 on, in one table.

Takes those that this machine has, and those that `uv python install` can fetch; the rest is named
as missing. Each has an environment of its own in runs/pythons, with the packages of .venv.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIRECTORY = ROOT / "runs" / "pythons"
MINORS = ("3.11", "3.12", "3.13", "3.14")
SUITES = {
    "unit": ("-m", "not e2e and not slow", "--ignore=tests/sim", "--ignore=tests/e2e", "tests"),
    "sim": ("tests/sim",),
}
SUMMED = re.compile(r"^.*(?:passed|failed|error).* in [\d.]+s.*$", re.MULTILINE)


def interpreter(minor: str) -> str | None:
    """Return a Python of a minor that runs, None if there is none to be found or fetched."""
    places = [shutil.which(f"python{minor}"), sys.executable]
    places += [str(each) for each in Path.home().glob(f".pyenv/versions/{minor}.*/bin/python")]
    uv = shutil.which("uv")
    if uv is not None:
        subprocess.run((uv, "python", "install", "--quiet", minor), check=False)
        found = subprocess.run((uv, "python", "find", minor), capture_output=True, check=False)
        places.append(found.stdout.decode().strip())
    return next((each for each in places if each and _version(each) == minor), None)


def _version(python: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run((python, "-c", code), capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def environment(python: str, minor: str) -> str:
    """Return the Python of an environment that has fleet and what its tests need."""
    place = DIRECTORY / minor
    own = str(place / "bin" / "python")
    if not Path(own).exists():
        subprocess.run((python, "-m", "venv", str(place)), check=True)
    lock = (ROOT / "charts" / "requirements.txt").read_text()
    pins = re.findall(r"^([A-Za-z0-9][^ ]*==[^ \\]+)", lock, re.MULTILINE)
    constraints = place / "constraints.txt"
    constraints.write_text("\n".join(pins) + "\n")
    pip = (own, "-m", "pip", "install", "--quiet", f"--constraint={constraints}")
    subprocess.run((*pip, "--editable", f"{ROOT}[dev,locust]"), check=True)
    return own


def played(python: str, suite: str, log: Path) -> tuple[bool, str]:
    """Run a suite; return whether it is green, and what pytest says of it."""
    command = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--numprocesses=2")
    with log.open("wb") as output:
        code = subprocess.run(
            (*command, *SUITES[suite]),
            cwd=ROOT,
            env=os.environ | {"PATH": f"{Path(python).parent}:{os.environ['PATH']}"},
            stdout=output,
            stderr=output,
            check=False,
        ).returncode
    lines = SUMMED.findall(log.read_text(errors="replace"))
    return code == 0, lines[-1].strip("= ") if lines else f"exit code {code}"


def main() -> int:
    """Run the chosen Pythons; return 1 if a suite is red."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=MINORS, help="may be repeated")
    is_red = False
    rows = [f"{'python':<8}{'suite':<7}{'minutes':>8}  result"]
    for minor in parser.parse_args().only or MINORS:
        python = interpreter(minor)
        if python is None:
            rows.append(f"{minor:<8}{'':<15}  NOT RUN: this machine neither has nor can fetch it")
            continue
        own = environment(python, minor)
        for suite in SUITES:
            begin_s = time.monotonic()
            is_green, said = played(own, suite, DIRECTORY / f"{minor}-{suite}.log")
            is_red |= not is_green
            took = (time.monotonic() - begin_s) / 60
            rows.append(f"{minor:<8}{suite:<7}{took:>8.1f}  {said}")
            print(rows[-1], flush=True)
    print("\n" + "\n".join(rows))
    return int(is_red)


if __name__ == "__main__":
    raise SystemExit(main())
