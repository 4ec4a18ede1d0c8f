"""The door before the dashboard: what it lets through, and what it says to the others."""

from collections.abc import Iterable
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fleet.dashboard.door import (
    SAID_TO_BROWSERS,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    Door,
    new_token,
    token_from,
)
from fleet.errors import UsageError

TOKEN = "a-token-that-nobody-guesses"
BEARER = {"HTTP_AUTHORIZATION": f"Bearer {TOKEN}"}
HERE = "127.0.0.1:8089"
READ_AND_WRITE = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT")


class Answer(NamedTuple):
    status: str
    headers: dict[str, str]
    body: str

    @property
    def is_let_in(self) -> bool:
        return self.status == "200 OK" and self.body == "inside"


class Visitor:
    """Somebody before a door, behind which an application opens everything, as Locust's does."""

    def __init__(self, bound: str = "127.0.0.1", hosts: Iterable[str] = (), base: str = "") -> None:
        self.reached: list[str] = []
        self._door = Door(self._inside, TOKEN, bound=bound, hosts=hosts, base=base)

    def _inside(self, environ: Any, start_response: Any) -> list[bytes]:
        self.reached.append(environ["PATH_INFO"])
        opened = [("Access-Control-Allow-Origin", "*"), ("access-control-allow-methods", "POST")]
        start_response("200 OK", [("Content-Type", "text/plain"), *opened])
        return [b"inside"]

    def ask(
        self, path: str = "/", method: str = "GET", query: str = "", **said: str | None
    ) -> Answer:
        found: list[tuple[str, list[tuple[str, str]]]] = []
        environ: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": path}
        environ |= {"QUERY_STRING": query, "wsgi.url_scheme": "http", "HTTP_HOST": HERE, **said}
        environ = {key: value for key, value in environ.items() if value is not None}

        def start(status: str, headers: list[tuple[str, str]], *_: object) -> Any:
            found.append((status, headers))

        body = b"".join(self._door(environ, start))
        [(status, headers)] = found
        assert len(dict(headers)) == len(headers)
        assert not any(name.lower().startswith("access-control") for name, _ in headers)
        assert set(SAID_TO_BROWSERS) <= set(headers)
        return Answer(status, dict(headers), body.decode())


@pytest.mark.parametrize("method", READ_AND_WRITE)
@pytest.mark.parametrize(
    "path", ["/", "/swarm", "/stop", "/stats/requests", "/fleet/history", "/assets/a.js", "/logs"]
)
def test_nothing_is_told_or_done_without_the_token(path: str, method: str) -> None:
    visitor = Visitor()
    wrong: tuple[dict[str, str], ...] = (
        {},
        {"HTTP_AUTHORIZATION": "Bearer "},
        {"HTTP_AUTHORIZATION": f"Basic {TOKEN}"},
        {"HTTP_AUTHORIZATION": f"Bearer {TOKEN}x"},
        {"HTTP_AUTHORIZATION": "Bearer \u00fc\udcff"},
        {"HTTP_X_FLEET_TOKEN": TOKEN[:-1]},
        {"HTTP_COOKIE": f"token={TOKEN}"},
        {"HTTP_COOKIE": "\x00;=;{}"},
        {"query": f"token={TOKEN}x"},
        {"HTTP_UPGRADE": "websocket", "HTTP_CONNECTION": "Upgrade"},
    )
    for said in wrong:
        answer = visitor.ask(path, method, **said)
        assert answer.status == "403 Forbidden", said
        assert "Open the address that fleet printed" in answer.body
        assert answer.headers["Cache-Control"] == "no-store"
    assert visitor.reached == []
    assert visitor.ask(path, method, **BEARER).is_let_in
    assert visitor.ask(path, method, HTTP_X_FLEET_TOKEN=TOKEN).is_let_in


def test_an_address_with_the_token_is_answered_by_a_cookie_and_the_address_without() -> None:
    visitor = Visitor()
    answer = visitor.ask("/stats/report", query=f"theme=dark&token={TOKEN}&download=")
    assert answer.status == "303 See Other"
    assert answer.headers["Location"] == "./report?theme=dark&download="
    assert visitor.reached == []
    [cookie] = SimpleCookie(answer.headers["Set-Cookie"]).values()
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
    assert not cookie["secure"]
    kept = {"HTTP_COOKIE": f"other=1; {cookie.key}={cookie.value}"}
    assert visitor.ask("/swarm", "POST", **kept).is_let_in
    assert visitor.ask("/", "POST", query=f"token={TOKEN}").status == "403 Forbidden"

    behind_tls = visitor.ask(query=f"token={TOKEN}", HTTP_X_FORWARDED_PROTO="https")
    assert behind_tls.headers["Set-Cookie"].endswith("; HttpOnly; SameSite=Strict; Secure")


@pytest.mark.parametrize("path", ["//evil.test/", "/\\evil.test", "/javascript:x", "/a/b/%0d%0aX"])
def test_nobody_is_sent_elsewhere(path: str) -> None:
    sent = Visitor().ask(path, query=f"token={TOKEN}").headers["Location"]
    assert sent.startswith("./")
    assert not set(sent[2:]) & set("/\\:\r\n")


HOSTS_OF_OTHERS = [
    "evil.test",
    "evil.test:8089",
    "127.0.0.1.evil.test",
    "localhost.evil.test",
    "localhost.",
    "evil.test#localhost",
    "localhost@evil.test",
    "evil@localhost",
    "localhost, evil.test",
    "localhost/evil",
    "[::1",
    "[::ffff:7f00:1]",
    "10.1.2.3:8089",
    "0.0.0.0:8089",
    "<script>",
    "",
    None,
]


@pytest.mark.parametrize("host", HOSTS_OF_OTHERS)
@pytest.mark.parametrize("method", READ_AND_WRITE)
def test_a_name_that_is_not_ours_is_refused_with_token_and_all(
    host: str | None, method: str
) -> None:
    visitor = Visitor()
    answer = visitor.ask("/swarm", method, HTTP_HOST=host, **BEARER)
    assert answer.status == "403 Forbidden"
    assert "does not know the name" in answer.body
    assert "<script>" not in answer.body
    assert visitor.reached == []


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:8089", "LOCALHOST:8089"])
def test_our_own_names_are_known(host: str) -> None:
    assert Visitor().ask(HTTP_HOST=host, **BEARER).is_let_in


def test_further_names_are_those_that_were_given() -> None:
    visitor = Visitor("10.0.0.7", hosts=["Fleet.test", "[fd00::1]"])
    for host in ("fleet.test", "FLEET.test:8443", "[fd00::1]:80", "10.0.0.7:8089"):
        assert visitor.ask(HTTP_HOST=host, **BEARER).is_let_in, host
    for host in ("10.0.0.8", "a.fleet.test"):
        assert not visitor.ask(HTTP_HOST=host, **BEARER).is_let_in, host
    everywhere = Visitor("0.0.0.0")  # whichever address it is: no name leads to one
    assert everywhere.ask(HTTP_HOST="10.1.2.3:30080", **BEARER).is_let_in
    assert not everywhere.ask(HTTP_HOST="evil.test", **BEARER).is_let_in
    for wrong in ("https://fleet.test", "fleet.test:443", "", "a b"):
        with pytest.raises(ValueError, match="is no name"):
            Visitor(hosts=[wrong])


@pytest.mark.parametrize("method", READ_AND_WRITE)
@pytest.mark.parametrize(
    "said",
    [
        {"HTTP_ORIGIN": "https://evil.test"},
        {"HTTP_ORIGIN": "null"},
        {"HTTP_ORIGIN": ""},
        {"HTTP_ORIGIN": "http://127.0.0.1:8090"},
        {"HTTP_ORIGIN": "http://localhost:8089"},
        {"HTTP_ORIGIN": f"file://{HERE}"},
        {"HTTP_ORIGIN": f"http://{HERE}.evil.test"},
        {"HTTP_SEC_FETCH_SITE": "cross-site"},
        {"HTTP_SEC_FETCH_SITE": "same-site"},
        {"HTTP_SEC_FETCH_SITE": "cross-site", "HTTP_ORIGIN": f"http://{HERE}"},
    ],
)
def test_a_page_of_another_site_is_refused_with_token_and_all(
    said: dict[str, str], method: str
) -> None:
    visitor = Visitor()
    answer = visitor.ask("/swarm", method, **said, **BEARER)
    assert answer.status == "403 Forbidden"
    assert "A page of another site has asked" in answer.body
    assert visitor.reached == []


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_our_own_page_may_ask(site: str) -> None:
    visitor = Visitor(hosts=["fleet.test"])
    said = {"HTTP_SEC_FETCH_SITE": site, **BEARER}
    assert visitor.ask("/swarm", "POST", HTTP_ORIGIN=f"http://{HERE}", **said).is_let_in
    host = {"HTTP_HOST": "fleet.test", "HTTP_ORIGIN": "https://fleet.test"}  # TLS ends before us
    assert visitor.ask("/swarm", "POST", **host, **said).is_let_in


def test_a_probe_learns_that_it_answers_and_nothing_else() -> None:
    visitor = Visitor("0.0.0.0")
    for method in ("GET", "HEAD"):
        answer = visitor.ask("/healthz", method, HTTP_HOST="10.1.2.3:8089")
        assert (answer.status, answer.body) == ("200 OK", "ok")
    assert visitor.ask("/healthz", "POST").status == "403 Forbidden"
    assert visitor.ask("/healthz/../swarm").status == "403 Forbidden"
    assert visitor.reached == []


def test_below_a_path_the_cookie_is_for_that_path_alone() -> None:
    visitor = Visitor(base="/load/fleet")
    answer = visitor.ask("/load/fleet/", query=f"token={TOKEN}")
    assert answer.headers["Location"] == "./"
    assert "; Path=/load/fleet;" in answer.headers["Set-Cookie"]
    bare = visitor.ask("/load/fleet", **BEARER)  # what a page loads would be beside it
    assert bare.headers["Location"] == "./fleet/"
    assert visitor.ask("/load/fleet/", **BEARER).is_let_in


def test_tokens_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert token_from({}) == token_from({TOKEN_VARIABLE: ""}) == ""
    assert token_from({TOKEN_VARIABLE: TOKEN}) == TOKEN
    assert token_from({TOKEN_FILE_VARIABLE: str(file)}) == TOKEN
    assert token_from({TOKEN_VARIABLE: new_token()}) != token_from({TOKEN_VARIABLE: new_token()})
    for wrong in ("short", TOKEN + " ", TOKEN + "&a=b", "ü" * 20):
        with pytest.raises(UsageError, match=r"a token has 16 to 256 letters"):
            token_from({TOKEN_VARIABLE: wrong})
    file.write_text("")
    with pytest.raises(UsageError, match=rf"\${TOKEN_FILE_VARIABLE}: a token has"):
        token_from({TOKEN_FILE_VARIABLE: str(file)})
    with pytest.raises(UsageError, match="cannot read"):
        token_from({TOKEN_FILE_VARIABLE: str(tmp_path)})
