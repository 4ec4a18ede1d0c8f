"""Which containers are known to serve, by their images and commands.

Source: test/images/agnhost, the commands of its README.
Differs: of other images nobody knows what answers; see ports.py.
"""

from collections.abc import Mapping
from functools import lru_cache

from fleet.k8s.pods import ContainerSpec, Pod
from fleet.k8s.scripts import Variable
from fleet.runtime.agnhost_servers import SERVERS
from fleet.runtime.http_message import HttpReply
from fleet.runtime.known_images import default_args, is_agnhost_image
from fleet.runtime.servers import Server
from fleet.runtime.shell.agnhost import is_agnhost

_FLAGS_WITHOUT_VALUE = frozenset(
    ("alsologtostderr", "close", "http", "json-response", "logtostderr", "tcp", "udp")
)


_NO_PORTS = Server(lambda _site, _port, _request: HttpReply(404), ())
"""Of a program that is known, and serves nothing."""


def server_of(spec: ContainerSpec) -> Server | None:
    """Return the server of a container, None if none is known."""
    found = known_server_of(spec)
    return None if found is _NO_PORTS else found


def known_server_of(spec: ContainerSpec) -> Server | None:
    """Return what is known of what listens in a container; None if nobody knows."""
    own = default_args(spec.image)
    if own:
        return _agnhost((), spec.args or own, ()) if not spec.command else None
    if not is_agnhost_image(spec.image):
        return None
    variables = () if spec.script is None else spec.script.variables
    return _agnhost(spec.command, spec.args, variables)


@lru_cache(maxsize=1024)
def _agnhost(
    command: tuple[str, ...], args: tuple[str, ...], variables: tuple[Variable, ...]
) -> Server | None:
    words = command + args
    if command and command[0].rpartition("/")[2] not in {"agnhost", "agnhost-2"}:
        return None
    name, *rest = (words[1:] if command else words) or ("pause",)
    if is_agnhost(("agnhost", name)):
        return _NO_PORTS
    make = SERVERS.get(name)
    return None if make is None else make(_flags_of(rest), {v.name: v.value for v in variables})


def _flags_of(args: list[str]) -> Mapping[str, str]:
    """Return the flags of a command line as cobra reads them."""
    found: dict[str, str] = {}
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        if not arg.startswith("-"):
            continue
        name, is_set, value = arg.lstrip("-").partition("=")
        if not is_set and name in _FLAGS_WITHOUT_VALUE:
            value = "true"
        elif not is_set and rest:
            value = rest.pop(0)
        found[name] = value
    return found


def server_at(pod: Pod, port: int) -> tuple[ContainerSpec, Server] | None:
    """Return which container of a pod is known to listen on a TCP port, with its server."""
    for spec in (*pod.spec.containers, *pod.spec.init_containers):
        found = server_of(spec)
        if found is not None and port in found.tcp:
            return spec, found
    return None
