"""Write the software bill of materials of a release: CycloneDX JSON, of the two locks.

Python packages are those of charts/requirements.txt, Go modules those of the control plane's go.mod
(with what it replaces them by); uPlot is a file of the package. The bill is the same whenever it is
made of the same tree.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import fleet
from fleet import KUBERNETES_VERSION
from fleet.controlplane.binaries import MODULE
from tools import lock

GO_MOD = MODULE / f"{KUBERNETES_VERSION}.mod"
UPLOT = lock.ROOT / "fleet" / "report" / "assets" / "uplot" / "uPlot.iife.min.js"
SPECIFICATION = "1.6"
Component = dict[str, object]
_REQUIRED = re.compile(
    r"^(?:require )?\s*([\w.~/-]+\.[\w.~/-]+) (v\S+)(?: // indirect)?$", re.MULTILINE
)
_REPLACED = re.compile(r"^(?:replace )?\s*(\S+)(?: v\S+)? => (\S+) (v\S+)$", re.MULTILINE)


def bill(locked: str, go_mod: str) -> str:
    """Return the bill of a lock and a go.mod."""
    found = (*_packages(locked), *_modules(go_mod), _uplot())
    parts = sorted(found, key=lambda each: str(each["bom-ref"]))
    whole = {
        "type": "application",
        "bom-ref": f"pkg:pypi/fleet-emulator@{fleet.__version__}",
        "name": "fleet-emulator",
        "version": fleet.__version__,
        "purl": f"pkg:pypi/fleet-emulator@{fleet.__version__}",
        "licenses": [{"expression": "Apache-2.0 AND MIT"}],
    }
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "version": 1,
        "metadata": {"component": whole},
        "components": parts,
    }
    return json.dumps(document, indent=1) + "\n"


def write(directory: Path) -> Path:
    """Write the bill into a directory and return its path."""
    path = directory / f"fleet-emulator-{fleet.__version__}.cdx.json"
    path.write_text(bill(lock.LOCK.read_text(), GO_MOD.read_text()))
    return path


def _packages(locked: str) -> Iterator[Component]:
    for pin in lock.pins(locked).values():
        yield _component(pin.name, pin.version, f"pkg:pypi/{pin.name}@{pin.version}")


def _modules(go_mod: str) -> Iterator[Component]:
    replaced = {old: (new, version) for old, new, version in _REPLACED.findall(go_mod)}
    for name, version in _REQUIRED.findall(go_mod):
        name, version = replaced.get(name, (name, version))  # noqa: PLW2901
        yield _component(name, version, f"pkg:golang/{name}@{version}")


def _uplot() -> Component:
    head = re.search(r"\(v([0-9.]+)\)", UPLOT.read_text("utf-8"))
    assert head is not None, UPLOT
    return _component("uplot", head[1], f"pkg:npm/uplot@{head[1]}")


def _component(name: str, version: str, purl: str) -> Component:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
