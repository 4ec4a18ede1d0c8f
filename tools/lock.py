"""Check charts/requirements.txt: the versions that the image has and that the tests run with.

`python tools/lock.py` says what makes it stale, and exits with 1. It asks no network: the needs of
each package are those of the installed one.
"""

import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "charts" / "requirements.txt"
PROJECT = ROOT / "pyproject.toml"
EXTRAS = ("locust",)
"""Of fleet, that the image has."""
_PIN = re.compile(r"^([\w.-]+)==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class Pin(NamedTuple):
    """One package of the lock."""

    name: str
    version: str
    hashes: tuple[str, ...]
    """Of its wheels and its source, SHA-256."""


def pins(lock: str) -> dict[str, Pin]:
    """Return the packages of a lock by their canonical names."""
    found: dict[str, Pin] = {}
    for block in re.split(r"\n(?=[\w])", lock):
        pin = _PIN.match(block.partition("\n")[0])
        if pin is not None:
            name = canonicalize_name(pin[1])
            found[name] = Pin(name, pin[2], tuple(_HASH.findall(block)))
    return found


def problems(project: str, lock: str) -> list[str]:
    """Return what makes a lock stale against pyproject.toml, one line each.

    What the installed packages need counts, too, and that they are the versions of the lock.
    """
    locked = pins(lock)
    described = tomllib.loads(project)["project"]
    extras = described["optional-dependencies"]
    open_ = [Requirement(each) for each in described["dependencies"]]
    open_ += [Requirement(each) for extra in EXTRAS for each in extras[extra]]
    found: list[str] = []
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while open_:
        needed = open_.pop()
        name = canonicalize_name(needed.name)
        key = (name, tuple(sorted(needed.extras)))
        pin = locked.get(name)
        if pin is None:
            found.append(f"{needed} is not in the lock")
            continue
        if not needed.specifier.contains(pin.version, prereleases=True):
            found.append(f"{needed} is not met by {name} {pin.version} of the lock")
        if key not in seen:
            seen.add(key)
            open_ += _needs(name, needed.extras)
    for package, _extras in sorted(seen):
        installed = _installed(package)
        if installed is not None and installed != locked[package].version:
            found.append(
                f"{package} {installed} is installed, the lock has {locked[package].version}"
            )
    return list(dict.fromkeys(found))


def _needs(name: str, extras: set[str]) -> list[Requirement]:
    """Return what an installed package needs here, with its extras."""
    try:
        needed = map(Requirement, importlib.metadata.requires(name) or ())
    except importlib.metadata.PackageNotFoundError:
        return []
    return [
        each
        for each in needed
        if each.marker is None or any(each.marker.evaluate({"extra": e}) for e in ("", *extras))
    ]


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check() -> None:
    """Raise SystemExit if the lock is stale."""
    found = problems(PROJECT.read_text(), LOCK.read_text())
    if found:
        lines = "\n  ".join(found)
        raise SystemExit(f"{LOCK.relative_to(ROOT)} is stale; run `make lock setup`:\n  {lines}")


if __name__ == "__main__":
    check()
