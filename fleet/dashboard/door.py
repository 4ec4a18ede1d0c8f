"""The door before every route of the dashboard: who may come in, and from which page.

It wraps the whole WSGI application, so that no route, static file, error page or upgrade request is
next to it, from any source. A request passes three checks, in this order:

    1. the name that it was sent to is one of ours: a page that lets its site's name lead here (DNS
       rebinding) is of our origin to the browser, and only that name betrays it
    2. no page of another site sent it: Origin is our own, Sec-Fetch-Site is not of another site.
       Another port of the same machine is another site, too
    3. it carries the token: `?token=` once, which is answered by a cookie and the address without
       it; that cookie; or, from a script, a header

/healthz is answered before all of them, with two bytes that say nothing.

Source: jupyter_server/auth/login.py and base/handlers.py: the token in the address, the cookie.
"""

import hashlib
import hmac
import html
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from fleet.errors import UsageError
from fleet.k8s.addresses import is_ip
from fleet.profile.host_names import NAME, host_name
from fleet.profile.secret_variables import DASHBOARD_TOKEN_VARIABLE

TOKEN_VARIABLE = DASHBOARD_TOKEN_VARIABLE
TOKEN_FILE_VARIABLE = "FLEET_DASHBOARD_TOKEN_FILE"  # noqa: S105 - a name
HEALTH = "/healthz"
TOKEN_BYTES = 24
LOOPBACKS = ("localhost", "127.0.0.1", "::1")
EVERYWHERE = ("", "*", "0.0.0.0", "::")  # noqa: S104 - recognized, not bound
FOREIGN_SITES = ("cross-site", "same-site")
READS = ("GET", "HEAD")
SAID_TO_BROWSERS = (
    ("X-Frame-Options", "DENY"),  # a click into a frame would be our own page's
    ("Content-Security-Policy", "frame-ancestors 'none'"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "same-origin"),  # the first address has the token
    ("X-Content-Type-Options", "nosniff"),
)

_TOKEN = re.compile(r"[A-Za-z0-9_.~-]{16,256}")
_HOST = re.compile(rf"({NAME.pattern}|\[[0-9A-Fa-f:.]+\])(:[0-9]{{1,5}})?")
_Headers = list[tuple[str, str]]

REFUSED = """<!doctype html><html lang="en"><meta charset="utf-8"><title>fleet: refused</title>
<body style="font:16px system-ui,sans-serif;max-width:40rem;margin:4rem auto;padding:0 1rem">
<h1>This dashboard is closed</h1><p>{reason}</p></body></html>
"""
WITHOUT_KEY = (
    "It needs a token. Open the address that fleet printed, which ends with <code>?token=...</code>"
    "; a script sends the header <code>Authorization: Bearer TOKEN</code>. In a cluster, the notes "
    "of the Helm release say how to read the token."
)
NOT_OUR_NAME = (
    "This dashboard does not know the name <code>{host}</code>. If it is yours, add "
    "<code>--dashboard-host {host}</code> (Helm: <code>locust.ingress.host</code> or "
    "<code>locust.hosts</code>)."
)
OTHER_SITE = "A page of another site has asked for this, and nothing was done."
OTHER_SITE_LINK = ' If you have followed a link that you trust: <a href="">open it here</a>.'


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def token_from(environ: Mapping[str, str]) -> str:
    """Return the token that a variable, or the file that one names, gives; "" without one.

    Raises UsageError for one that is short, that an address cannot carry, or that cannot be read.
    """
    token, source = environ.get(TOKEN_VARIABLE, ""), f"${TOKEN_VARIABLE}"
    if not token and (name := environ.get(TOKEN_FILE_VARIABLE, "")):
        source = f"${TOKEN_FILE_VARIABLE}"
        try:
            token = Path(name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{source}: cannot read {name}: {error}") from error
    elif not token:
        return ""
    if not _TOKEN.fullmatch(token):
        raise UsageError(f"{source}: a token has 16 to 256 letters, digits, or characters of -._~")
    return token


class Door:
    """A WSGI application that lets a request through to another one, or refuses it."""

    def __init__(
        self, inside: WSGIApplication, token: str, *, bound: str, hosts: Iterable[str], base: str
    ) -> None:
        """Take names as `host_name` does. Raises ValueError."""
        assert _TOKEN.fullmatch(token), len(token)
        self._inside = inside
        self._token = token.encode()
        self._is_everywhere = bound in EVERYWHERE
        ours = () if self._is_everywhere else (bound,)
        self._hosts = frozenset(map(host_name, (*LOOPBACKS, *ours, *hosts)))
        self._base = base
        # Cookies know no ports: two dashboards of one machine must not have one name.
        self._cookie = f"fleet-{hashlib.sha256(self._token).hexdigest()[:12]}"

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request, or have it answered."""
        path, method = environ.get("PATH_INFO", ""), environ.get("REQUEST_METHOD", "")
        if path == HEALTH and method in READS:
            start_response("200 OK", _headers("text/plain", 2))
            return [b"ok"]
        reason = self._objection(environ)
        if reason:
            page = REFUSED.format(reason=reason).encode()
            start_response("403 Forbidden", _headers("text/html; charset=utf-8", len(page)))
            return [page]
        query = parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        kept = [(key, value) for key, value in query if key != "token"]
        if len(kept) < len(query) or (self._base and path == self._base):
            return self._send_on(environ, kept, start_response)
        return self._inside(environ, _closed(start_response))

    def _objection(self, environ: WSGIEnvironment) -> str:
        """Return why a request is refused, as HTML; "" if it is not."""
        host = environ.get("HTTP_HOST", "")
        if not self._is_ours(host):
            return NOT_OUR_NAME.format(host=html.escape(host) or "?")
        origin = environ.get("HTTP_ORIGIN")
        is_foreign = origin is not None and not _is_same(origin, host)
        if is_foreign or environ.get("HTTP_SEC_FETCH_SITE", "") in FOREIGN_SITES:
            is_visit = origin is None and environ.get("REQUEST_METHOD") in READS
            return OTHER_SITE + (OTHER_SITE_LINK if is_visit else "")
        shown = (each.encode(errors="replace") for each in self._shown(environ))
        return "" if any(hmac.compare_digest(each, self._token) for each in shown) else WITHOUT_KEY

    def _is_ours(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        try:
            name = host_name(found[1] if found else "")
        except ValueError:
            return False
        # Bound to every address, we do not know them; and no name can be made to lead to one.
        return name in self._hosts or (self._is_everywhere and is_ip(name))

    def _shown(self, environ: WSGIEnvironment) -> list[str]:
        """Return what a request shows as tokens."""
        shown = [environ.get("HTTP_X_FLEET_TOKEN", "")]
        scheme, _, given = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() == "bearer":
            shown.append(given.strip())
        try:
            morsel = SimpleCookie(environ.get("HTTP_COOKIE", "")).get(self._cookie)
        except CookieError:
            morsel = None
        if morsel is not None:
            shown.append(morsel.value)
        if environ.get("REQUEST_METHOD") in READS:
            query = parse_qsl(environ.get("QUERY_STRING", ""))
            shown += [value for key, value in query if key == "token"]
        return shown

    def _send_on(
        self, environ: WSGIEnvironment, query: list[tuple[str, str]], start_response: StartResponse
    ) -> list[bytes]:
        """Set the cookie and send the browser to the address without the token.

        The address is relative: a proxy may have cut the front of ours off.
        """
        path = environ["PATH_INFO"].encode("latin-1")
        target = "./" + quote(path.rpartition(b"/")[2])
        if self._base and environ["PATH_INFO"] == self._base:
            target += "/"  # or what the page loads by relative addresses would be next to it
        if query:
            target += f"?{urlencode(query)}"
        scheme = environ.get("HTTP_X_FORWARDED_PROTO") or environ.get("wsgi.url_scheme", "")
        cookie = f"{self._cookie}={self._token.decode()}; Path={self._base or '/'}"
        cookie += "; HttpOnly; SameSite=Strict" + ("; Secure" if scheme.startswith("https") else "")
        headers = [("Location", target), ("Set-Cookie", cookie)]
        start_response("303 See Other", [*_headers("text/plain", 0), *headers])
        return []


def _headers(content_type: str, length: int) -> _Headers:
    kept = ("Cache-Control", "no-store")
    about = [("Content-Type", content_type), ("Content-Length", str(length)), kept]
    return [*about, *SAID_TO_BROWSERS]


def _closed(start_response: StartResponse) -> StartResponse:
    """Return one that opens no answer to other sites: Locust opens all of them."""

    def start(status: str, headers: _Headers, *more: Any) -> Callable[[bytes], object]:
        ours = [each for each in headers if not each[0].lower().startswith("access-control-")]
        return start_response(status, [*ours, *SAID_TO_BROWSERS], *more)

    return start


def _is_same(origin: str, host: str) -> bool:
    """Return whether an Origin is the Host, whose scheme a proxy before us may have changed."""
    scheme, _, named = origin.lower().partition("://")
    return scheme in ("http", "https") and named == host.lower()
