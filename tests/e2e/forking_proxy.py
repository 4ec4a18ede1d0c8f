"""A proxy that serves each connection in a process of its own, so that SIGSTOP makes peers silent.

The kernel still takes what is sent to a stopped process, and nobody answers: what a client sees of
a machine that hangs, or of a firewall that forgot the connection. New connections are served.
Run as a program: PORT of the server; prints the port on which it listens.
"""

import contextlib
import select
import signal
import socket
import socketserver
import subprocess
import sys
from collections.abc import Iterator

import psutil

HOST = "127.0.0.1"
CHUNK = 1 << 16


class Passing(socketserver.BaseRequestHandler):
    """Passes the bytes of one connection on, both ways, until one end closes."""

    def handle(self) -> None:
        target = int(sys.argv[1])
        with socket.create_connection((HOST, target)) as server:
            other = {self.request: server, server: self.request}
            while True:
                for each in select.select(list(other), [], [])[0]:
                    data = each.recv(CHUNK)
                    if not data:
                        return
                    other[each].sendall(data)


class Proxy(socketserver.ForkingTCPServer):
    """Forks for each connection."""

    max_children = 1_000
    request_queue_size = 128


class ForkingProxy:
    """The running proxy, seen from a test."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.port = port
        self._process = psutil.Process(process.pid)
        self._frozen: list[psutil.Process] = []

    def freeze(self) -> int:
        """Silence every connection that there is; return how many."""
        self._frozen = self._process.children()
        for each in self._frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGSTOP)
        return len(self._frozen)

    def cut(self) -> None:
        """End the silent connections."""
        for each in self._frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()


@contextlib.contextmanager
def forking_proxy(server_port: int) -> Iterator[ForkingProxy]:
    """Run a proxy before a server; no process of it is left."""
    command = (sys.executable, __file__, str(server_port))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield ForkingProxy(process, int(process.stdout.readline()))
        finally:
            for each in psutil.Process(process.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            process.kill()


if __name__ == "__main__":
    with Proxy((HOST, 0), Passing) as proxy:
        print(proxy.server_address[1], flush=True)
        proxy.serve_forever()
