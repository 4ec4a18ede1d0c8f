"""What answers on the ports of a pod."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world.pod_world import container, make_pod, session_of

from fleet.k8s.pods import PortSpec
from fleet.runtime.ports import HEAD_MAX, PortSession, container_of_port
from fleet.runtime.program import HttpReply


def session() -> PortSession:
    return session_of(make_pod())


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


def test_a_port_belongs_to_the_container_that_declares_it() -> None:
    pod = make_pod(
        container("a", ports=(PortSpec(80), PortSpec(53, "UDP"))),
        container("b", ports=(PortSpec(8080),)),
    )
    assert [container_of_port(pod, port) for port in (80, 8080, 53, 1)] == ["a", "b", "a", "a"]


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"web"),
        (b"HEAD /data HTTP/1.1\r\n\r\n", b""),
        (b"POST /any HTTP/1.1\r\nContent-Length: 99999\r\n\r\n" + b"a" * 99_999, b"web"),
    ],
)
def test_requests(request_: bytes, answer: bytes) -> None:
    assert body(request_) == answer


def test_the_head_of_an_answer() -> None:
    found = ask(b"GET /hostname HTTP/1.0\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n")
    assert b"Connection: close" in found


def test_an_answer_ends_the_connection() -> None:
    one = b"GET /%d HTTP/1.1\r\n\r\n"
    found = ask(one % 1 + one % 2, one % 3)
    assert found.count(b"200 OK") == 1
    assert b"Connection: close" in found


@given(st.integers(1, 80))
def test_a_request_may_come_in_pieces(at: int) -> None:
    whole = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 30\r\n\r\n" + b"z" * 30
    assert ask(whole[:at], whole[at:]).endswith(b"\r\n\r\nweb")


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"GET nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * (HEAD_MAX + 9), b"400"),
        (b"GET /" + b"a" * 4 * HEAD_MAX, b"400"),
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


def test_an_answer_is_what_a_program_says() -> None:
    asked = []

    def answer(path: str, now_ns: int) -> HttpReply:
        asked.append((path, now_ns))
        return HttpReply(404, b"no")

    one = PortSession(answer)
    one.write(b"GET /a?b=c HTTP/1.1\r\n\r\n", 7)
    assert one.advance(999, 7).data.startswith(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2")
    assert asked == [("/a", 7)]
