"""What kubeconfig files of users say: one context of several, and the proxy that leads to a server.

For the processes of Locust too, so nothing here imports the client of the API server.
Source: k8s.io/client-go/tools/clientcmd/loader.go, ClientConfigLoadingRules.Load and
ResolveLocalPaths: of a name that several files have the first counts, and relative paths are
relative to the file that has them. A kubeconfig's `proxy-url` comes first, and NO_PROXY does not
concern it; else HTTPS_PROXY counts, but for localhost and what NO_PROXY names:
client-go/rest/config.go, Proxy; golang.org/x/net/http/httpproxy/proxy.go.
Differs: a proxy that speaks TLS itself, or SOCKS, is refused.
"""

import base64
import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from fleet.errors import SetupError
from fleet.profile.yaml_text import read_document
from fleet.wire.sockets.connection import Proxy

Entry = dict[str, Any]

FILE_KEYS = {
    "cluster": ("certificate-authority",),
    "user": ("client-certificate", "client-key", "tokenFile"),
}


def current_context(paths: Sequence[Path]) -> str:
    """Return the context that is chosen when nobody names one. Raises KeyError if none is."""
    for path in paths:
        content = _content(path)
        if content.get("current-context"):
            return str(content["current-context"])
    raise KeyError("current-context")


def only_context(paths: Sequence[Path], context: str) -> Entry:
    """Return a kubeconfig that has a context, its cluster and its user, and nothing else.

    Raises KeyError for a context that is in none of the files.
    """
    chosen = _find(paths, "context", context)
    described = chosen["context"]
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "contexts": [chosen],
        "clusters": [_find(paths, "cluster", described["cluster"])],
        "users": [_find(paths, "user", described["user"])] if described.get("user") else [],
    }


def _find(paths: Sequence[Path], kind: str, name: str) -> Entry:
    for path, entry in _entries(paths, f"{kind}s"):
        if entry.get("name") == name:
            return {"name": name, kind: _resolved(entry.get(kind) or {}, kind, path.parent)}
    raise KeyError(name)


def _entries(paths: Sequence[Path], key: str) -> Iterator[tuple[Path, Entry]]:
    for path in paths:
        content = _content(path)
        for entry in content.get(key) or ():
            yield path, entry


def _content(path: Path) -> Entry:
    content = read_document(path.read_bytes())
    return content if isinstance(content, dict) else {}


def _resolved(described: Entry, kind: str, base: Path) -> Entry:
    """Make the paths of an entry absolute."""
    resolved = dict(described)
    for key in FILE_KEYS.get(kind, ()):
        if resolved.get(key):
            resolved[key] = str((base / resolved[key]).absolute())
    plugin = resolved.get("exec")
    if plugin and "/" in plugin.get("command", ""):
        resolved["exec"] = {**plugin, "command": str((base / plugin["command"]).absolute())}
    return resolved


# ---- proxies ----

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


def _is_local(host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
    return host == "localhost" or (address is not None and address.is_loopback)


def _goes_around(host: str, port: int, no_proxy: str) -> bool:
    """Return whether a server is reached directly. Source: useProxy, init, match."""
    host = host.lower()
    address = _address(host)
    if _is_local(host, address):
        return True
    return any(_matches(each.strip().lower(), host, port, address) for each in no_proxy.split(","))


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
