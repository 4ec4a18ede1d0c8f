"""Which containers are known to serve, by their images and commands.

Source: test/images/agnhost, the commands of its README.
Differs: of other images nobody knows what answers; see ports.py.
"""

from collections.abc import Mapping
from functools import lru_cache

from fleet.objects.pods import ContainerSpec, Pod
from fleet.objects.scripts import Variable
from fleet.runtime.agnhost_servers import SERVERS
from fleet.runtime.known_images import is_agnhost_image
from fleet.runtime.servers import Server

_FLAGS_WITHOUT_VALUE = frozenset(("http", "tcp", "udp", "close", "json-response"))


def server_of(spec: ContainerSpec) -> Server | None:
    """Return the server of a container, None if none is known."""
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
    name, *rest = words[1:] if command else words or ("pause",)
    make = SERVERS.get(name)
    return None if make is None else make(_flags_of(rest), {v.name: v.value for v in variables})


def _flags_of(args: list[str]) -> Mapping[str, str]:
    """Return the flags of a command line as cobra reads them."""
    found: dict[str, str] = {}
    rest = list(args)
    while rest:
        name, is_set, value = rest.pop(0).lstrip("-").partition("=")
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
