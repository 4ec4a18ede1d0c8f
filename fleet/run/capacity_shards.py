"""`fleet capacity --shard K/N`: N machines search together, and meet at the API server.

    Lease of the name prefix    shard 0 holds it as long as it searches; it names the present run
    Leases of that run          of its shards, as of any run of several; see lead.py

Each size is a scenario that all shards play, of about as many nodes each.

    shard 0    names a run -> all have joined it -> it ends -> all records are whole -> judges it
               -> names none, and removes the records -> names the next -> ... -> says OVER
    others     a run is new -> play it to its end -> ... -> OVER, or the Lease is gone
"""

import asyncio
import contextlib
import logging
import math
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from fleet.cluster.api_client import Api, Json
from fleet.cluster.cleanup import clean_run
from fleet.cluster.runs import RunLease, find_holders, find_lease, is_run_lease, read_holder
from fleet.controlplane.process import Component
from fleet.errors import Exit, FleetError, SetupError, UsageError
from fleet.host.siblings import END_S_MAX, refusal
from fleet.profile.settings import Settings, flags_of
from fleet.report.merge_command import find_records, merge_runs
from fleet.report.record import Record
from fleet.run.lead import LEADER_LOST_S
from fleet.run.records import SHARDS, write_records

RUN_ANNOTATION = "fleet.emulator/capacity"
"""NODES/RUN, `NO_RUN` between two sizes, or `OVER`."""
NO_RUN = "0/"
OVER = "over"
JUDGED = (Exit.OK, Exit.EXPECTATION_FAILED, Exit.INVALID)
"""What a run ends with that came to a verdict."""
LOOK_S = 1.0
CLOSE_S_MAX = 10.0
"""A run that has kept its record may still write its report."""
LEFT_S_MAX = 2 * CLOSE_S_MAX
JOINED_S_MAX = 120.0
"""A machine that takes no part in a size by then ends the search."""

log = logging.getLogger(__name__)


class Part(NamedTuple):
    """Which of the machines this is."""

    shard: int = 0
    shards: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `--shard`. Raises UsageError."""
        shard, _, shards = text.partition("/")
        if not (shard.isdecimal() and shards.isdecimal() and int(shard) < int(shards)):
            raise UsageError(f"--shard: {text!r} is not K/N, such as 0/3 for the first of three")
        return cls(int(shard), int(shards))

    def of(self, nodes: int) -> int:
        """Return how many machines have nodes in a run of so many."""
        return math.ceil(nodes / max(1, math.ceil(nodes / self.shards)))

    def flags(self, run: str, nodes: int) -> list[str]:
        """Return the options of this machine in a run of so many nodes."""
        options = {"nodes": math.ceil(nodes / self.shards), "nodes_total": nodes}
        return flags_of(options | {"shard": self.shard, "run_id": run, "record": "cluster"})


ALONE = Part()


@dataclass
class SharedSearch:
    """What shard 0 has to do with the others for each size."""

    _api: Api
    _lease: RunLease
    _part: Part
    _settings: Settings
    _note: Callable[[str], None]
    _run: str = ""  # the present one; it writes into this directory
    _directory: Path = Path()
    _nodes: int = 0

    async def begin(self, nodes: int, attempt: int, directory: Path) -> list[str]:
        """Have all begin with a run of so many nodes; return the options of this machine."""
        self._run, self._nodes = f"{self._lease.run_id}-{nodes}-{attempt}", nodes
        self._directory = directory
        await self._lease.say(RUN_ANNOTATION, f"{nodes}/{self._run}")
        return self._part.flags(self._run, nodes)

    async def joined(self) -> None:
        """Wait until all machines take part. Raises SetupError if one does not."""
        now_s = asyncio.get_running_loop().time
        ends_s = now_s() + JOINED_S_MAX
        prefix, processes = self._settings.name_prefix, self._settings.processes
        shards = range(self._part.of(self._nodes))
        while True:
            there = {each.prefix for each in await find_holders(self._api, self._run)}
            lacking = [each for each in shards if f"{prefix}-{each * processes:04d}" not in there]
            if not lacking:
                return
            if now_s() > ends_s:
                parts = ", ".join(f"{each}/{self._part.shards}" for each in lacking)
                raise SetupError(f"no machine takes part with --shard {parts}: see its output")
            await asyncio.sleep(LOOK_S)

    async def judge(self) -> Exit:
        """Make one run of the records of all shards, and end it. Raises FleetError."""
        records = await self._records()
        if not records:
            how = "grant the rights with fleet rbac --record cluster"
            raise SetupError(f"no machine has left a record of run {self._run}: {how}")
        has_page = not self._settings.no_report
        _, code = merge_runs(records, None, self._directory, has_page=has_page)
        await self.end(NO_RUN)
        return code

    async def end(self, says: str) -> None:
        """Have all machines end the present run, if there is one, and remove its records."""
        try:
            await self._lease.say(RUN_ANNOTATION, says)
            if self._run:
                await self._records()
                await clean_run(self._api, self._run)
        except FleetError as error:
            run = self._run or self._lease.run_id
            self._note(f"the clean-up failed: {error}; go on with fleet clean --run {run}")
        self._run = ""

    async def _records(self) -> dict[Path, Record]:
        """Return the records of the present run, once all are whole, or nobody writes one.

        A shard that ends gives its Lease up, then makes its record whole. The Lease of one that
        died runs out. One that has neither may just be starting, for `LEFT_S_MAX`.
        """
        wanted = self._part.of(self._nodes) * self._settings.processes
        now_s, shards = asyncio.get_running_loop().time, self._directory / SHARDS
        began_s = now_s()
        while True:
            holders = await find_holders(self._api, self._run)
            count = await write_records(self._api, self._run, shards)
            records = find_records((shards,)) if count else {}
            whole = {each.name for each in records.values() if each.is_over}
            done = whole | {each.prefix for each in holders if not each.is_alive}
            there = {each.prefix for each in holders} | {each.name for each in records.values()}
            is_all = len(whole) >= wanted or now_s() - began_s > LEFT_S_MAX
            if (is_all and there <= done) or now_s() - began_s > END_S_MAX:
                return records
            await asyncio.sleep(LOOK_S)


async def take_part(
    api: Api,
    part: Part,
    prefix: str,
    run_of: Callable[[int, str, Sequence[str]], Component],
    note: Callable[[str], None],
) -> int:
    """Play the part of this machine in each size until the search is over; return in how many.

    `run_of` makes a run of a number of nodes, an id, and the options of this machine. Raises
    SetupError if shard 0 does not come or goes without an end, and FleetError if a run is refused.
    """
    now_s = asyncio.get_running_loop().time
    seen_s, named, played = now_s(), "", 0
    run: Component | None = None
    try:
        while True:
            try:
                wanted = _named(*await find_lease(api, prefix))
            except FleetError as error:  # nobody can renew a Lease either
                log.warning("the search: %s", error)
                wanted, seen_s = "", now_s()
            if run is not None and (wanted not in ("", named) or not run.is_running):
                with contextlib.suppress(TimeoutError):  # it ends by itself
                    async with asyncio.timeout(CLOSE_S_MAX):
                        await run.wait()
                await run.stop(END_S_MAX, politely=signal.SIGINT)
                death, run = await run.wait(), None
                if (refused := refusal(death)) is not None:
                    raise refused
                if death.returncode not in JUDGED:
                    note(f"{death.component} ended with {death.returncode}: see {death.log}")
            if wanted is None and named:
                return played
            if wanted:
                seen_s = now_s()
            if wanted and wanted != named:
                named = wanted
                count, _, run_id = wanted.partition("/")
                nodes = int(count)
                if part.shard < part.of(nodes):
                    note(f"{nodes:,} nodes ...")
                    run = run_of(nodes, run_id, part.flags(run_id, nodes))
                    await run.start()
                    played += 1
            if now_s() - seen_s > LEADER_LOST_S:
                first = f"shard 0/{part.shards}"
                how = "was gone for" if named else "did not start within"
                run_it = f"run `fleet capacity --{first}` with the same --name-prefix ({prefix})"
                raise SetupError(f"{first} {how} {LEADER_LOST_S} s: {run_it} and cluster")
            await asyncio.sleep(LOOK_S)
    finally:
        if run is not None:
            await run.stop(END_S_MAX, politely=signal.SIGINT)


def _named(lease: Json | None, server_s: int) -> str | None:
    """Return what shard 0 says of the present run in its Lease; None if no search is on.

    It is "" if shard 0 has said nothing, or does not renew the Lease, or if that is not fleet's.
    """
    if lease is None:
        return None
    named = str((lease["metadata"].get("annotations") or {}).get(RUN_ANNOTATION, ""))
    if named == OVER:
        return None
    return named if is_run_lease(lease) and read_holder(lease, server_s).is_alive else ""
