"""Helm, built once with Go from the module in helm/ into the user's cache; as kubemark is."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from fleet.controlplane.binaries import cache_directory
from fleet.controlplane.build import GO_ENVIRONMENT

MODULE = Path(__file__).parent / "helm"
PACKAGE = "helm.sh/helm/v4/cmd/helm"
BUILD_S_MAX = 900.0


def helm_program() -> Path:
    """Return the program, building it if it is not there: two minutes on 2 cores."""
    digest = hashlib.sha256((MODULE / "go.sum").read_bytes()).hexdigest()[:12]
    target = cache_directory().parent.parent / "helm" / digest / "helm"
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            go = shutil.which("go") or "/usr/local/go/bin/go"
            partial = target.with_name("helm.partial")
            flags = ("-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", str(partial))
            subprocess.run(
                (go, "build", *flags, PACKAGE),
                cwd=MODULE,
                env={**os.environ, **GO_ENVIRONMENT},
                check=True,
                timeout=BUILD_S_MAX,
            )
            partial.rename(target)
    return target


if __name__ == "__main__":
    print(helm_program())
