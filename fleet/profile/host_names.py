"""Names and addresses of hosts, as browsers send them."""

import ipaddress
import re

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


def host_name(text: str) -> str:
    """Return a name or address as browsers send it. Raises ValueError unless it is one."""
    bare = text.removeprefix("[").removesuffix("]").lower()
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        if not NAME.fullmatch(bare):
            raise ValueError(f"{text!r} is no name: leave out scheme, port and path") from None
        return bare
