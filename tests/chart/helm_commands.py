"""Helm with directories of its own, and the chart."""

import os
import subprocess
from pathlib import Path
from typing import Any

import yaml
from support.go_program import HELM

from chart.chart_rbac import CHART

Json = dict[str, Any]
NAMESPACE = "load"
RELEASE = "fleet"
RUN = f"{NAMESPACE}.{RELEASE}"
SOME_UID = "00000000-0000-0000-0000-000000000000"
HELM_S_MAX = 240.0


class Helm:
    """Helm with the test's kubeconfig and directories of its own."""

    def __init__(self, root: Path, kubeconfig: Path | None = None) -> None:
        self._program = HELM.path()
        self._root = root
        self._kubeconfig = kubeconfig

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._root)}
        if self._kubeconfig is not None:
            environment["KUBECONFIG"] = str(self._kubeconfig)
        done = subprocess.run(
            (str(self._program), *arguments),
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HELM_S_MAX,
            check=False,
        )
        assert not check or done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done

    def template(self, values: Json, *flags: str, check: bool = True) -> str:
        """Return what the chart renders, or what Helm says if it does not."""
        path = self.values(values)
        done = self.run(
            *("template", RELEASE, str(CHART), f"--namespace={NAMESPACE}", f"--values={path}"),
            *flags,
            check=check,
        )
        return done.stdout if done.returncode == 0 else done.stderr

    def objects(self, values: Json, *flags: str) -> list[Json]:
        rendered = yaml.safe_load_all(self.template(values, *flags))
        return [each for each in rendered if each]

    def values(self, values: Json) -> Path:
        self._root.mkdir(parents=True, exist_ok=True)
        path = self._root / "values.yaml"
        path.write_text(yaml.safe_dump({"confirmCluster": SOME_UID, **values}))
        return path
