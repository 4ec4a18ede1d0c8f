"""The socket of a run on a real file system: orders in, answers out, and how it is found."""

import asyncio
import os
import platform
import stat
from pathlib import Path
from typing import Any

import orjson
import pytest

from fleet.errors import SetupError, UsageError
from fleet.run.cli_options import fault_options, whom_options
from fleet.run.control_socket import (
    SOCKET,
    Listed,
    ask,
    find_run,
    heal,
    open_socket,
    order_of,
    process_mark,
    row_of,
    running,
)

GIVEN: dict[str, object] = dict.fromkeys(
    (
        *("selector", "zone", "nodes", "share"),
        *("for_", "by", "every", "component", "mode", "heartbeats", "reason", "message"),
        *("resource", "count", "condition", "status"),
    )
)


async def echo(order: dict[str, Any]) -> dict[str, Any]:
    if order.get("do") == "fail":
        return {"error": "no such thing", "code": 2}
    return {"order": order}


async def test_an_order_reaches_the_run_however_deep_its_directory_lies(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 100) / ("e" * 100)
    directory.mkdir(parents=True)

    def _short(path: Path) -> str:
        link = tmp_path / "s"
        link.symlink_to(path)
        return str(link / SOCKET)

    async with open_socket(directory, echo):
        mode = (directory / SOCKET).stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
        assert await ask(directory, {"do": "list"}) == {"order": {"do": "list"}}
        with pytest.raises(UsageError, match="no such thing"):
            await ask(directory, {"do": "fail"})
        reader, writer = await asyncio.open_unix_connection(_short(directory))
        writer.write(b"[1, 2\n")
        assert b"an order is one JSON object" in await reader.readline()
        writer.close()
    assert not (directory / SOCKET).exists()
    with pytest.raises(SetupError, match="no fleet runs in"):
        await ask(directory, {"do": "list"})


async def test_a_socket_that_a_killed_run_left_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / SOCKET).touch()
    async with open_socket(tmp_path, echo):
        assert await ask(tmp_path, {}) == {"order": {}}


@pytest.fixture(autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide the fleets that run on this machine; return where those of the test are listed."""
    home = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    return home / "fleet" / "running"


async def test_a_run_is_found_wherever_its_directory_is(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from another folder; only its user may read where it is."""

    directory, here = tmp_path / "elsewhere", tmp_path / "here/runs/b"
    for path in (directory, here, tmp_path / "here/runs/dead"):
        path.mkdir(parents=True)
    (tmp_path / "here/runs/dead" / SOCKET).touch()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(SetupError, match="no fleet of yours runs"):
        find_run(None)
    async with open_socket(directory, echo, Listed(directory, "r", 5)):
        assert running() == [Listed(directory, "r", 5)]
        assert find_run(None) == directory
        assert await ask(find_run(None), {"do": "list"}) == {"order": {"do": "list"}}
        async with open_socket(here, echo):
            with pytest.raises(UsageError, match="several fleets run"):
                find_run(None)
            assert find_run(here) == here
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert not list(state.iterdir())


async def test_a_run_that_is_both_listed_and_beside_us_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/a").mkdir(parents=True)
    async with open_socket(Path("runs/a"), echo, Listed(Path("runs/a"), "a", 5)):
        assert find_run(None) == Path("runs/a")


@pytest.mark.parametrize("text", ["", "[]", '{"process": 1}', "other"])
def test_a_file_of_a_process_that_is_gone_is_removed(state: Path, text: str) -> None:
    """Its number may be another process's by now: this one's, which began at another time."""
    mark = process_mark(os.getpid())
    if text == "other":
        stale = {"process": f"{mark}0", "directory": "/", "run_id": "r", "nodes": 1}
        text = orjson.dumps(stale).decode()
    state.mkdir(parents=True, mode=0o700)
    ours = state / f"{platform.node()}-{os.getpid()}.json"
    theirs = state / "another-machine-1.json"
    for path in (ours, theirs):
        path.write_text(text)
    assert running() == []
    assert not ours.exists()
    assert theirs.exists(), "a home may be shared"
    assert process_mark(2**22 + 1) == ""
    assert process_mark(os.getppid()) != mark != ""


def test_a_list_that_others_may_write_is_not_believed(state: Path) -> None:
    state.mkdir(parents=True)
    state.chmod(0o777)
    fleet = {"directory": "/", "run_id": "r", "nodes": 1, "process": process_mark(os.getpid())}
    (state / f"{platform.node()}-{os.getpid()}.json").write_bytes(orjson.dumps(fleet))
    assert running() == []


def test_options_become_the_fault_that_a_file_would_hold() -> None:
    given = {
        **GIVEN,
        "selector": "a=b,c=",
        "zone": "zone-b",
        "nodes": "n-1,n-2",
        "share": "25%",
        "for_": "8m",
        "mode": "Reset",
    }
    assert order_of("Partition", given) == {
        "do": "inject",
        "fault": {
            "type": "Partition",
            "nodeSelector": {"matchLabels": {"a": "b", "c": ""}},
            "zone": "zone-b",
            "nodes": ["n-1", "n-2"],
            "share": 0.25,
            "mode": "Reset",
        },
        "for": "8m",
    }
    late = {**GIVEN, "by": "1m30s", "heartbeats": "Lease"}
    assert order_of("LateHeartbeats", late)["fault"] == {
        "type": "LateHeartbeats",
        "heartbeats": ["Lease"],
        "by": "90000000000ns",
    }


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        ("Earthquake", {}, "'Earthquake' is no fault; these are: HeartbeatLoss, "),
        ("ClockSkew", {}, "ClockSkew needs --by, for example --by 25s"),
        ("ClockSkew", {"by": "soon"}, "--by: 'soon' is not a duration"),
        ("Partition", {"by": "5s"}, "Partition takes no --by; it takes --mode"),
        (
            "Partition",
            {"mode": "Half"},
            "--mode: 'Half' is not one of 'Reset', 'BlackHole', 'Outbound' or 'Inbound'",
        ),
        ("Partition", {"for_": "0s"}, "--for: '0s' must be above 0s"),
        ("Partition", {"for_": "-1s"}, "--for: '-1s' is negative"),
        ("KubeletRestart", {"for_": "5s"}, "--for: KubeletRestart is over at once"),
        ("Partition", {"share": "some"}, "--share: 'some' is not a share"),
        ("Partition", {"share": "150%"}, "--share: 1.5 is not at most"),
        ("Partition", {"selector": "zone"}, "--selector: 'zone' is not KEY=VALUE"),
        # An empty word is an option all the same: `--selector "$UNSET"` must not hit all nodes.
        ("NodeDown", {"selector": ""}, "--selector: '' is not KEY=VALUE"),
        ("NodeDown", {"share": ""}, "--share: "),
        ("NodeDown", {"for_": ""}, "--for: "),
        ("Partition", {"mode": ""}, "--mode: '' is not one of"),
        ("NodeDown", {"every": ""}, "--every: '' is not a duration"),
    ],
)
def test_what_cannot_be_a_fault_is_refused_in_one_line(
    kind: str, given: dict[str, object], told: str
) -> None:
    with pytest.raises(UsageError) as raised:
        order_of(kind, {**GIVEN, **given})
    assert str(raised.value).startswith(told)
    assert "\n" not in str(raised.value)


def test_an_empty_list_of_nodes_is_none_of_them() -> None:
    assert order_of("NodeDown", {**GIVEN, "nodes": ""})["fault"]["nodes"] == [""]


async def test_answers_are_shown_in_lines(tmp_path: Path) -> None:
    each = {"number": 3, "fault": "Partition Reset", "nodes": 5, "of": 20, "for_s": 12.4}

    async def answer(order: dict[str, Any]) -> dict[str, Any]:
        if order["do"] != "list":
            return {"told": f"{order['do']} it"}
        return {"active": [{**each, "left_s": 7.6}, {**each, "number": 12, "left_s": None}]}

    async with open_socket(tmp_path, answer):
        assert await ask(tmp_path, {"do": "inject"}) == {"told": "inject it"}
        assert await heal(tmp_path, "3", is_all=False) == {"told": "heal it"}
        assert await heal(tmp_path, "", is_all=True) == {"told": "heal it"}
        active = await heal(tmp_path, "", is_all=False)
        assert isinstance(active, list)
        assert [[*row_of(row).values()] for row in active] == [
            [3, "Partition Reset", "5 of 20", "12 s", "8 s"],
            [12, "Partition Reset", "5 of 20", "12 s", "until healed"],
        ]
        with pytest.raises(UsageError, match="one fault, or --all"):
            await heal(tmp_path, "3", is_all=True)


def test_the_options_are_those_that_are_read() -> None:
    @whom_options
    @fault_options
    def command() -> None: ...

    found = command.__click_params__  # type: ignore[attr-defined]
    assert {each.name for each in found} == set(GIVEN)
