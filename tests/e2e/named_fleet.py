"""`fleet`, on a machine where a variable lists the addresses of `api.test`, as if of a DNS."""

import os
import socket
import sys
from typing import Any

from fleet import background
from fleet.cli import main

NAME = "api.test"
ADDRESSES = "FLEET_E2E_ADDRESSES"


class NamedLoop(background.Loop):
    async def getaddrinfo(self, host: Any, port: Any, **asked: Any) -> Any:
        if host != NAME:
            return await super().getaddrinfo(host, port, **asked)
        listed = os.environ[ADDRESSES].split()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in listed]


if __name__ == "__main__":
    sys.argv[0] = "fleet"
    background.Loop = NamedLoop  # type: ignore[misc]
    main()
