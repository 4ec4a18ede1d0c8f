import pytest

from fleet.clock import NS_PER_S, Draws
from fleet.k8s.effects import WatchKind
from fleet.k8s.pods import EventType
from fleet.k8s.volumes import ObjectData
from fleet.wire.api.decode_json import decode_list, decode_watch_event
from fleet.wire.api.watch import Next, Reflector, SharedReflector, WatchPhase
from fleet.wire.http2.messages import Failure, Response

DRAWS = Draws(3)
META = b'{"metadata":{"name":"%b","resourceVersion":"%d"}}'
END = b'"annotations":{"k8s.io/initial-events-end":"true"}'
EVENTS = (
    b'{"type":"ADDED","object":' + META % (b"a", 5) + b"}",
    b'{"type":"ADDED","object":' + META % (b"b", 4) + b"}",
    b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7",%b}}}' % END,
    b'{"type":"MODIFIED","object":' + META % (b"a", 8) + b"}",
    b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}',
    b'{"type":"DELETED","object":' + META % (b"b", 10) + b"}",
)
STREAM = b"".join(each + b"\n" for each in EVENTS)
FOUND = [
    (EventType.ADDED, ObjectData("a", "5")),
    (EventType.ADDED, ObjectData("b", "4")),
    (EventType.SYNCED, None),
    (EventType.MODIFIED, ObjectData("a", "8")),
    (EventType.BOOKMARK, None),
    (EventType.DELETED, ObjectData("b", "10")),
]


def opened(kind: WatchKind = WatchKind.CONFIG_MAP) -> Reflector:
    reflector = Reflector(1, kind, "x", "ns")
    reflector.open(DRAWS, 0)
    reflector.is_open = True
    return reflector


def synced() -> Reflector:
    reflector = opened()
    reflector.on_chunk(STREAM, decode_watch_event)
    return reflector


def response(code: int = 200, **fields: object) -> Response:
    return Response(code, b"", 0, 0)._replace(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_a_chunk_may_end_anywhere(cut: int) -> None:
    reflector = opened()
    found = reflector.on_chunk(STREAM[:cut], decode_watch_event)
    found += reflector.on_chunk(STREAM[cut:], decode_watch_event)
    assert found == FOUND
    assert (reflector.version, reflector.phase) == ("10", WatchPhase.STREAM)


def test_initial_events_do_not_move_the_version() -> None:
    reflector = opened()
    reflector.on_chunk(EVENTS[0] + b"\n", decode_watch_event)
    assert reflector.version == ""
    assert reflector.phase is WatchPhase.LIST_STREAM


def test_a_watch_list_that_ends_at_once_becomes_a_list() -> None:
    reflector = opened()
    assert reflector.on_end(response(), DRAWS, NS_PER_S // 2) == Next(0)
    assert not reflector.open(DRAWS, NS_PER_S // 2).stream


@pytest.mark.parametrize("failure", [Failure.RESET, Failure.SILENT])
def test_a_stream_that_breaks_is_an_error(failure: Failure) -> None:
    """As client-go reads it: no end of file, and so an ERROR event. A lost connection is one."""
    reflector = synced()
    later = reflector.on_end(response(0, failure=failure), DRAWS, 400 * NS_PER_S)
    assert 0.8 * NS_PER_S <= later.delay_ns <= 1.6 * NS_PER_S
    path = reflector.open(DRAWS, 402 * NS_PER_S).path.decode()
    assert "resourceVersion=10&" in path
    assert "sendInitialEvents=true" in path


def test_an_expired_version_is_asked_for_once_more_then_given_up() -> None:
    reflector = synced()
    later = reflector.on_error_event(410, DRAWS, 400 * NS_PER_S)
    assert later.expired
    assert later.delay_ns >= 0.8 * NS_PER_S
    path = reflector.open(DRAWS, 402 * NS_PER_S).path.decode()
    assert "resourceVersion=10&" in path
    assert "sendInitialEvents=true" in path
    assert reflector.on_end(response(410), DRAWS, 402 * NS_PER_S) == Next(0, expired=True)
    assert "resourceVersion=" not in reflector.open(DRAWS, 402 * NS_PER_S).path.decode()


@pytest.mark.parametrize(
    ("reflector", "longest_s"),
    [(Reflector(1, WatchKind.PODS, "n-1"), 30), (SharedReflector(-1, WatchKind.PODS, ""), 2)],
    ids=["kubelet", "shared"],
)
def test_back_off_doubles_to_its_longest_and_is_forgotten(
    reflector: Reflector, longest_s: float
) -> None:
    now_ns, delays = 0, []
    for _ in range(8):
        reflector.open(DRAWS, now_ns)
        delay_ns = reflector.on_end(response(0, failure=Failure.DIAL), DRAWS, now_ns).delay_ns
        delays.append(delay_ns / NS_PER_S)
        now_ns += delay_ns
    for delay, base in zip(delays, (0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4), strict=True):
        assert min(base, longest_s) <= delay <= 2 * min(base, longest_s)
    now_ns += 121 * NS_PER_S
    reflector.open(DRAWS, now_ns)
    again = reflector.on_end(response(0, failure=Failure.DIAL), DRAWS, now_ns).delay_ns
    assert again <= 1.6 * NS_PER_S


@pytest.mark.parametrize(("resets_backoff", "asked"), [(True, 40), (False, 15)])
def test_back_off_begins_anew_in_a_long_outage(resets_backoff: bool, asked: int) -> None:  # noqa: FBT001
    """Since 1.36 every two minutes. Source: wait/backoff.go, backoffManager.Step."""
    reflector = Reflector(1, WatchKind.PODS, "n-1")
    reflector.resets_backoff = resets_backoff
    start_ns = now_ns = 50 * NS_PER_S
    delays = []
    while now_ns < start_ns + 600 * NS_PER_S:
        reflector.open(DRAWS, now_ns)
        delays.append(reflector.on_end(response(0, failure=Failure.DIAL), DRAWS, now_ns).delay_ns)
        now_ns += delays[-1]
    assert min(delays[6:]) <= 1.6 * NS_PER_S if resets_backoff else min(delays[6:]) >= 30 * NS_PER_S
    assert abs(len(delays) - asked) <= 6, len(delays)


def test_a_list_has_pages() -> None:
    reflector = Reflector(1, WatchKind.SECRET, "x", "ns")
    reflector.open(DRAWS, 0)
    reflector.on_end(response(422), DRAWS, 0)
    reflector.open(DRAWS, 0)
    page = b'{"metadata":{"resourceVersion":"9","continue":"%b"},"items":[%b]}'
    first = reflector.on_page(page % (b"t", META % (b"a", 1)), decode_list)
    assert first == [(EventType.ADDED, ObjectData("a", "1"))]
    assert b"continue=t" in reflector.open(DRAWS, 0).path
    last = reflector.on_page(page % (b"", META % (b"b", 2)), decode_list)
    assert last == [(EventType.ADDED, ObjectData("b", "2")), (EventType.SYNCED, None)]
    assert (reflector.version, reflector.phase) == ("9", WatchPhase.STREAM)


@pytest.mark.parametrize("code", [429, 503])
def test_retry_after_is_waited_for(code: int) -> None:
    reflector = Reflector(1, WatchKind.PODS, "n-1")
    reflector.open(DRAWS, 0)
    told = response(code, retry_after_s=3)
    assert reflector.on_end(told, DRAWS, 0) == Next(3 * NS_PER_S)
    assert reflector.phase is WatchPhase.LIST_STREAM
    reflector.on_end(response(422), DRAWS, 0)
    reflector.open(DRAWS, 0)
    assert reflector.on_list_failed(told, DRAWS, 0) == Next(3 * NS_PER_S)
    assert not reflector.open(DRAWS, 0).stream


@pytest.mark.parametrize(
    "told",
    [
        Response(429, b"", 0, 0, 0),
        Response(503, b"", 0, 0, 0),
        Response(0, b"", 0, 0, -1, Failure.LOST),
        Response(0, b"", 0, 0, -1, Failure.UNREACHABLE),
    ],
    ids=["429", "503", "lost", "unreachable"],
)
def test_a_request_is_repeated_ten_times_and_then_backs_off(told: Response) -> None:
    """Source: with_retry.go, IsNextRetry. `Retry-After: 0` is a second here.

    Without an answer it counts as a watch that ended. Source: request.go, Watch, NewEmptyWatch.
    """
    reflector = synced()
    reflector.on_end(response(), DRAWS, 399 * NS_PER_S)
    reflector.open(DRAWS, 399 * NS_PER_S)
    for now_s in range(400, 410):
        assert reflector.on_end(told, DRAWS, now_s * NS_PER_S) == Next(NS_PER_S)
        reflector.open(DRAWS, now_s * NS_PER_S)
    later = reflector.on_end(told, DRAWS, 410 * NS_PER_S)
    if told.code:
        assert 0.8 * NS_PER_S <= later.delay_ns <= 1.6 * NS_PER_S
    else:
        assert (later, reflector.phase) == (Next(0), WatchPhase.STREAM)
    reflector.open(DRAWS, 412 * NS_PER_S)
    assert reflector.on_end(told, DRAWS, 412 * NS_PER_S) == Next(NS_PER_S)  # another request


def test_repeats_of_a_list_are_counted_until_a_page_comes() -> None:
    reflector = Reflector(1, WatchKind.PODS, "n-1")
    reflector.open(DRAWS, 0)
    reflector.on_end(response(422), DRAWS, 0)
    told = response(503, retry_after_s=0)
    page = b'{"metadata":{"resourceVersion":"9","continue":"t"},"items":[]}'
    for repeats in (9, 10):
        for _ in range(repeats):
            reflector.open(DRAWS, 0)
            assert reflector.on_list_failed(told, DRAWS, 0) == Next(NS_PER_S)
        if repeats == 9:
            reflector.on_page(page, decode_list)
    assert reflector.on_list_failed(told, DRAWS, 0).delay_ns >= 0.8 * NS_PER_S
    assert reflector.phase is WatchPhase.IDLE


def test_a_connection_that_cannot_be_made_ends_a_list_too() -> None:
    """Source: reflector.go: only a refused connection is worth asking for the same again."""
    reflector = synced()
    reflector.on_end(response(), DRAWS, 400 * NS_PER_S)
    reflector.open(DRAWS, 400 * NS_PER_S)
    unusable = response(0, failure=Failure.UNUSABLE)
    assert reflector.on_end(unusable, DRAWS, 400 * NS_PER_S).delay_ns >= 0.8 * NS_PER_S
    assert reflector.open(DRAWS, 402 * NS_PER_S).stream
    assert reflector.phase is WatchPhase.LIST_STREAM
    assert reflector.on_end(unusable, DRAWS, 402 * NS_PER_S) == Next(0)
    assert not reflector.open(DRAWS, 402 * NS_PER_S).stream
    assert reflector.on_list_failed(unusable, DRAWS, 402 * NS_PER_S).delay_ns >= 1.6 * NS_PER_S


@pytest.mark.parametrize("code", [410, 504])
def test_a_list_whose_version_is_refused_asks_at_once_for_any(code: int) -> None:
    """Source: reflector.go, list: isExpiredError, isTooLargeResourceVersionError."""
    reflector = Reflector(1, WatchKind.CSI_DRIVERS, "")
    reflector.lists_first = True
    reflector.open(DRAWS, 0)
    reflector.on_page(b'{"metadata":{"resourceVersion":"9"},"items":[]}', decode_list)
    reflector.on_error_event(410, DRAWS, 0)
    assert reflector.open(DRAWS, NS_PER_S).path.endswith(b"csidrivers?resourceVersion=9")
    assert reflector.on_list_failed(response(504), DRAWS, NS_PER_S).delay_ns  # too busy
    assert reflector.open(DRAWS, NS_PER_S).path.endswith(b"csidrivers?resourceVersion=9")
    refused = response(code, body=b'{"causes":[{"reason":"ResourceVersionTooLarge"}]}')
    assert reflector.on_list_failed(refused, DRAWS, NS_PER_S) == Next(0)
    assert reflector.open(DRAWS, NS_PER_S).path.endswith(b"csidrivers")
    assert reflector.on_list_failed(refused, DRAWS, NS_PER_S).delay_ns
    assert reflector.open(DRAWS, 4 * NS_PER_S).path.endswith(b"csidrivers")


def test_an_error_ends_what_is_read() -> None:
    reflector = opened()
    error = b'{"type":"ERROR","object":{"code":410}}\n'
    found = reflector.on_chunk(error + STREAM, decode_watch_event)
    assert found == [(EventType.ERROR, 410)]


def test_nothing_opens_after_stop() -> None:
    reflector = opened()
    reflector.stop()
    with pytest.raises(AssertionError):
        reflector.open(DRAWS, 0)


@pytest.mark.parametrize(
    ("failure", "of_watch", "of_list"),
    [("LOST", True, True), ("UNREACHABLE", True, False), ("SILENT", False, True)],
)
def test_what_is_repeated_without_an_answer(failure: str, of_watch: bool, of_list: bool) -> None:  # noqa: FBT001
    """Source: client-go/rest/request.go, isErrRetryableFunc of Watch and of request."""
    for lists_first, is_repeated in ((False, of_watch), (True, of_list)):
        reflector = Reflector(1, WatchKind.PODS, "n-1")
        reflector.lists_first = lists_first
        reflector.open(DRAWS, 0)
        phase, end = reflector.phase, (reflector.on_end, reflector.on_list_failed)[lists_first]
        later = end(response(0, failure=Failure[failure]), DRAWS, 0)
        assert (later == Next(NS_PER_S)) == is_repeated == (reflector.phase is phase)
