"""Which figures a run of `make bench-peers` keeps when one of its last parts fails."""

import asyncio
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench import peers
from bench.inside import Json
from bench.outage import UnsoundError
from bench.peer_table import DEPLOYMENT, OUTAGE

WHY = "at the outage 4857 of 5000 nodes were Ready, 5000 had a Lease"


@pytest.mark.parametrize(
    ("how", "lacking"),
    [("", {"unsound": {"outage": WHY}}), ("a panic", {"ended": {"outage": "a panic"}})],
)
def test_what_was_measured_before_stands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str, lacking: Json
) -> None:
    ends: list[str] = []

    async def deployed(*_: object) -> Json:
        return {"deployment_running_s": 51.0}

    async def failed(*_: object) -> Json:
        ends.append(how)
        raise UnsoundError(WHY)

    monkeypatch.setattr(peers, "deployment", deployed)
    monkeypatch.setattr(peers, "outage", failed)
    tool = SimpleNamespace(how_ended=lambda: ends[-1] if ends else "", cpu_s=lambda: 0.0)
    trial = peers.Trial(
        plan=peers.Plan(5000, 5000, 5000, 20, 60.0, (DEPLOYMENT, OUTAGE)),
        plane=cast("Any", SimpleNamespace(info=SimpleNamespace(url=""))),
        running=cast("Any", tool),
        count=5000,
        context=ssl.create_default_context(),
        timeseries=tmp_path / "none",
    )
    assert asyncio.run(trial.parts()) == {"deployment_running_s": 51.0, **lacking}
