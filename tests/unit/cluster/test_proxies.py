"""Which proxy leads to a server. Source: golang.org/x/net/http/httpproxy/proxy_test.go."""

import pytest

from fleet.cluster.kubeconfig import proxy_for
from fleet.errors import SetupError
from fleet.wire.sockets.connection import Proxy, refusal_of

PROXY = "http://proxy:3128"


def found(host: str, environ: dict[str, str], url: str = "", port: int = 6443) -> str:
    proxy = proxy_for(host, port, url, environ)
    return "" if proxy is None else str(proxy[0])


@pytest.mark.parametrize(
    ("environ", "proxy"),
    [
        ({}, ""),
        ({"HTTPS_PROXY": PROXY}, "proxy:3128"),
        ({"https_proxy": PROXY, "HTTPS_PROXY": "http://other"}, "proxy:3128"),
        ({"HTTPS_PROXY": "proxy"}, "proxy:80"),
        ({"HTTPS_PROXY": "proxy:3128"}, "proxy:3128"),
        ({"HTTPS_PROXY": "http://[::1]:3128"}, "[::1]:3128"),
        ({"HTTP_PROXY": PROXY}, ""),
        ({"ALL_PROXY": PROXY}, ""),
    ],
)
def test_the_environment_names_a_proxy(environ: dict[str, str], proxy: str) -> None:
    assert found("api.example", environ) == proxy


@pytest.mark.parametrize(
    ("no_proxy", "host", "is_direct"),
    [
        ("", "localhost", True),
        ("", "127.0.0.1", True),
        ("", "::1", True),
        ("*", "api.example", True),
        ("other, api.example", "api.example", True),
        ("example", "api.example", True),
        (".example", "api.example", True),
        ("*.example", "api.example", True),
        (".api.example", "api.example", False),
        ("pi.example", "api.example", False),
        ("api.example:6443", "api.example", True),
        ("api.example:443", "api.example", False),
        ("API.Example", "api.EXAMPLE", True),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3:6443", "10.1.2.3", True),
        ("10.1.2.3:1", "10.1.2.3", False),
        ("fd00::/8", "fd00::1", True),
        ("[fd00::1]:6443", "fd00::1", True),
        ("fd00::1", "fd00::1", True),
        ("x/y,:6443,", "api.example", False),
    ],
)
def test_no_proxy_names_who_is_reached_directly(
    no_proxy: str, host: str, *, is_direct: bool
) -> None:
    environ = {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}
    assert (found(host, environ) == "") is is_direct
    assert found(host, environ, "http://own:1") == "own:1"  # a kubeconfig's is never gone around


@pytest.mark.parametrize("url", ["socks5://u:secret@proxy:1080", "https://proxy"])
@pytest.mark.parametrize("source", ["proxy-url", "HTTPS_PROXY"])
def test_another_kind_of_proxy_is_refused_by_name(url: str, source: str) -> None:
    environ = {source: url} if source == "HTTPS_PROXY" else {}
    with pytest.raises(SetupError, match=f"^{source}: ") as caught:
        proxy_for("api.example", 6443, url if source == "proxy-url" else "", environ)
    assert "secret" not in str(caught.value)


def test_a_tunnel_is_asked_for_with_the_password_of_the_url() -> None:
    proxy = proxy_for("a", 1, "http://me:pass%20word@proxy:3128", {})
    assert proxy is not None
    assert proxy[0].connect(b"a:1") == (
        b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nProxy-Authorization: Basic bWU6cGFzcyB3b3Jk\r\n\r\n"
    )
    assert Proxy("p", 1).connect(b"a:1") == b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", ""),
        (b"HTTP/1.0 200 Connection established\r\nA: b\r\n\r\n", ""),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "the proxy answered 502 Bad Gateway to CONNECT"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "the proxy answered what is not HTTP to CONNECT"),
    ],
)
def test_what_a_proxy_answers(reply: bytes, why: str) -> None:
    assert refusal_of(reply) == why
