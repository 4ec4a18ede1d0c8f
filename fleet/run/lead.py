"""The shards of a run follow its first one; the API server is where they meet.

    Lease of shard 0       the plan: faults that are on, the phase that is played, the end
    Lease of each shard    how it stands: nodes, Ready ones, and whom the faults of the plan hit

A follower does to its own nodes what the plan says: a fault that appears begins, a fault that goes
is healed. It reads the plan each second while a scenario is played or a fault is on, else every
`IDLE_S`. A shard that joins late, or is started again, begins with what is on. The first shard
alone keeps the time. It needs no answer to go on; an order and a phase that waits look at how the
others stand.

    leads --killed--> the others keep what is on --the first shard is started again--> leads, from
                                                                        the plan in its Lease
                      the others end, without it for `LEADER_LOST_S` of an API server that answers

So does a shard whose first one never comes.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field

import msgspec

from fleet.cluster.api_client import Api, time_s
from fleet.cluster.runs import (
    DURATION_S,
    PLAN_ANNOTATION,
    RunLease,
    find_lease,
    find_leases,
    read_holder,
)
from fleet.errors import FleetError
from fleet.faults.fault import FaultSpec, document_of
from fleet.report.figures import HostState
from fleet.report.report import Expectation, Phase

STANDING_ANNOTATION = "fleet.emulator/standing"
FOLLOW_S = 1.0
SECOND_S = 1.0  # to which times of the API are exact
IDLE_S = 5.0  # between two looks where nothing is expected
TAKEN_S_MAX = 15.0
"""An order waits no longer for shards that do not answer; they take it over once they do."""
CLOSE_S_MAX = 3.0
"""A server that hangs holds up the end of a run no longer."""
LEADER_LOST_S = 300
INSTANT_KEPT_S = 30.0
"""For so long the plan names what is over at once: each follower has looked by then."""

log = logging.getLogger(__name__)


class PlannedFault(msgspec.Struct, kw_only=True):
    """A fault that is on in all shards; times are seconds since 1970."""

    number: int
    fault: dict[str, object]  # as users write it
    began_s: float
    ends_s: float | None = None  # None: until it is healed
    of: str = ""  # where in the scenario it is from
    is_instant: bool = False


class Plan(msgspec.Struct, kw_only=True):
    """What the first shard of a run does, and what it goes on with when it is started again."""

    made_s: float = 0.0  # what distinguishes it from others; numbers of faults are its own
    last: int = 0  # the number of the last fault, whether it is on or not
    version: int = 0  # grows with each change
    faults: list[PlannedFault] = []
    begun: list[str] = []
    """The faults of the present phase that have begun, by `of`; some may be over."""
    phases: list[Phase] = []
    """Of the scenario, in seconds since 1970; the last one is played."""
    waited: list[Expectation] = []
    is_played: bool = False
    """A scenario is played, or will be once all shards stand."""
    is_over: bool = False

    @property
    def look_every_s(self) -> float:
        """How long nobody looks at the Leases of the run."""
        return FOLLOW_S if self.is_played or self.faults else IDLE_S


class Standing(msgspec.Struct, kw_only=True):
    """How a shard stands."""

    made_s: float = 0.0  # of the plan that its nodes have; 0: they are not all up yet
    seen: int = -1  # its version
    nodes: int = 0
    ready: int = 0
    hits: dict[int, int] = {}  # by fault of the plan, how many nodes


@dataclass(eq=False)
class Leader:
    """The first shard: it writes the plan and knows how the others stand.

    It begins with the plan that the Lease has of an earlier start of this shard.
    """

    _lease: RunLease
    _api: Api
    _: KW_ONLY
    is_played: InitVar[bool] = False
    now_s: Callable[[], float] = time.time
    standings: list[Standing] = field(default_factory=list)
    """Of the other shards that live."""
    _is_whole: bool = False  # each shard with a Lease stands
    _looked: int = -1  # at the others, when that version had been written
    _written: int = 0  # followers are to know a plan before its first fault begins
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self, is_played: bool) -> None:
        text = self._lease.notes.get(PLAN_ANNOTATION, "")
        plan = msgspec.json.decode(text, type=Plan) if text else None
        self.plan = plan if plan and not plan.is_over else Plan(made_s=self.now_s(), version=1)
        self.plan.is_played = is_played

    def change(self) -> None:
        """Have the plan written that was changed."""
        now_s = self.now_s()
        self.plan.faults = [
            each
            for each in self.plan.faults
            if not each.is_instant or now_s - each.began_s < INSTANT_KEPT_S
        ]
        self.plan.version += 1
        self._changed.set()

    async def begin(
        self, number: int, spec: FaultSpec, for_ns: int | None, of: str
    ) -> tuple[int, int, bool]:
        """Have a fault begin in the other shards; return how many nodes it hits, and of how many.

        Last comes whether that is all: a shard may have died, or not answered for `TAKEN_S_MAX`.
        """
        began_s = self.now_s()
        planned = PlannedFault(
            number=number,
            fault=document_of(spec),
            began_s=began_s,
            ends_s=None if for_ns is None else began_s + for_ns / 1e9,
            of=of,
            is_instant=spec.is_instant,
        )
        self.plan.faults.append(planned)
        self.plan.last = number
        self.plan.begun += [of] if of else []
        self.change()
        version, ends_s = self.plan.version, began_s + TAKEN_S_MAX
        while self._lacks(version) and self.now_s() < ends_s:  # noqa: ASYNC110 - of polls
            await asyncio.sleep(FOLLOW_S / 4)
        seen = [each for each in self.standings if self._has_seen(each, version)]
        hit = sum(each.hits.get(number, 0) for each in seen)
        is_all = self._is_whole and not self._lacks(version)
        return hit, sum(each.nodes for each in seen), is_all

    def end(self, number: int) -> None:
        """Have a fault end in the other shards."""
        self.plan.faults = [each for each in self.plan.faults if each.number != number]
        self.change()

    def ready(self) -> int:
        """Return how many nodes of the other shards are Ready."""
        return sum(each.ready for each in self.standings)

    async def wait_ready(self, nodes: int) -> None:
        """Wait until so many nodes of the other shards are Ready; once they were, go on at once."""
        while not self.plan.phases and (self.ready() < nodes or self._lacks(0)):  # noqa: ASYNC110
            await asyncio.sleep(FOLLOW_S)

    async def run(self) -> None:
        """Write the plan when it changes and look at the other shards, until cancelled."""
        while True:
            self._changed.clear()
            try:
                await self._write()
                await self.look()
            except FleetError as error:  # the next look may do better
                log.warning("the shards of the run: %s", error)
            with contextlib.suppress(TimeoutError):  # wait_for may swallow that it is cancelled
                async with asyncio.timeout(self.plan.look_every_s):
                    await self._changed.wait()

    async def look(self) -> None:
        """Read how the other shards stand."""
        written = self._written
        leases, _refused, now_s = await find_leases(self._api, self._lease.run_id)
        others = [each for each in leases if each["metadata"]["uid"] != self._lease.uid]
        alive = [
            each["metadata"]["annotations"].get(STANDING_ANNOTATION, "")
            for each in others
            if read_holder(each, now_s).is_alive
        ]
        self.standings = [msgspec.json.decode(each, type=Standing) for each in alive if each]
        self._is_whole = len(self.standings) == len(others)
        self._looked = written

    async def close(self) -> None:
        """Have the others end: the plan is over."""
        self.plan.is_over = True
        self.plan.faults = []
        self.change()
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._write()
        except (FleetError, TimeoutError) as error:  # they end when they miss the Lease
            why = str(error) or f"no answer in {CLOSE_S_MAX:g} s"
            log.warning("the end of the run is not in its Lease: %s", why)

    async def _write(self) -> None:
        version = self.plan.version
        if self._written < version:
            await self._lease.say(PLAN_ANNOTATION, msgspec.json.encode(self.plan).decode())
            self._written = version

    def _lacks(self, version: int) -> bool:
        """Return whether a shard has not taken this version over; its nodes may just come up."""
        return self._looked < version or not all(
            self._has_seen(each, version) for each in self.standings
        )

    def _has_seen(self, standing: Standing, version: int) -> bool:
        return standing.made_s == self.plan.made_s and standing.seen >= version


@dataclass(eq=False)
class Follower:
    """Any other shard. `act` takes the plan, when this shard looked last, and the time.

    Both times are by the leader's clock. The names of the leader begin with `leader`.
    """

    _lease: RunLease
    _api: Api
    _leader: str
    _state: Callable[[], HostState]
    _act: Callable[[Plan, float, float], Awaitable[dict[int, int]]]
    is_up: bool = False
    """All nodes were Ready, or a dashboard decides how many there are: faults find them."""
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    """A scenario ends with the shard that plays it; other runs go on, and follow the next."""
    lost: str = ""
    """Why it is over before its time."""
    _standing: Standing = field(default_factory=Standing)
    _before_s: float = math.inf  # the last look, by the leader's clock
    _had_leader: bool = False
    _look_every_s: float = IDLE_S
    _looked_s: int = 0  # by the server's clock, as is the next
    _answers_since_s: int = 0

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self.look()
            except FleetError as error:  # the next look may do better
                log.warning("the plan of the run: %s", error)
            await asyncio.sleep(self._look_every_s)

    async def look(self) -> None:
        """Read the plan once, do what it says, and write how this shard stands."""
        lease, now_s = await find_lease(self._api, self._leader)
        if now_s - self._looked_s > DURATION_S:  # the server was away: nobody could renew a Lease
            self._answers_since_s = now_s
        self._looked_s = now_s
        answers_s = now_s - self._answers_since_s
        plan, leader_s, is_lost = Plan(), 0.0, False
        if lease is not None and (holder := read_holder(lease, now_s)).run == self._lease.run_id:
            self._had_leader = True
            is_lost = self._is_lost("was gone", min(holder.renewed_ago_s, answers_s))
            text = lease["metadata"]["annotations"].get(PLAN_ANNOTATION, "")
            plan = msgspec.json.decode(text, type=Plan) if text else plan
            leader_s = time_s(lease["spec"]["renewTime"]) + holder.renewed_ago_s
        elif self._had_leader:  # it has ended, and given its names up
            plan.is_over = True
        else:
            is_lost = self._is_lost("did not come", answers_s)
        self._look_every_s = plan.look_every_s
        if is_lost or not self._had_leader:
            return
        state = self._state()
        standing = Standing(nodes=state.wanted, ready=state.ready)
        if self.is_up:
            standing.made_s, standing.seen = plan.made_s, plan.version
            standing.hits = await self._act(plan, self._before_s, leader_s)
        self._before_s = leader_s - SECOND_S if leader_s else self._before_s
        if standing != self._standing:
            text = msgspec.json.encode(standing).decode()
            await self._lease.say(STANDING_ANNOTATION, text)
            self._standing = standing
        if plan.is_over:
            self.is_over.set()

    def _is_lost(self, how: str, for_s: int) -> bool:
        """Return whether the leader has been away for so long that a scenario is over."""
        is_lost = for_s > LEADER_LOST_S
        if is_lost:
            self.lost = f"the first shard of the run, {self._leader}, {how} for {for_s} s"
            self.is_over.set()
        return is_lost
