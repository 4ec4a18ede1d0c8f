"""What the servers of agnhost answer: netexec, serve-hostname, porter, nettest, ...

Source: test/images/agnhost: netexec/netexec.go, serve-hostname/serve_hostname.go, porter/porter.go,
nettest/nettest.go, test-webserver/test-webserver.go, liveness/server.go;
k8s.io/component-base/logs for what the lines of their logs begin with.
Differs: /exit and /shutdown of netexec are answered and end nothing; nettest contacts nobody; there
is neither /dial nor /upload, and neither UDP nor SCTP.
"""

import posixpath
import re
from collections.abc import Callable, Mapping

import orjson

from fleet.clock import NS_PER_S
from fleet.k8s.times import rfc3339
from fleet.runtime.http_message import (
    HTML,
    JSON,
    PLAIN,
    HttpReply,
    HttpRequest,
)
from fleet.runtime.servers import Answer, Server, Site

NOT_FOUND = HttpReply(404, b"404 page not found\n")
_ALIVE_NS = 10 * NS_PER_S
_HTML_START = re.compile(
    r"[\t\n\f\r ]*<(?:!--|(?:!DOCTYPE HTML|HTML|HEAD|SCRIPT|IFRAME|H1|DIV|FONT|TABLE|A|STYLE|TITLE"
    r"|B|BODY|BR|P)[ >])",
    re.IGNORECASE,
)
"""What Go takes for HTML. Source: net/http/sniff.go."""
Flags = Mapping[str, str]


def _text(text: str, code: int = 200) -> HttpReply:
    kind = HTML if _HTML_START.match(text) else PLAIN
    return HttpReply(code, text.encode("utf-8", "surrogateescape"), kind)


def _json(value: object, code: int = 200) -> HttpReply:
    return HttpReply(code, orjson.dumps(value))


def _bad(text: str, code: int = 400) -> HttpReply:
    return _text(f"{text}\n", code)


def _integer(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else None


# ---- netexec ----


def _netexec(flags: Flags, _variables: Mapping[str, str]) -> Server:
    port = _integer(flags.get("http-port", "8080")) or 8080
    udp = _integer(flags.get("udp-port", "8081").lstrip("-")) or 8081
    greeting = [f"Started HTTP server on port {port}"]
    if not flags.get("udp-port", "").startswith("-"):
        greeting.append(f"Started UDP server on port  {udp}")
    override = flags.get("http-override", "")

    def answer(site: Site, at: int, request: HttpRequest) -> HttpReply:
        if override:
            request = request._replace(method="GET", target=override, body=b"")
        handler = _NETEXEC.get(request.path, _root)
        return handler(site, at, request)

    return Server(answer, (port,), greeting=tuple(greeting))


def _root(site: Site, _port: int, _request: HttpRequest) -> HttpReply:
    site.log("GET /")
    seconds, rest = divmod(site.wall_ns, NS_PER_S)
    stamp = rfc3339(seconds).decode()
    return _text(f"NOW: {stamp[:10]} {stamp[11:19]}.{rest:09d} +0000 UTC")


def _echo(site: Site, _port: int, request: HttpRequest) -> HttpReply:
    message, code = request.value("msg"), request.value("code")
    site.log(f"GET /echo?msg={message}&code={code}")
    number = _integer(code) if code else 200
    if number is None or not 100 <= number < 1000:
        return _bad(f"argument 'code' must be an integer or empty, got \"{code}\"", 200)
    return _text(message, number)


def _client_ip(site: Site, _port: int, request: HttpRequest) -> HttpReply:
    site.log("GET /clientip")
    return _text(f"{request.client or '127.0.0.1'}:40000")


def _server_port(site: Site, port: int, _request: HttpRequest) -> HttpReply:
    site.log("GET /serverport")
    return _text(str(port))


def _header(site: Site, _port: int, request: HttpRequest) -> HttpReply:
    key = request.value("key")
    if key:
        site.log(f"GET /header?key={key}")
        return _text(request.headers.get(key.lower(), ""))
    site.log("GET /header")
    shown = {name.title(): [value] for name, value in sorted(request.headers.items())}
    return _json(shown)


def _hostname(site: Site, _port: int, request: HttpRequest) -> HttpReply:
    site.log(f"GET {request.path}")
    return _text(site.hostname)


def _healthy(site: Site, _port: int, request: HttpRequest) -> HttpReply:
    site.log(f"GET {request.path}")
    return _text("ok" if request.path == "/readyz" else "")


def _redirect(site: Site, _port: int, request: HttpRequest) -> HttpReply:
    location, code = request.value("location"), request.value("code")
    site.log(f"{request.method} /redirect?msg={location}&code={code}")
    number = _integer(code) if code else 302
    if number is None:
        return _bad(f"argument 'code' must be an integer or empty, got \"{code}\"", 200)
    return HttpReply(number, f'<a href="{location}">Found</a>.\n\n'.encode(), location=location)


def _shell(site: Site, _port: int, request: HttpRequest) -> HttpReply:
    command = request.value("shellCommand", "cmd")
    site.log(f"GET /shell?cmd={command}")
    printed, code = site.run(command)
    output = {"output": printed} if printed else {}
    if code:
        output["error"] = f"exit status {code}"
    site.log(f"Output: map[{' '.join(f'{key}:{value}' for key, value in output.items())}]")
    return _json(output)


_NETEXEC: Mapping[str, Answer] = {
    "/clientip": _client_ip,
    "/echo": _echo,
    "/header": _header,
    "/healthz": _healthy,
    "/hostName": _hostname,
    "/hostname": _hostname,
    "/readyz": _healthy,
    "/redirect": _redirect,
    "/serverport": _server_port,
    "/shell": _shell,
}


# ---- the others ----


def _serve_hostname(flags: Flags, _variables: Mapping[str, str]) -> Server:
    port = _integer(flags.get("port", "9376")) or 9376
    is_raw = flags.get("tcp") == "true"
    is_http = flags.get("http", "true") != "false"

    def answer(site: Site, _port: int, request: HttpRequest) -> HttpReply:
        site.log(f"HTTP request from {request.client or '127.0.0.1'}:40000")
        return _text(site.hostname)

    tcp = (port,) if is_raw or is_http else ()
    return Server(answer, tcp, raw=is_raw, greeting=(f"Serving on port {port}.",))


def _porter(flags: Flags, variables: Mapping[str, str]) -> Server:
    values: dict[int, str] = {}
    for name, value in variables.items():
        for prefix in ("SERVE_PORT_", "SERVE_TCP_PORT_", "SERVE_TLS_PORT_"):
            port = _integer(name.removeprefix(prefix)) if name.startswith(prefix) else None
            if port is not None:
                values[port] = value
    shows_json = flags.get("json-response") == "true"

    def answer(_site: Site, port: int, request: HttpRequest) -> HttpReply:
        if shows_json:
            body = orjson.dumps({"Method": request.method, "Body": values[port]})
            return HttpReply(200, body, JSON)
        return _text(values[port])

    return Server(answer, tuple(values))


def _nettest(flags: Flags, _variables: Mapping[str, str]) -> Server:
    port = _integer(flags.get("port", "8080")) or 8080
    return Server(_answer_nettest, (port,))


def _answer_nettest(site: Site, _port: int, request: HttpRequest) -> HttpReply:
    counts, errors = site.record.counts, site.record.values
    if request.path == "/write":
        try:
            source = str(orjson.loads(request.body)["Source"])
            counts[source] = counts.get(source, 0) + 1
        except (ValueError, KeyError, TypeError):
            errors[str(len(errors))] = f"{site.hostname}: Got request with no source"
        return _text(f'{{"Hostname":"{site.hostname}"}}\n')
    if request.path == "/read":
        state = {
            "Hostname": site.hostname,
            "Sent": None,
            "Received": counts or None,
            "Errors": list(errors.values()) or None,
            "Log": None,
            "StillContactingPeers": True,
        }
        return HttpReply(200, orjson.dumps(state, option=orjson.OPT_INDENT_2))
    return _text("running") if request.path == "/status" else NOT_FOUND


def _test_webserver(flags: Flags, _variables: Mapping[str, str]) -> Server:
    return Server(_answer_file, (_integer(flags.get("port", "80")) or 80,))


def _answer_file(site: Site, _port: int, request: HttpRequest) -> HttpReply:
    text = site.read(posixpath.normpath(request.path))
    if text is None:
        return NOT_FOUND
    if text == "/":
        return HttpReply(200, b"<!doctype html>\n<pre>\n</pre>\n", HTML)
    return _text(text)


def _liveness(_flags: Flags, _variables: Mapping[str, str]) -> Server:
    return Server(_answer_liveness, (8080,))


def _answer_liveness(site: Site, _port: int, request: HttpRequest) -> HttpReply:
    seconds = site.after_ns / NS_PER_S
    if request.path == "/started":
        return _text(f"{seconds}s")
    if request.path == "/healthz":
        is_alive = site.after_ns <= _ALIVE_NS
        return _text("ok") if is_alive else _text(f"error: {seconds}", 500)
    if request.path == "/redirect":
        location = request.value("loc")
        return HttpReply(302, f'<a href="{location}">Found</a>.\n\n'.encode(), location=location)
    return NOT_FOUND


SERVERS: Mapping[str, Callable[[Flags, Mapping[str, str]], Server]] = {
    "liveness": _liveness,
    "netexec": _netexec,
    "nettest": _nettest,
    "porter": _porter,
    "serve-hostname": _serve_hostname,
    "test-webserver": _test_webserver,
}
