"""metrics-server as a process beside the local control plane, with upstream's own manifests.

The API server reaches it through an APIService as in any cluster. Only its Service differs: the
address of a process on loopback may stand in no EndpointSlice, but a Service may be another name of
`localhost`.
"""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import yaml
from e2e.e2e_world import Json, World, condition, eventually
from e2e.free_ports import free_port
from support.go_program import METRICS_SERVER

from fleet.controlplane.build import GO_ENVIRONMENT

RESOLUTION = "15s"
"""As its manifests say."""
NAME, NAMESPACE = "metrics-server", "kube-system"
API = "v1beta1.metrics.k8s.io"
UPSTREAM = ("rbac.yaml", "apiservice.yaml")
END_S_MAX = 30.0


@contextlib.contextmanager
def metrics_server(world: World, directory: Path) -> Iterator[Path]:
    """Run it until the API server serves its API; yields its log. Nothing of it stays."""
    port = free_port()
    manifest = yaml.safe_dump_all(manifests(port))
    log = directory / "metrics-server.log"
    world.kubectl("apply", "-f", "-", stdin=manifest)
    try:
        token = world.kubectl("create", "token", NAME, f"--namespace={NAMESPACE}").strip()
        kubeconfig = world.user(directory / "metrics-server.kubeconfig", token)
        command = (
            str(METRICS_SERVER.path()),
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={directory}",
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--kubelet-insecure-tls",  # the nodes sign their certificates themselves
            "--kubelet-preferred-address-types=InternalIP",
            "--kubelet-use-node-status-port",
            f"--metric-resolution={RESOLUTION}",
        )
        with log.open("w") as said, subprocess.Popen(command, stdout=said, stderr=said) as process:
            try:

                def is_there() -> bool:
                    assert process.poll() is None, log.read_text()[:1000]
                    return is_served(world)

                eventually(is_there, "its API is there", seen=log.read_text)
                yield log
            finally:
                process.terminate()
                process.wait(END_S_MAX)
    finally:
        world.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=manifest)


def is_served(world: World) -> bool:
    return condition(world.get("apiservice", API), "Available") == "True"


def manifests(port: int) -> list[Json]:
    """Return what its release applies but for the Deployment, for a process at a port."""
    base = upstream() / "manifests" / "base"
    found = [each for name in UPSTREAM for each in yaml.safe_load_all((base / name).read_text())]
    [service] = [each for each in found if each["kind"] == "APIService"]
    service["spec"]["service"]["port"] = port
    local: Json = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    }
    return [*found, local]


def upstream() -> Path:
    """Return the sources of the version that is built."""
    go = shutil.which("go") or "/usr/local/go/bin/go"
    done = subprocess.run(
        (go, "mod", "download", "-json", "sigs.k8s.io/metrics-server"),
        cwd=METRICS_SERVER.module,
        env={**os.environ, **GO_ENVIRONMENT},
        check=True,
        capture_output=True,
    )
    return Path(json.loads(done.stdout)["Dir"])
