"""What answers on the ports of a pod."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world.pod_world import container, make_pod, session_of

from fleet.k8s.pods import PortSpec
from fleet.k8s.streams import PortOutput
from fleet.runtime.http_message import HttpReply
from fleet.runtime.ports import HEAD_MAX, PortSession, container_of_port, listens

FILES = {"/usr/share/nginx/html/index.html": "<h1>hi</h1>", "/data/x.txt": "text\n", "/data": "/"}


def session() -> PortSession:
    return session_of(make_pod(), FILES.get)


def ask(*parts: bytes, ends: bool = False) -> bytes:
    one = session()
    for part in parts:
        assert one.write(part, 0) == len(part)
    if ends:
        one.end(0)
    found = b""
    while True:
        out = one.advance(1000, 0)
        found += out.data
        if not out.more:
            return found


def body(request: bytes) -> bytes:
    return ask(request).partition(b"\r\n\r\n")[2]


AGNHOST = {"image": "registry.k8s.io/e2e-test-images/agnhost:2.53", "args": ("netexec",)}


def test_a_pod_listens_on_what_it_declares_and_on_any_other_port() -> None:
    pod = make_pod(
        container("a", ports=(PortSpec(80), PortSpec(53, "UDP"))),
        container("b", ports=(PortSpec(8080),)),
    )
    assert all(listens(pod, port) for port in (80, 8080, 53, 81))
    assert (container_of_port(pod, 8080), container_of_port(pod, 1)) == ("b", "a")
    assert listens(make_pod(), 4711)


def test_a_known_server_listens_where_it_says() -> None:
    known = container("known", **AGNHOST)
    pod = make_pod(known)
    assert [listens(pod, port) for port in (8080, 81)] == [True, False]
    beside = make_pod(known, container("proxy"))
    assert [listens(beside, port) for port in (8080, 15021)] == [True, True]
    assert container_of_port(beside, 15021) == "proxy"


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"GET /hostname HTTP/1.1\r\n\r\n", b"web"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"<h1>hi</h1>"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", b"ok"),
        (b"GET /echo?msg=a%20b HTTP/1.1\r\n\r\n", b"a b"),
        (b"GET /data/x.txt HTTP/1.1\r\n\r\n", b"text\n"),
        (b"GET /data HTTP/1.1\r\n\r\n", b"404 page not found\n"),
        (b"HEAD /data/x.txt HTTP/1.1\r\n\r\n", b""),
        (b"POST /any HTTP/1.1\r\nContent-Length: 4\r\n\r\nabcd", b"abcd"),
    ],
)
def test_requests(request_: bytes, answer: bytes) -> None:
    assert body(request_) == answer


def test_the_head_of_an_answer() -> None:
    found = ask(b"GET /hostname HTTP/1.0\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n")
    assert b"Connection: close" in found
    assert ask(b"GET /none HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 404 Not Found")


def test_requests_follow_each_other() -> None:
    one = b"GET /echo?msg=%d HTTP/1.1\r\n\r\n"
    assert ask(one % 1 + one % 2).count(b"200 OK") == 2


@given(st.integers(1, 80))
def test_a_request_may_come_in_pieces(at: int) -> None:
    whole = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 30\r\n\r\n" + b"z" * 30
    assert ask(whole[:at], whole[at:]).endswith(b"\r\n\r\n" + b"z" * 30)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"GET nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * (HEAD_MAX + 9), b"431"),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"411"),
    ],
)
def test_what_is_no_good_request(request_: bytes, code: bytes) -> None:
    one = session()
    one.write(request_, 0)
    found = one.advance(9999, 0)
    assert found.data.startswith(b"HTTP/1.1 " + code)
    assert found.is_over


def test_other_bytes_come_back() -> None:
    assert ask(b"\x00\x01hello world") == b"\x00\x01hello world"
    assert ask(b"hi\n", b"there\n") == b"hi\nthere\n"
    assert ask(b"hi", ends=True) == b"hi"


def test_who_does_not_read_is_not_heard_for_ever() -> None:
    one = session()
    taken = sum(one.write(b"x" * 65536, 0) for _ in range(100))
    assert taken == 1 << 20
    assert one.advance(10, 0).more


def test_what_is_no_http_is_bad_for_whoever_speaks_only_that() -> None:
    session = PortSession(lambda _request, _now_ns: HttpReply(), only_http=True)
    session.write(b"hostName\n", 0)
    output = session.advance(9999, 0)
    assert output.data.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert output.is_over


def test_an_answer_that_takes_its_time() -> None:
    session = PortSession(lambda _request, _now_ns: HttpReply(200, b"late", wait_s=5))
    session.write(b"GET / HTTP/1.1\r\n\r\n", 0)
    assert session.advance(9999, 0) == PortOutput(more=True, wait_s=5)
    assert session.advance(9999, 0).data.endswith(b"late")
