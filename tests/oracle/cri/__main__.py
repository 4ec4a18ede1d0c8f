"""`python -m cri`: the runtime of one node, until it is told to end."""

import argparse
import asyncio
import logging
import signal
from pathlib import Path

from fleet import KUBERNETES_VERSION
from fleet.clock import Draws
from fleet.profile.loader import load_mix
from fleet.profile.option_types import ProfileChoice
from oracle.cri.applications import from_kubelet
from oracle.cri.machine import Machine
from oracle.cri.server import CriServer


async def serve(arguments: argparse.Namespace) -> None:
    """Serve until SIGTERM."""
    [model] = load_mix((ProfileChoice(arguments.profile),)).models
    machine = Machine(
        model.on_server(KUBERNETES_VERSION).adapted(zone_labels=True),
        Draws(arguments.seed),
        arguments.node,
        arguments.host_ip,
        arguments.pod_cidr,
    )
    server = CriServer(machine, arguments.socket, from_kubelet(arguments.kubelet))
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await server.start()
    await ended.wait()
    await server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="cri")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--profile", required=True)
    parser.add_argument("--kubelet", required=True, help="its read-only port: http://HOST:PORT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--node", type=int, default=0)
    parser.add_argument("--host-ip", default="127.0.0.1")
    parser.add_argument("--pod-cidr", default="127.77.0.0/24")
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
