"""Programs that ask other pods: curl, wget, nc, nslookup.

They are there only where a network is known, see Surroundings.

Each takes the shell and its arguments, and returns its exit code.
Source: curl(1), its exit codes and their texts; wget of busybox, networking/wget.c; nc of OpenBSD;
nslookup of BIND.
Differs: an exchange takes a millisecond, whoever waits in vain waits as long as it was asked to;
redirects are followed within one host; no meter shows progress; options that are not understood
make the command unknown.
"""

import math
import posixpath
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.runtime.http_message import (
    PORT_DIGITS_MAX,
    HttpReply,
    HttpRequest,
    Network,
    Unreachable,
)
from fleet.runtime.shell.syntax import UnknownScriptError

if TYPE_CHECKING:
    from fleet.runtime.shell.builtins import Program
    from fleet.runtime.shell.shell import Shell

TAKES_NS = NS_PER_MS
CONNECT_S = 134
"""How long Linux tries to connect with tcp_syn_retries as it is; others round it."""
WAIT_S_MAX = 1e9
REQUEST_UNITS = 20_000
"""What a request costs, and what the server in another pod does because of it."""
REDIRECTS_MAX = 10
PORTS = {"http": 80, "https": 443}
_CURL_FLAGS = frozenset("sSgqkLfivI")
_CURL_VALUES = {
    "-o": "output",
    "--output": "output",
    "-w": "format",
    "--write-out": "format",
    "-X": "method",
    "--request": "method",
    "-d": "data",
    "--data": "data",
    "--data-binary": "data",
    "-H": "header",
    "--header": "header",
    "-m": "limit",
    "--max-time": "limit",
    "--connect-timeout": "connect",
    "--retry": "retry",
    "--interface": "interface",
}
_CURL_LONG = {
    "--silent": "s",
    "--show-error": "S",
    "--globoff": "g",
    "--insecure": "k",
    "--location": "L",
    "--fail": "f",
    "--include": "i",
    "--head": "I",
}


class _Place(NamedTuple):
    """Where a URL leads."""

    host: str
    port: int
    target: str
    is_tls: bool


def _place(url: str) -> _Place:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError:
        raise UnknownScriptError(url) from None
    if parts.scheme not in PORTS or not parts.hostname:
        raise UnknownScriptError(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return _Place(parts.hostname, port or PORTS[parts.scheme], target, parts.scheme != "http")


def _network(shell: "Shell") -> Network:
    if shell.network is None:
        raise UnknownScriptError("network")
    return shell.network


def _expect(shell: "Shell", found: HttpReply | Unreachable | None) -> None:
    """Take what the network says; of hosts beyond it a script's own command knows nothing."""
    if isinstance(found, Unreachable) and not found.is_refused and not shell.is_whole:
        raise UnknownScriptError("network")


def _ask(shell: "Shell", place: _Place, request: HttpRequest) -> HttpReply | Unreachable:
    """Ask a server, which takes a little."""
    shell.budget.spend(REQUEST_UNITS)
    found = _network(shell).request(place.host, place.port, request, shell.clock_ns)
    _expect(shell, found)
    shell.clock_ns += TAKES_NS
    return found


def _seconds(text: str) -> float:
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds):
        raise UnknownScriptError(text)
    return min(max(seconds, 0.0), WAIT_S_MAX)


# ---- curl ----


class _Curl:
    """What the command line of curl asks for."""

    def __init__(self, args: Sequence[str]) -> None:
        self.flags: set[str] = set()
        self.values: dict[str, str] = {}
        self.headers: dict[str, str] = {}
        self.urls: list[str] = []
        rest = list(args)
        while rest:
            self._take(rest.pop(0), rest)
        if len(self.urls) != 1:
            raise UnknownScriptError("curl")

    def _take(self, arg: str, rest: list[str]) -> None:
        name, is_set, value = arg.partition("=") if arg.startswith("--") else (arg, "", "")
        if name in _CURL_LONG:
            self.flags.add(_CURL_LONG[name])
        elif name in _CURL_VALUES:
            self._set(_CURL_VALUES[name], value if is_set else rest.pop(0) if rest else "")
        elif arg.startswith("--"):
            raise UnknownScriptError(arg)
        elif arg.startswith("-") and len(arg) > 1:
            self._take_letters(arg[1:], rest)
        else:
            self.urls.append(arg)

    def _take_letters(self, letters: str, rest: list[str]) -> None:
        for at, letter in enumerate(letters):
            if letter in _CURL_FLAGS:
                self.flags.add(letter)
                continue
            name = _CURL_VALUES.get(f"-{letter}")
            if name is None:
                raise UnknownScriptError(f"-{letters}")
            self._set(name, letters[at + 1 :] or (rest.pop(0) if rest else ""))
            return

    def _set(self, name: str, value: str) -> None:
        if name == "header":
            key, _, text = value.partition(":")
            self.headers[key.strip().lower()] = text.strip()
        else:
            self.values[name] = value

    def request(self, place: _Place) -> HttpRequest:
        data = self.values.get("data")
        method = "POST" if data is not None else "HEAD" if "I" in self.flags else "GET"
        headers = {
            "host": f"{place.host}:{place.port}",
            "user-agent": "curl/8.11.1",
            "accept": "*/*",
        }
        return HttpRequest(
            self.values.get("method", method),
            place.target,
            (data or "").encode("utf-8", "surrogateescape"),
            {**headers, **self.headers},
            is_tls=place.is_tls,
        )


def _curl(shell: "Shell", args: list[str]) -> int:
    asked = _Curl(args)
    place = _place(asked.urls[0])
    begun_ns = shell.clock_ns
    reply = _ask(shell, place, asked.request(place))
    for _ in range(REDIRECTS_MAX):
        if isinstance(reply, Unreachable) or not reply.location or "L" not in asked.flags:
            break
        if "://" in reply.location:
            place = _place(reply.location)
        else:
            place = place._replace(target=reply.location)
        reply = _ask(shell, place, asked.request(place)._replace(method="GET", body=b""))
    if isinstance(reply, Unreachable):
        return _curl_failed(shell, asked, place, reply, begun_ns)
    if "f" in asked.flags and reply.code >= 400:
        _curl_says(shell, asked, 22, f"The requested URL returned error: {reply.code}")
        return 22
    text = reply.body.decode("utf-8", "surrogateescape")
    if asked.flags & {"i", "I"}:
        head = f"HTTP/1.1 {reply.code}\r\nContent-Type: {reply.kind}\r\n\r\n"
        text = head + ("" if "I" in asked.flags else text)
    target = asked.values.get("output", "-")
    if target == "-":
        shell.print(text)
    elif target != "/dev/null":
        shell.write(target, text)
    _curl_format(shell, asked, reply.code)
    return 0


def _curl_format(shell: "Shell", asked: _Curl, code: int) -> None:
    form = asked.values.get("format", "")
    if form:
        found = form.replace("%{http_code}", f"{code:03}").replace("%{response_code}", f"{code:03}")
        shell.print(found.replace("\\n", "\n"))


def _curl_failed(
    shell: "Shell", asked: _Curl, place: _Place, why: Unreachable, begun_ns: int
) -> int:
    _curl_format(shell, asked, 0)
    if why.is_unknown:
        _curl_says(shell, asked, 6, f"Could not resolve host: {place.host}")
        return 6
    if why.is_refused:
        took = (shell.clock_ns - begun_ns) // NS_PER_MS
        where = f"{place.host} port {place.port}"
        text = f"Failed to connect to {where} after {took} ms: Could not connect to server"
        _curl_says(shell, asked, 7, text)
        return 7
    waits = [_seconds(asked.values[name]) for name in ("limit", "connect") if name in asked.values]
    waited_s = min((each for each in waits if each), default=float(CONNECT_S))
    shell.clock_ns += int(waited_s * NS_PER_S)
    text = f"Connection timed out after {int(waited_s * 1000)} milliseconds"
    _curl_says(shell, asked, 28, text)
    return 28


def _curl_says(shell: "Shell", asked: _Curl, code: int, text: str) -> None:
    if "s" not in asked.flags or "S" in asked.flags:
        shell.complain(f"curl: ({code}) {text}\n")


# ---- wget ----


def _wget(shell: "Shell", args: list[str]) -> int:
    values, flags, urls = _wget_args(args)
    if len(urls) != 1:
        raise UnknownScriptError("wget")
    place = _place(urls[0])
    data = values.get("post-data")
    request = HttpRequest(
        "GET" if data is None else "POST",
        place.target,
        (data or "").encode("utf-8", "surrogateescape"),
        {"host": f"{place.host}:{place.port}", "user-agent": "Wget"},
        is_tls=place.is_tls,
    )
    reply = _ask(shell, place, request)
    is_quiet = "q" in flags
    if isinstance(reply, Unreachable) and reply.is_unknown:
        shell.complain(f"wget: bad address '{place.host}'\n")
        return 1
    where = f"{place.host}:{place.port}"
    if not is_quiet:
        shell.complain(f"Connecting to {where} ({where})\n")
    if isinstance(reply, Unreachable):
        if reply.is_refused:
            shell.complain(
                f"wget: can't connect to remote host ({place.host}): Connection refused\n"
            )
        else:
            shell.clock_ns += int(_seconds(values.get("T", str(CONNECT_S))) * NS_PER_S)
            shell.complain("wget: download timed out\n")
        return 1
    if reply.code >= 400:
        shell.complain(f"wget: server returned error: HTTP/1.1 {reply.code}\n")
        return 1
    if "spider" in flags:
        return 0
    target = values.get("O") or posixpath.basename(urlsplit(place.target).path) or "index.html"
    if "O" not in values and shell.read(target) is not None:
        shell.complain(f"wget: can't open '{target}': File exists\n")
        return 1
    if target == "-" and not is_quiet:
        shell.complain("writing to stdout\n")
    _put(shell, target, reply)
    return 0


def _put(shell: "Shell", target: str, reply: HttpReply) -> None:
    """Write the body of an answer where it is wanted."""
    text = reply.body.decode("utf-8", "surrogateescape")
    if target == "-":
        shell.print(text)
    elif target != "/dev/null":
        shell.write(target, text)


def _wget_args(args: Sequence[str]) -> tuple[Mapping[str, str], set[str], list[str]]:
    values: dict[str, str] = {}
    flags: set[str] = set()
    urls: list[str] = []
    longs = {"--timeout": "T", "--output-document": "O", "--post-data": "post-data"}
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        name, is_set, value = arg.partition("=")
        if arg in {"--spider", "--quiet", "--no-check-certificate"}:
            flags.add({"--spider": "spider", "--quiet": "q"}.get(arg, "k"))
        elif name in longs:
            values[longs[name]] = value if is_set else rest.pop(0) if rest else ""
        elif arg.startswith("--") or arg == "-":
            raise UnknownScriptError(arg)
        elif arg.startswith("-"):
            letters = arg[1:]
            while letters and letters[0] in "qS":
                flags.add(letters[0])
                letters = letters[1:]
            if letters and letters[0] in "OTt":
                values[letters[0]] = letters[1:] or (rest.pop(0) if rest else "")
            elif letters:
                raise UnknownScriptError(arg)
        else:
            urls.append(arg)
    return values, flags, urls


# ---- nc ----


def _nc(shell: "Shell", args: list[str]) -> int:
    flags, wait_s, where = _nc_args(args)
    host, port = where
    network = _network(shell)
    if "u" in flags:
        shell.clock_ns += TAKES_NS
        if "z" in flags:
            return 0
        said = network.datagram(host, port, shell.piped or "", shell.clock_ns)
        shell.clock_ns += int(wait_s * NS_PER_S)  # it waits for more
        shell.print(said or "")
        return 0
    why = network.connect(host, port, shell.clock_ns)
    _expect(shell, why)
    shell.clock_ns += TAKES_NS
    if why is None and "z" in flags:
        if "v" in flags:
            shell.complain(f"Connection to {host} {port} port [tcp/*] succeeded!\n")
        return 0
    if why is None:
        heard = network.stream(host, port, shell.piped or "", shell.clock_ns)
        if "v" in flags:
            shell.complain(f"Connection to {host} {port} port [tcp/*] succeeded!\n")
        shell.print(heard if isinstance(heard, str) else "")
        return 0
    if why.is_unknown:
        text = f'getaddrinfo for host "{host}" port {port}: Name or service not known'
        shell.complain(f"nc: {text}\n")
    elif why.is_refused:
        if "v" in flags:
            text = f"connect to {host} port {port} (tcp) failed: Connection refused"
            shell.complain(f"nc: {text}\n")
    else:
        shell.clock_ns += int((wait_s or CONNECT_S) * NS_PER_S)
        if "v" in flags:
            text = f"connect to {host} port {port} (tcp) timed out: Operation in progress"
            shell.complain(f"nc: {text}\n")
    return 1


def _nc_args(args: Sequence[str]) -> tuple[set[str], float, tuple[str, int]]:
    flags: set[str] = set()
    wait_s = 0.0
    plain: list[str] = []
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        letters = arg[1:] if arg.startswith("-") else ""
        while letters and letters[0] in "vzunt":
            flags.add(letters[0])
            letters = letters[1:]
        if letters and letters[0] == "w":
            wait_s = _seconds(letters[1:] or (rest.pop(0) if rest else ""))
        elif letters:
            raise UnknownScriptError(arg)
        elif not arg.startswith("-"):
            plain.append(arg)
    if len(plain) != 2 or not plain[1].isdecimal() or len(plain[1]) > PORT_DIGITS_MAX:
        raise UnknownScriptError("nc")
    return flags, wait_s, (plain[0], int(plain[1]))


# ---- nslookup ----


def _nslookup(shell: "Shell", args: list[str]) -> int:
    if len(args) != 1 or args[0].startswith("-"):
        raise UnknownScriptError("nslookup")
    server = next(
        (
            line.split()[1]
            for line in (shell.read("/etc/resolv.conf") or "").splitlines()
            if line.startswith("nameserver ")
        ),
        "127.0.0.1",
    )
    address = _network(shell).resolve(args[0])
    shell.clock_ns += TAKES_NS
    shell.print(f"Server:\t\t{server}\nAddress:\t{server}#53\n\n")
    if not address:
        shell.print(f"** server can't find {args[0]}: NXDOMAIN\n\n")
        return 1
    shell.print(f"Name:\t{args[0]}\nAddress: {address}\n\n")
    return 0


NETWORK_PROGRAMS: Mapping[str, "Program"] = {
    "curl": _curl,
    "nc": _nc,
    "nslookup": _nslookup,
    "wget": _wget,
}
