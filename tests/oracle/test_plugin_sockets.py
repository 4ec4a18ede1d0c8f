"""The sockets of the judge's plug-ins."""

import os
from pathlib import Path

import grpc

from oracle.plugins.messages import REGISTRATION
from oracle.plugins.server import Plugin, serve

SOCKET_PATH_MAX = 107


def test_a_socket_may_have_a_path_longer_than_linux_takes(tmp_path: Path) -> None:
    place = tmp_path / ("d" * SOCKET_PATH_MAX) / "plugin.sock"
    server = serve(place, Plugin("played"), (REGISTRATION,))
    directory = os.open(place.parent, os.O_PATH)
    try:
        address = f"unix:/proc/self/fd/{directory}/{place.name}"
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(timeout=10)
    finally:
        os.close(directory)
        server.stop(0).wait()
