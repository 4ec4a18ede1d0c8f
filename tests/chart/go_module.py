"""Sources that are read, not built: a Go module, fetched once into Go's own cache."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from fleet.controlplane.build import GO_ENVIRONMENT

FETCH_S_MAX = 300.0


def module_directory(module: str) -> Path:
    """Return where MODULE@VERSION is; a minute the first time."""
    go = shutil.which("go") or "/usr/local/go/bin/go"
    with tempfile.TemporaryDirectory() as outside_of_any_module:
        done = subprocess.run(
            (go, "mod", "download", "-json", module),
            cwd=outside_of_any_module,
            env={**os.environ, **GO_ENVIRONMENT},
            check=True,
            capture_output=True,
            timeout=FETCH_S_MAX,
        )
    return Path(json.loads(done.stdout)["Dir"])
