"""A partition against a real TLS server: what is cut off, what is not, and what comes back."""

from test_transport import GET, SILENT, WATCH, Harness, S, on_a_peer

from fleet.wire.http2.messages import Cut, Failure

pytest_plugins = ("peer_certificate",)


@on_a_peer()
async def test_a_reset_ends_what_is_open_and_refuses_what_is_new(harness: Harness) -> None:
    harness.send(WATCH, "w")
    await harness.opened(1)
    harness.transport.cut(1, Cut.RESET)
    answer = await harness.answer("w")
    assert answer.failure is Failure.LOST
    assert answer.detail == "connection reset by peer"
    harness.send(GET, "new")
    answer = await harness.answer("new")
    assert answer.failure is Failure.DIAL
    assert "connection refused" in answer.detail
    assert len(harness.peer.connections) == 1
    harness.transport.cut(1, None)
    harness.send(GET, "again")
    assert (await harness.answer("again")).code == 200


@on_a_peer()
async def test_what_a_black_hole_keeps_passes_once_it_is_over(harness: Harness) -> None:
    harness.send(WATCH, "w")
    await harness.opened(1)
    harness.transport.cut(1, Cut.BLACK_HOLE)
    harness.send(GET, "late")
    harness.transport.flush()
    for _ in range(3):
        harness.sweep(5)
    assert harness.responses() == []
    assert harness.stats.connections == 1
    assert not harness.transport.is_asking()  # no end of a run waits for it
    harness.transport.cut(1, None)
    assert harness.transport.is_asking()
    assert (await harness.answer("late")).code == 200
    assert not harness.transport.is_asking()  # but for the watch
    assert len(harness.peer.connections) == 1  # the same one, and its watch goes on


@on_a_peer()
async def test_a_connection_in_a_black_hole_is_given_up_and_dials_hang(harness: Harness) -> None:
    harness.send(WATCH, "w")
    await harness.opened(1)
    harness.transport.cut(1, Cut.BLACK_HOLE)
    harness.sweep(31)
    assert harness.responses() == []
    harness.sweep(16)
    assert (await harness.answer("w")).failure is Failure.SILENT
    harness.send(GET, "lost")
    harness.sweep(29)
    assert harness.responses() == []
    harness.sweep(2)
    answer = await harness.answer("lost")
    assert answer.failure is Failure.UNREACHABLE
    assert answer.detail.endswith("connect timed out")
    harness.send(GET, "hangs")
    harness.transport.flush()
    harness.transport.cut(1, None)
    assert (await harness.answer("hangs")).code == 200
    assert len(harness.peer.connections) == 2


@on_a_peer()
async def test_only_the_identity_that_is_named_is_cut_off(harness: Harness) -> None:
    harness.transport.open_pool(2)
    harness.send(WATCH, "one", pool=1)
    harness.send(WATCH, "two", pool=2)
    await harness.opened(2)
    harness.transport.cut(1, Cut.BLACK_HOLE)
    harness.send(GET, "held", pool=1)
    harness.send(GET, "passes", pool=2)
    assert (await harness.answer("passes")).code == 200
    harness.transport.cut(1, Cut.RESET)  # harder: what hung ends
    answers = await harness.answers(2)
    assert {answers[each].failure for each in ("one", "held")} <= {Failure.LOST, Failure.DIAL}
    harness.transport.hang_up(1)  # as a kubelet that is killed does
    harness.send(GET, "refused", pool=1)
    assert (await harness.answer("refused")).failure is Failure.DIAL


@on_a_peer()
async def test_a_request_in_a_black_hole_ends_at_its_time_out(harness: Harness) -> None:
    harness.send(WATCH, "w")
    await harness.opened(1)
    harness.send(SILENT._replace(timeout_ns=10 * S), "asked")
    harness.transport.cut(1, Cut.BLACK_HOLE)
    harness.sweep(11)
    assert (await harness.answer("asked")).failure is Failure.TIMEOUT
    harness.transport.cut(1, None)
    harness.send(GET, "next")
    assert (await harness.answer("next")).code == 200
