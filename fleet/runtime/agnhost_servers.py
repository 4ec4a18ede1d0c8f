"""What the servers of agnhost answer: netexec, serve-hostname, porter, nettest, guestbook, ...

Source: test/images/agnhost: netexec/netexec.go, serve-hostname/serve_hostname.go, porter/porter.go,
nettest/nettest.go, guestbook/guestbook.go, test-webserver/test-webserver.go, liveness/server.go;
k8s.io/component-base/logs for what the lines of their logs begin with.
Differs: /exit and /shutdown of netexec are answered and end nothing; nettest contacts nobody; a
guestbook's replica registers with the first request that it gets; there is no /upload, and no SCTP;
/dial tries 100 times at most.
"""

import posixpath
import re
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

import orjson

from fleet.clock import NS_PER_S
from fleet.k8s.times import rfc3339
from fleet.runtime.agnhost_webhook import conversion_webhook, webhook
from fleet.runtime.http_message import (
    HTML,
    JSON,
    PLAIN,
    PORT_DIGITS_MAX,
    HttpReply,
    HttpRequest,
    Unreachable,
)
from fleet.runtime.servers import Answer, Server, Site

HOPS_MAX = 8
"""A request that servers pass on more often is passed on no more."""
TRIES_MAX = 100
"""Of /dial; one for a request that was passed on."""
NOT_FOUND = HttpReply(404, b"404 page not found\n")
EXPECTATION_FAILED = 417
_ALIVE_NS = 10 * NS_PER_S
_NO_DIAL = "dial tcp {where}: connect: connection refused"
_NO_ANSWER = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
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
    has_udp = not flags.get("udp-port", "").startswith("-")
    greeting = [f"Started HTTP server on port {port}"]
    if has_udp:
        greeting.append(f"Started UDP server on port  {udp}")
    override = flags.get("http-override", "")

    def answer(site: Site, at: int, request: HttpRequest) -> HttpReply:
        if override:
            request = request._replace(method="GET", target=override, body=b"")
        handler = _NETEXEC.get(request.path, _root)
        return handler(site, at, request)

    return Server(
        answer,
        (port,),
        (udp,) if has_udp else (),
        (port,) if flags.get("tls-cert-file") else (),
        (flags.get("tls-cert-file", ""), flags.get("tls-private-key-file", "")),
        greeting=tuple(greeting),
        answer_datagram=_answer_datagram,
    )


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


def _dial(site: Site, _port: int, request: HttpRequest) -> HttpReply:
    """Source: dialHandler."""
    host, port, wanted = (request.value(each) for each in ("host", "port", "request"))
    protocol, tries = request.value("protocol"), request.value("tries")
    site.log(
        f"GET /dial?host={host}&protocol={protocol}&port={port}&request={wanted}&tries={tries}"
    )
    count = _integer(tries) if tries else 1
    if count is None:
        return _bad("tries parameter is invalid.")
    if not wanted:
        return _bad("request parameter not specified. <nil>")
    if protocol.lower() not in {"", "http", "udp"}:
        return _bad(f"unsupported protocol. {protocol}")
    number = _integer(port)
    if not host or number is None:
        return _bad("host and/or port param are invalid.")
    responses: list[str] = []
    errors: list[str] = []
    for _ in range(min(count, 1 if request.hops else TRIES_MAX)):
        if protocol.lower() == "udp":
            said, error = _send(site, host, number, wanted)
        else:
            said, error = fetch(site, request, f"{host}:{number}", wanted)
        (errors if error else responses).append(error or said)
    found = {"responses": responses} if responses and responses[-1] else {}
    return _json({**found, **({"errors": errors} if errors else {})})


def _send(site: Site, host: str, port: int, text: str) -> tuple[str, str]:
    said = site.network.datagram(host, port, text, site.after_ns)
    if said is None:
        where = f"read udp ->{host}:{port}: i/o timeout"
        return "", f"reading from udp connection failed. err:'{where}'"
    return said, ""


def fetch(site: Site, passed: HttpRequest, where: str, request: str) -> tuple[str, str]:
    """Ask another server in the course of a request; return what it says, and what is wrong."""
    host, _, port = where.rpartition(":")
    if not port.isdecimal() or len(port) > PORT_DIGITS_MAX:
        return "", f'parse "http://{where}": invalid port ":{port}" after host'
    asked = HttpRequest(target=f"/{request}", headers={"host": where}, hops=passed.hops + 1)
    if asked.hops > HOPS_MAX:
        return "", f'Get "http://{where}/{request}": {_NO_ANSWER}'
    reply = site.network.request(host, int(port), asked, site.after_ns)
    if isinstance(reply, Unreachable):
        why = _NO_DIAL.format(where=where) if reply.is_refused else _NO_ANSWER
        return "", f'Get "http://{where}/{request}": {why}'
    return reply.body.decode("utf-8", "surrogateescape"), ""


_NETEXEC: Mapping[str, Answer] = {
    "/clientip": _client_ip,
    "/dial": _dial,
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


def _answer_datagram(site: Site, port: int, text: str, client: str) -> str | None:
    """Return what netexec answers over UDP, None for nothing. Source: startUDPServer."""
    said = text.strip().lower()
    if said == "hostname":
        site.log("Sending udp hostName response")
        return site.hostname
    if said.startswith("echo "):
        site.log(f"Echoing {said[5:]} to UDP client {client}")
        return said[5:]
    if said == "clientip":
        site.log(f"Sending clientip back to UDP client {client}")
        return f"{client}:40000"
    if said == "serverport":
        site.log(f"Sending server port to UDP client {port}")
        return str(port)
    if said:
        site.log(f"Unknown UDP command received from {client}: {said}")
    return None


# ---- the others ----


def _serve_hostname(flags: Flags, _variables: Mapping[str, str]) -> Server:
    port = _integer(flags.get("port", "9376")) or 9376
    is_raw = flags.get("tcp") == "true"
    is_http = flags.get("http", "true") != "false"
    udp = (port,) if flags.get("udp") == "true" else ()

    def answer(site: Site, _port: int, request: HttpRequest) -> HttpReply:
        site.log(f"HTTP request from {request.client or '127.0.0.1'}:40000")
        return _text(site.hostname)

    tcp = (port,) if is_raw or is_http else ()
    return Server(
        answer,
        tcp,
        udp,
        raw=is_raw,
        greeting=(f"Serving on port {port}.",),
        answer_datagram=lambda site, _port, _text, _client: site.hostname,
    )


def _porter(flags: Flags, variables: Mapping[str, str]) -> Server:
    values: dict[int, str] = {}
    udp, tls = [], []
    for name, value in variables.items():
        for prefix in ("SERVE_PORT_", "SERVE_TCP_PORT_", "SERVE_TLS_PORT_", "SERVE_UDP_PORT_"):
            port = _integer(name.removeprefix(prefix)) if name.startswith(prefix) else None
            if port is None:
                continue
            if "UDP" in prefix:
                udp.append(port)
                continue
            values[port] = value
            if "TLS" in prefix:
                tls.append(port)
    shows_json = flags.get("json-response") == "true"

    def answer(_site: Site, port: int, request: HttpRequest) -> HttpReply:
        if shows_json:
            body = orjson.dumps({"Method": request.method, "Body": values[port]})
            return HttpReply(200, body, JSON)
        return _text(values[port])

    said = {port: variables[f"SERVE_UDP_PORT_{port}"] for port in udp}
    return Server(
        answer,
        tuple(values),
        tuple(udp),
        tuple(tls),
        answer_datagram=lambda _site, port, _text, _client: said[port],
    )


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


def _guestbook(flags: Flags, _variables: Mapping[str, str]) -> Server:
    port = _integer(flags.get("http-port", "80")) or 80
    backend = flags.get("backend-port", "6379")
    primary = flags.get("replicaof", "")

    def answer(site: Site, _port: int, request: HttpRequest) -> HttpReply:
        if primary and not site.record.is_registered:
            _register(site, request, f"{primary}:{backend}")
        return _answer_guestbook(site, request, backend)

    return Server(answer, (port,))


def _register(site: Site, request: HttpRequest, primary: str) -> None:
    """Take what another one has, and be told what it takes from now on. Source: registerNode."""
    own = site.network.resolve("localhost")
    site.log(f"Registering to primary: {primary}/register?host={own}")
    said, error = fetch(site, request, primary, f"register?host={own}")
    if error:
        site.log(f"encountered error while registering to primary: {error}. Retrying in 1s.")
        return
    site.record.values.update(orjson.loads(said)["data"])
    site.record.is_registered = True
    site.log(f"Registered to node: {primary.rpartition(':')[0]}")


def _answer_guestbook(site: Site, request: HttpRequest, backend: str) -> HttpReply:
    store, replicas = site.record.values, site.record.counts
    key, value = request.value("key"), request.value("value")
    if request.path == "/register":
        host = request.value("host")
        site.log(f"GET /register?host={host}")
        replicas[host] = 1
        site.log(f"Node '{host}' registered.")
        return _json({"data": store})
    if request.path == "/get":
        site.log(f"GET /get?key={key}")
        return _json({"data": store.get(key, "") if key else store})
    if request.path == "/set":
        site.log(f"GET /set?key={key}&value={value}")
        if not key:
            return _bad("cannot set with empty key.")
        store[key] = value
        asked = f"set?{urlencode({'key': key, 'value': value})}"
        for host in replicas:
            _, error = fetch(site, request, f"{host}:{backend}", asked)
            if error:
                text = f"encountered error while propagating to replica '{host}': {error}"
                return _bad(text, EXPECTATION_FAILED)
        return _json({"message": "Updated"})
    return NOT_FOUND if request.path != "/guestbook" else _pass_on(site, request, backend)


def _pass_on(site: Site, request: HttpRequest, backend: str) -> HttpReply:
    command = request.value("cmd").lower()
    key, value = request.value("key"), request.value("value")
    site.log(f"GET /guestbook?cmd={command}&key={key}&value={value}")
    if command not in {"get", "set"}:
        return _bad(f"unsupported cmd: '{command}'")
    if command == "set" and not key:
        return _bad("cannot set with empty key.")
    host = "agnhost-replica" if command == "get" else "agnhost-primary"
    asked = f"{command}?{urlencode({'key': key, 'value': value})}"
    said, error = fetch(site, request, f"{host}:{backend}", asked)
    return _bad(f"encountered error: {error}", EXPECTATION_FAILED) if error else _text(said)


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
    "crd-conversion-webhook": conversion_webhook,
    "guestbook": _guestbook,
    "liveness": _liveness,
    "netexec": _netexec,
    "nettest": _nettest,
    "porter": _porter,
    "serve-hostname": _serve_hostname,
    "test-webserver": _test_webserver,
    "webhook": webhook,
}
