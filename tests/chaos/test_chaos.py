"""The parts of `make chaos`: its link does to bytes what it says, its draws repeat, it counts."""

import argparse
import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from chaos import chaos
from chaos.audit import AuditCounter
from chaos.byte_proxy import Link
from chaos.invariants import INVARIANTS
from chaos.story import Story, stories, tables
from chaos.trouble import KINDS, Deck

PAGE = Path(__file__).parents[2] / "docs/explain/reliability.md"
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Test = Callable[[Link, Ends, Ends], Awaitable[None]]


def linked(test: Test) -> None:
    """Run a test with both ends of a connection by way of a link."""

    async def run() -> None:
        accepted: asyncio.Queue[Ends] = asyncio.Queue()
        server = await asyncio.start_server(lambda *ends: accepted.put_nowait(ends), "127.0.0.1", 0)
        link = Link(server.sockets[0].getsockname()[:2])
        client = await asyncio.open_connection("127.0.0.1", await link.listen())
        ends = await accepted.get()
        try:
            await asyncio.wait_for(test(link, client, ends), 60)
        finally:
            link.close()
            for _, writer in (client, ends):
                writer.close()
            server.close()

    asyncio.run(run())


async def passed(link: Link) -> None:
    """Wait until something has come to a link."""
    while not link.passed:  # noqa: ASYNC110 - it is no part of a test that would set an event
        await asyncio.sleep(0)


def test_a_link_passes_both_ways_and_ends_with_its_client() -> None:
    async def test(link: Link, client: Ends, server: Ends) -> None:
        client[1].write(b"question")
        assert await server[0].readexactly(8) == b"question"
        server[1].write(b"answer")
        assert await client[0].readexactly(6) == b"answer"
        assert link.passed == 14
        client[1].close()
        assert await server[0].read() == b""

    linked(test)


def test_a_dark_link_holds_what_comes_and_passes_it_on_in_order() -> None:
    async def test(link: Link, client: Ends, server: Ends) -> None:
        with link.dark():
            client[1].write(b"first ")
            client[1].write(b"second ")
            await passed(link)
            reading = asyncio.ensure_future(server[0].readexactly(18))
            await asyncio.sleep(0)
            assert not reading.done()
        client[1].write(b"third")
        assert await reading == b"first second third"

    linked(test)


def test_a_slow_link_keeps_the_order() -> None:
    async def test(link: Link, client: Ends, server: Ends) -> None:
        link.delay_s = 0.05
        client[1].write(b"slow ")
        await passed(link)
        link.delay_s = 0
        client[1].write(b"quick")
        assert await server[0].readexactly(10) == b"slow quick"

    linked(test)


def test_a_narrow_link_passes_what_it_held_up_once_it_is_wide() -> None:
    async def test(link: Link, client: Ends, server: Ends) -> None:
        link.bytes_per_s = 0.01
        client[1].write(b"narrow ")
        await passed(link)
        link.widen()
        client[1].write(b"wide")
        assert await server[0].readexactly(11) == b"narrow wide"

    linked(test)


def test_a_cut_passes_a_part_and_ends_both_ends() -> None:
    async def test(link: Link, client: Ends, server: Ends) -> None:
        link.cut_after = 3
        client[1].write(b"question")
        assert await server[0].read() == b"que"
        assert await client[0].read() == b""

    linked(test)


def test_a_reset_is_no_end() -> None:
    async def test(link: Link, client: Ends, server: Ends) -> None:
        link.reset()
        for reader in (client[0], server[0]):
            with pytest.raises(ConnectionResetError):
                await reader.read()

    linked(test)


def test_a_seed_draws_the_same_faults_again_and_each_kind_once_a_round() -> None:
    decks = [Deck(random.Random(5), KINDS) for _ in range(2)]
    one, two = ([deck.deal() for _ in range(3 * len(KINDS))] for deck in decks)
    assert one == two
    for at in range(0, len(one), len(KINDS)):
        assert {each.kind for each in one[at : at + len(KINDS)]} == set(KINDS)
    for blow in one:
        least_s, most_s = KINDS[blow.kind].hold_s
        assert least_s <= blow.hold_s <= most_s


def test_stories_add_up(tmp_path: Path) -> None:
    for seed, took_s, wrong in ((2, 30.0, ""), (10, 4.0, "1: full-00001")):
        story = Story(seed, "small", {"etcd-slow": [took_s]}, Counter({"etcd-slow": 1}))
        story.note({"etcd-slow"}, {"every node is Ready": wrong}, "calm")
        story.write(tmp_path / str(seed))
    lines = tables(stories(tmp_path)).splitlines()
    for line in (
        "| etcd-slow | 2 | 30 | 30 | 30 |",
        "- a: every node is Ready",
        "| etcd-slow | 1/2 |",
        "| etcd-killed | 0/0 |",
        "| 2 | small | green | 1 | 0 |  |",
        "| 10 | small | RED | 1 | 0 |  |",
        "- seed 10: calm: every node is Ready: 1: full-00001 (after etcd-slow)",
    ):
        assert line in lines


@pytest.mark.parametrize("error", [psutil.NoSuchProcess(1), AssertionError("no"), OSError(5, "no")])
def test_what_ends_a_story_early_makes_it_red(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    def fails(_draws: random.Random) -> NoReturn:
        raise error

    monkeypatch.setattr(chaos, "staged", fails)
    options = argparse.Namespace(full=1, lean=1, pods=1, minutes=1, out=tmp_path)
    [wrong] = asyncio.run(chaos.play(options, 7)).wrong
    assert repr(error) in wrong


class Asker:
    prefix = "full"
    user = "system:serviceaccount:kube-system:full"


def audit_line(verb: str, code: int, stage: str = "ResponseComplete", **about: str) -> bytes:
    event = {
        "verb": verb,
        "stage": stage,
        "userAgent": "kubelet/v1.36.3",
        "user": {"username": Asker.user},
        "objectRef": {"resource": "pods", **about},
        "responseStatus": {"code": code},
    }
    return json.dumps(event).encode() + b"\n"


def test_the_audit_log_is_counted_once_and_by_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "audit"

    watches = audit_line("watch", 200, "ResponseStarted") + audit_line("watch", 200)
    last = audit_line("patch", 200, subresource="status")
    log.write_bytes(watches + audit_line("watch", 410) + audit_line("list", 404) + last[:20])
    audit = AuditCounter(log)
    audit.read()
    with log.open("ab") as file:
        file.write(last[20:] + b"torn\n")
    audit.read()
    audit.read()
    assert audit.of(Asker()) == {
        ("WATCH", "pods", 200): 1,
        ("WATCH", "pods", 410): 1,
        ("LIST", "pods", 404): 1,
        ("PATCH", "pods/status", 200): 1,
    }


def test_the_page_has_each_fault_and_each_invariant() -> None:
    page = PAGE.read_text()
    for name in KINDS:
        assert page.count(f"\n| {name} |") == 2, name  # how long it took, and what held
    for name in (*INVARIANTS, chaos.COUNTS, chaos.VERDICT, chaos.CLEAN):
        assert f": {name}\n" in page, name
