"""The tools that `make bench-peers` compares: how each is started, accounted and ended."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

import aiohttp
import psutil

from fleet.controlplane.build import find_go
from fleet.controlplane.directory import Layout, Pair
from fleet.controlplane.kubeconfig import render_kubeconfig
from fleet.controlplane.options import ControlPlaneInfo
from fleet.controlplane.pki import Authority
from fleet.profile.loader import load_mix

from .__main__ import ROOT
from .accounting import cpu_s, rss_mb, tree
from .inside import Json, each
from .peer_plane import FLEET

sys.path += [str(ROOT / "tests")]
from e2e.free_ports import free_port
from support.go_program import KWOK, build_kubemark, to_stderr

KWOK_TOOL = "KWOK"
KUBEMARK = "kubemark"
FIDELITIES = ("light", "kubelet")
COLD = "kubelet-cold"
"""fleet in fidelity kubelet with `--start cold`; the others begin settled."""
TOOLS = (KWOK_TOOL, *FIDELITIES, KUBEMARK)
"""Those of a run that names none."""
STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
"""What kwokctl gives KWOK to play unless it is told otherwise. Source: pkg/kwokctl/runtime."""
END_S = 300.0
"""For fleet, which deletes its Nodes at its end."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs of others, as far as they are compared."""

    kwok: tuple[str, ...] = ()
    """The command, but for the kubeconfig."""
    kubemark: Path = Path()

    @classmethod
    def of(cls, tools: Sequence[str]) -> Self:
        """Find what these tools need; build it if it is not there."""
        return cls(
            kwok=kwok_command() if KWOK_TOOL in tools else (),
            kubemark=asyncio.run(build_kubemark(to_stderr)) if KUBEMARK in tools else Path(),
        )


class Running:
    """A tool that was started: its processes, each with a log."""

    def __init__(
        self, commands: Sequence[Sequence[str]], environment: Mapping[str, str], logs: Path
    ) -> None:
        self._logs = [logs / f"tool-{number}.log" for number in range(len(commands))]
        self._processes: list[subprocess.Popen[bytes]] = []
        for command, path in zip(commands, self._logs, strict=True):
            with path.open("wb") as log:
                self._processes.append(
                    subprocess.Popen(
                        command,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                    )
                )
        self._roots = [psutil.Process(process.pid) for process in self._processes]

    def cpu_s(self) -> float:
        """Return the CPU seconds so far, from the start of the processes on."""
        return sum(cpu_s(tree(root)) for root in self._roots)

    def rss_mb(self) -> float:
        """Return the memory; pages that several processes share count in each."""
        return sum(rss_mb(tree(root)) for root in self._roots)

    def how_ended(self) -> str:
        """Say how a process ended by itself; nothing while all run."""
        for process, log in zip(self._processes, self._logs, strict=True):
            if process.poll() is not None:
                last = log.read_text(errors="replace").splitlines()[-1:]
                return f"it ended by itself with {process.returncode}: {''.join(last)[-400:]}"
        return ""

    def end(self, number: signal.Signals) -> None:
        """End all that still runs by a signal, and by SIGKILL after END_S."""
        for process in self._processes:
            process.send_signal(number)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            process.kill()
            process.wait()


def commands_of(
    tool: str, programs: Programs, info: ControlPlaneInfo, count: int, scratch: Path
) -> list[tuple[str, ...]]:
    """Return what to start for so many nodes, one command a process."""
    if tool == KWOK_TOOL:
        return [(*programs.kwok, f"--kubeconfig={info.kubeconfig}")]
    if tool == KUBEMARK:
        return hollow_nodes(programs.kubemark, info, count, scratch)
    start = ("--fidelity=kubelet", "--start=cold") if tool == COLD else (f"--fidelity={tool}",)
    options = (f"--nodes={count}", "--no-report", *start)
    return [(*FLEET, "spawn", *options, f"--run-dir={scratch / 'run'}")]


def environment_of(tool: str, scratch: Path) -> dict[str, str]:
    """Return the environment of the control plane and of a tool."""
    ours = {**os.environ, "XDG_STATE_HOME": str(scratch), "PYTHONPATH": str(ROOT)}
    # A hollow node makes a directory of its own there and leaves it.
    return {**ours, "TMPDIR": str(scratch)} if tool == KUBEMARK else ours


def end_of(tool: str) -> signal.Signals:
    """Return how a tool is ended: hollow nodes have nothing to clean up, and take their time."""
    return signal.SIGKILL if tool == KUBEMARK else signal.SIGINT


def kwok_command() -> tuple[str, ...]:
    """Return KWOK as kwokctl runs it, but for the kubeconfig; build it if it is not there."""
    download = (asyncio.run(find_go()), "mod", "download", "-json", "sigs.k8s.io/kwok")
    told = subprocess.run(download, cwd=KWOK.module, stdout=subprocess.PIPE, check=True)
    stages = Path(json.loads(told.stdout)["Dir"]) / "kustomize" / "stage"
    files = (file for name in STAGES for file in sorted((stages / name).glob("*-*.yaml")))
    return (
        *(str(KWOK.path()), "--manage-all-nodes=true", "--node-lease-duration-seconds=40"),
        *(f"--config={file}" for file in files),
    )


def kwok_node(index: int) -> Json:
    """Return a Node as `kwokctl scale node` makes them, with the labels that fleet's have too.

    What the scheduler does for a pod depends on them: it spreads the pods of a Deployment over the
    zones, and looks each node's up, so that nodes without zones are placed on with half of the CPU.
    """
    name = f"node-{index:06d}"
    size = {"cpu": "32", "memory": "256Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
            "labels": {
                **_mix().model_of(index).identity(index, name).labels,
                "kubernetes.io/role": "agent",
                "node-role.kubernetes.io/agent": "",
                "type": "kwok",
            },
        },
        "spec": {},
        "status": {"allocatable": size, "capacity": size},
    }


_mix = cache(load_mix)


async def create_kwok_nodes(session: aiohttp.ClientSession, url: str, count: int) -> None:
    """Create the Nodes that KWOK then manages, by many requests at a time."""

    async def create(index: int) -> None:
        async with session.post(f"{url}/api/v1/nodes", json=kwok_node(index)) as answer:
            assert answer.status == 201, await answer.text()

    await each(count, create)


def hollow_nodes(
    kubemark: Path, info: ControlPlaneInfo, count: int, scratch: Path
) -> list[tuple[str, ...]]:
    """Return the commands of so many hollow nodes, each with a certificate of its own."""
    pki = Layout(info.directory).pki
    authority = Authority.load(Pair(pki / "ca.crt", pki / "ca.key"))
    first = free_port(2 * count)
    return [
        _hollow_node(kubemark, info, authority, scratch / f"hollow-{index:05d}", first + 2 * index)
        for index in range(count)
    ]


def _hollow_node(
    kubemark: Path, info: ControlPlaneInfo, authority: Authority, directory: Path, port: int
) -> tuple[str, ...]:
    directory.mkdir()
    name, kubeconfig = directory.name, directory / "kubeconfig"
    user = f"system:node:{name}"
    pair = Pair(directory / "node.crt", directory / "node.key")
    authority.client(pair, user, ("system:nodes",))
    kubeconfig.write_bytes(render_kubeconfig(info.url, info.ca_file, user, pair))
    # It makes a directory of its own in $TMPDIR and leaves it.
    return (
        *(str(kubemark), "--morph=kubelet", f"--name={name}", f"--kubeconfig={kubeconfig}"),
        *(f"--kubelet-port={port}", f"--kubelet-read-only-port={port + 1}"),
        *("--kube-api-qps=50", "--kube-api-burst=100"),  # a kubelet's; kubemark has 10 and 20
        *("--use-host-image-service=false", f"--cert-dir={directory}"),
    )
