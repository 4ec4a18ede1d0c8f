"""Which proxy leads to a server: as client-go finds it.

A kubeconfig's `proxy-url` comes first, and NO_PROXY does not concern it. Else HTTPS_PROXY counts,
but for localhost and what NO_PROXY names.
Source: client-go/rest/config.go, Proxy; golang.org/x/net/http/httpproxy/proxy.go.
Differs: a proxy that speaks TLS itself, or SOCKS, is refused.
"""

import base64
import ipaddress
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, urlsplit

from fleet.errors import SetupError
from fleet.wire.sockets.tunnel import Proxy

DEFAULT_PORT = 80


def proxy_for(
    host: str, port: int, proxy_url: str, environ: Mapping[str, str]
) -> tuple[Proxy, str] | None:
    """Return the proxy and its URL, None for a direct way.

    Raises SetupError for a proxy of a kind that fleet does not speak to.
    """
    if proxy_url:
        return _proxy(proxy_url, "proxy-url")
    for name in ("https_proxy", "HTTPS_PROXY"):
        if url := environ.get(name):
            no_proxy = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
            return None if _goes_around(host, port, no_proxy) else _proxy(url, name)
    return None


def _proxy(text: str, source: str) -> tuple[Proxy, str]:
    url = _split(text)
    if url.scheme != "http":
        raise SetupError(
            f"{source}: a proxy of kind {url.scheme} is not supported ({_shown(url)}); use an HTTP "
            "proxy, http://HOST:PORT"
        )
    try:
        port = url.port or DEFAULT_PORT
    except ValueError as error:
        raise SetupError(f"{source}: {_shown(url)}: {error}") from None
    if not url.hostname:
        raise SetupError(f"{source}: the proxy has no host")
    authorization = b""
    if url.username is not None:
        user = f"{unquote(url.username)}:{unquote(url.password or '')}"
        authorization = b"Basic " + base64.b64encode(user.encode())
    return Proxy(url.hostname, port, authorization), url.geturl()


def _split(text: str) -> SplitResult:
    url = urlsplit(text)
    # As Go: `proxy:3128` has neither scheme nor host.
    return url if "://" in text and url.hostname else urlsplit(f"http://{text}")


def _shown(url: SplitResult) -> str:
    """Return a URL without the password that it may hold."""
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"


def _goes_around(host: str, port: int, no_proxy: str) -> bool:
    """Return whether a server is reached directly. Source: useProxy, init, match."""
    host = host.lower()
    address = _address(host)
    if _is_local(host, address):
        return True
    return any(_matches(each.strip().lower(), host, port, address) for each in no_proxy.split(","))


def _is_local(host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
    return host == "localhost" or (address is not None and address.is_loopback)


def _matches(
    pattern: str,
    host: str,
    port: int,
    address: ipaddress.IPv4Address | ipaddress.IPv6Address | None,
) -> bool:
    if pattern == "*":
        return True
    if "/" in pattern:
        try:
            return address is not None and address in ipaddress.ip_network(pattern, strict=False)
        except ValueError:
            return False
    name, wanted_port = pattern, ""
    if _address(pattern) is None and ":" in pattern:
        name, _, wanted_port = pattern.rpartition(":")
        name = name.strip("[]")
    if not name or wanted_port not in ("", str(port)):
        return False
    own = _address(name)
    if own is not None or address is not None:
        return own == address
    name = name.removeprefix("*")
    return host.endswith(name if name.startswith(".") else f".{name}") or host == name


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
