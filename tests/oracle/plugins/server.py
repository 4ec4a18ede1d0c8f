"""A plug-in's sockets, and how a kubelet comes to know it.

    ROOT/plugins_registry/NAME.sock  which the kubelet watches: GetInfo says where the plug-in is
    ROOT/plugins/NAME.sock           the plug-in itself

Source: pkg/kubelet/pluginmanager, pluginwatcher and operationexecutor.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from oracle.cri.handlers import Handle, handler_of
from oracle.plugins.messages import REGISTRATION, service

THREADS = 16
"""A stream holds one for as long as it lasts."""
END_S = 0.2
SOCKET_PATH_MAX = 107


class RefusedCallError(Exception):
    """A plug-in refuses a call."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Plugin:
    """A plug-in of one kind; a subclass has the methods of its services."""

    kind = ""
    """The type by which the kubelet knows what it is."""
    versions: tuple[str, ...] = ()
    services: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = name
        self.stops = threading.Event()
        self.is_taken = threading.Event()
        """Set once the kubelet has done what registering takes."""
        self._endpoint = ""
        self._server: grpc.Server | None = None
        self._registration: grpc.Server | None = None

    def start(self, root: Path) -> None:
        """Listen below the kubelet's root directory; nobody knows of it yet."""
        place = root / "plugins" / self._file
        self._endpoint = str(place)
        self._server = serve(place, self, self.services)

    def register(self, root: Path) -> None:
        """Let the kubelet find it, as the pod of a plug-in does that sees a kubelet begin."""
        self._registration = serve(root / "plugins_registry" / self._file, self, (REGISTRATION,))

    def withdraw(self) -> None:
        """Let no kubelet find it."""
        self.is_taken.clear()
        if self._registration is not None:
            self._registration.stop(END_S).wait()
            self._registration = None

    def stop(self) -> None:
        """End: the sockets go, by which the kubelet notices."""
        self.stops.set()
        self.withdraw()
        if self._server is not None:
            self._server.stop(END_S).wait()
            self._server = None

    @property
    def _file(self) -> str:
        return f"{self.name.rpartition('/')[2]}.sock"

    def get_info(self, _: Any) -> Mapping[str, object]:
        """Say who this is. Source: Registration."""
        return {
            "type": self.kind,
            "name": self.name,
            "endpoint": self._endpoint,
            "supported_versions": self.versions,
        }

    def notify_registration_status(self, status: Any) -> Mapping[str, object]:
        """Hear whether the kubelet took it."""
        assert status.plugin_registered, status.error
        self.is_taken.set()
        return {}


def serve(place: Path, served: object, services: Sequence[str]) -> grpc.Server:
    """Serve on a Unix socket: `NodePublishVolume` is `node_publish_volume`.

    Methods return the fields of their answers, or yield them.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(THREADS))
    server.add_generic_rpc_handlers(
        tuple(handler_of(service(name), served, _unary, _stream) for name in services)
    )
    if len(str(place)) > SOCKET_PATH_MAX:  # neither this server nor the kubelet could use it
        raise ValueError(f"{place} is too long for a socket: run pytest with --basetemp /tmp/short")
    server.add_insecure_port(f"unix:{place}")
    server.start()
    return server


def _unary(call: Callable[[Any], Mapping[str, object]], answer: Any) -> Handle:
    def handle(request: Any, context: Any) -> Any:
        try:
            return answer(**call(request))
        except RefusedCallError as refused:
            context.abort(refused.code, str(refused))

    return handle


def _stream(call: Callable[[Any], Iterator[Mapping[str, object]]], answer: Any) -> Handle:
    def handle(request: Any, context: Any) -> Iterator[Any]:
        for each in call(request):
            if not context.is_active():
                return
            yield answer(**each)

    return handle
