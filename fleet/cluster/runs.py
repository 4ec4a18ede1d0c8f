"""Who holds which names and addresses: the Leases of running fleets, and of runs that are over.

A node's name begins with a prefix, which its labels name (see ownership.py). The prefix belongs
to one running fleet at a time: it holds the Lease `fleet-run-<prefix>` and renews it. A second
fleet with the prefix is refused while the holder lives, and takes the nodes over once it does not.
A shard's prefix includes its number (`<prefix>-<shard:04d>`), so shards never meet.

The pods of a StatefulSet are of one run, and one pod may follow another in a shard. The Lease names
the pod too: its successor waits while it lives, and one that was given up falls silent.

Whether a holder lives is judged by the API server's clock alone: the time that it noted for the
last write, against the Date of its answer. The clocks of the machines do not matter.

The Lease also says which addresses a process has for its nodes among all Nodes of the cluster:

    look at the Nodes -> choose -> write the claim into the run's Lease -> look at all Leases
      ^                                                                          |
      +---- another process claimed some of them: choose elsewhere --------------+

A claim counts once its process has read all Leases after it wrote its own: of two processes that
claim the same, at least the later writer sees both, and moves. A Node that an earlier run left
keeps its address, so its position decides where the claim of its successor begins.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

import orjson

from fleet import __version__
from fleet.clock import Clock, SystemClock
from fleet.cluster.api_client import Api, Json, Sleep, expect, server_now_s, time_s
from fleet.cluster.identity import RUN_NAMESPACE, run_lease_name
from fleet.cluster.kept_records import find_records
from fleet.cluster.leftovers import (
    APPLIED_ANNOTATION,
    NOTE_BYTES_MAX,
    Leftover,
    Stored,
    find_applied,
    find_load,
    find_stored,
    merged,
    read_noted,
)
from fleet.cluster.ownership import NODES, PREFIX_LABEL, RUN_LABEL, FoundNode, find_nodes
from fleet.cluster.run_id import run_started_s
from fleet.errors import SetupError, UsageError
from fleet.k8s.addresses import each_of
from fleet.k8s.times import rfc3339_micro
from fleet.k8s.well_known import MANAGED_ANNOTATION
from fleet.profile.addresses import AddressPlan, AddressRange, range_of
from fleet.profile.settings import Settings

logger = logging.getLogger(__name__)

VERSION_ANNOTATION = "fleet.emulator/version"
ADDRESSES_ANNOTATION = "fleet.emulator/addresses"
"""What the holder has claimed for its nodes and their pods."""
NODES_ANNOTATION = "fleet.emulator/nodes"  # see `Size`; `fleet scale` writes it
PLAN_ANNOTATION = "fleet.emulator/plan"  # of the first shard of a run; run/lead.py reads it
HOLDER_ANNOTATION = "fleet.emulator/holder"
"""Which of several that are of the same run holds the Lease: a pod's UID."""

RUN_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{RUN_NAMESPACE}/leases"
# As the Lease of a node: renewed at a quarter of the time after which it is lost.
RENEW_EVERY_S = 10.0
DURATION_S = 40  # NodeLeaseDurationSeconds of a kubelet
NOTE_ATTEMPTS_MAX = 5  # one is lost to a renewal, or to another writer in between
CLAIM_TRIES_MAX = 20
ACQUIRE_ATTEMPTS_MAX = 5  # one is lost to a wait for the holder, or to who wrote in between


class Size(NamedTuple):
    """How many nodes a shard has, as its Lease says: `N/MOST/BEGUN`."""

    nodes: int
    most: int  # that it may have
    begun: int  # by its options; with others it does not take `nodes` over

    def __str__(self) -> str:
        """Return the annotation."""
        return "/".join(map(str, self))

    @classmethod
    def of(cls, lease: Json) -> "Size | None":
        """Read the annotation; None if it is none."""
        text = (lease["metadata"].get("annotations") or {}).get(NODES_ANNOTATION, "")
        try:
            nodes, most, begun = map(int, text.split("/"))
        except ValueError:
            return None
        return cls(min(max(nodes, 0), most), most, begun)


class RunHolder(NamedTuple):
    """What the Lease of a run says, by the server's clock."""

    run: str
    prefix: str
    version: str
    renewed_ago_s: int
    duration_s: int
    holder: str = ""
    has_applied: bool = False  # it notes where objects were created

    @property
    def is_alive(self) -> bool:
        """Return whether the run is going on."""
        return bool(self.run) and self.renewed_ago_s < self.duration_s

    @property
    def rest_s(self) -> int:
        """Return for how long it still lives without another renewal."""
        return max(0, self.duration_s - self.renewed_ago_s)


class RunInfo(NamedTuple):
    """One line of `fleet clean`."""

    run: str
    prefixes: tuple[str, ...]
    nodes: int
    is_alive: bool
    age_s: int
    version: str  # of fleet; empty when the Lease is gone
    objects: tuple[str, ...] = ()
    """What its scenario applied, and volumes and attachments that are held for it, by path."""
    copies: tuple[str, ...] = ()
    """What has the label of such an object, and not the annotation: it is somebody else's."""


class FoundRuns(NamedTuple):
    """What fleets left, and what only looks so: it is neither changed nor deleted."""

    runs: list[RunInfo]
    refused: tuple[FoundNode, ...]
    refused_leases: tuple[str, ...]


@dataclass(eq=False)
class RunLease:
    """The claim of one process to the names under a prefix."""

    _api: Api
    prefix: str
    run_id: str
    _: KW_ONLY
    holder: str = ""
    size: "Size | None" = None
    """How many nodes the holder has; None: that cannot be changed by the Lease."""
    clock: Clock = field(default_factory=SystemClock)
    sleep: Sleep = asyncio.sleep
    addresses: str = ""  # as ADDRESSES_ANNOTATION says, from the next renewal on
    on_nodes: Callable[[int], None] = lambda _nodes: None  # somebody wants so many
    _written: "Size | None" = None
    lost_to: str = ""
    """The run that took the prefix over, should that happen; this one must then end."""
    _lease: Json = field(default_factory=dict)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    noted: dict[str, list[str]] = field(default_factory=dict)
    """Where this run creates objects, and where runs did that held the prefix before."""
    notes: dict[str, str] = field(default_factory=dict)
    """What else the Lease says, by annotation; an earlier start of this shard left its plan."""

    def __post_init__(self) -> None:
        self._name = run_lease_name(self.prefix)

    @property
    def uid(self) -> str:
        """Return the uid of the Lease, which is held."""
        return str(self._lease["metadata"]["uid"])

    async def acquire(self) -> str:
        """Take the prefix; return the id of the dead run that held it last, or "".

        Another process of this run that holds it is waited for: it may be dead. Raises SetupError
        if it is not, if a living holder is of another run, or if the Lease is not fleet's. If
        cancelled, release it.
        """
        has_waited = False
        for _ in range(ACQUIRE_ATTEMPTS_MAX):
            found = await self._api.request("GET", f"{RUN_LEASES}/{self._name}")
            if found.code == 404:
                if await _whole(self._store("POST", RUN_LEASES, self._body({}))):
                    return ""
                continue
            lease = expect(found, f"cannot read the lease {self._name}")
            if not is_run_lease(lease):
                raise SetupError(
                    f"the Lease {RUN_NAMESPACE}/{self._name} is not one that fleet made: choose "
                    "another --name-prefix"
                )
            holder = read_holder(lease, server_now_s(found))
            check_free(self.prefix, holder, self.run_id)
            if holder.is_alive and not self._is_ours(holder):
                if has_waited:
                    raise SetupError(
                        f"shard {self.prefix} of run {holder.run} is another process's "
                        f"({holder.holder or 'without --holder'}), which lives: end it, or choose "
                        f"another --shard"
                    )
                has_waited = True
                logger.warning("waiting up to %d s for %s", holder.rest_s, self._name)
                await self.sleep(holder.rest_s + 1)
                continue
            self.noted = read_noted(lease)
            # Until this process claims its own: the nodes may get the same addresses again.
            notes = lease["metadata"].get("annotations") or {}
            self.addresses = notes.get(ADDRESSES_ANNOTATION, "")
            if holder.run == self.run_id and PLAN_ANNOTATION in notes:
                self.notes[PLAN_ANNOTATION] = notes[PLAN_ANNOTATION]
            size = Size.of(lease) if holder.run == self.run_id else None
            if size and self.size and size[1:] == self.size[1:]:  # its options were the same
                self.size = size
            if await _whole(self._store("PUT", f"{RUN_LEASES}/{self._name}", self._body(lease))):
                return holder.run if holder.run != self.run_id else ""
        raise SetupError(f"prefix {self.prefix} is contended: another fleet is starting with it")

    async def renew(self) -> bool:
        """Renew once; return whether the server has it. False with `lost_to` set ends the run."""
        assert self._lease, "only what was acquired is renewed"
        path = f"{RUN_LEASES}/{self._name}"
        if await self._store("PUT", path, self._body(self._lease)):
            return True
        found = await self._api.request("GET", path)
        if found.code == 404:  # somebody deleted it; the nodes are still ours
            return await self._store("POST", RUN_LEASES, self._body({}))
        if not found.ok:
            return False
        holder = read_holder(found.body, server_now_s(found))
        if self._is_ours(holder):
            self._lease = found.body
            asked = Size.of(found.body)
            if self.size and asked and asked != self._written:
                self.size = self.size._replace(nodes=min(asked.nodes, self.size.most))
                self.on_nodes(self.size.nodes)
            return await self._store("PUT", path, self._body(found.body))
        self.lost_to = holder.run or "nobody"
        return False

    async def note(self, collection: str) -> None:
        """Have the Lease say that the run creates objects in a collection, before it does.

        Raises SetupError if the server does not take it, UsageError if there are too many.
        """
        async with self._writing:
            noted = merged([self.noted, {self.run_id: [collection]}])
            if len(orjson.dumps(noted)) > NOTE_BYTES_MAX:
                raise UsageError("the objects are of too many kinds and namespaces to note them")
            self.noted = noted
            if not await self._renew_surely():
                why = f"cannot note {collection} in the Lease {self._name}: nothing created"
                raise SetupError(why)

    async def say(self, annotation: str, text: str) -> None:
        """Have the Lease say this. Raises SetupError if the server does not take it."""
        async with self._writing:
            self.notes[annotation] = text
            if not await self._renew_surely():
                raise SetupError(f"cannot write {annotation} into the Lease {self._name}")

    async def _renew_surely(self) -> bool:
        for _ in range(NOTE_ATTEMPTS_MAX):
            if await self.renew():
                return True
            if self.lost_to:
                break
        return False

    async def keep(self) -> None:
        """Renew until cancelled; return only if another run took the prefix over.

        An unreachable server is no reason to end: no other fleet can take over then either, and
        outages are what fleets are for.
        """
        while not self.lost_to:
            await self.sleep(RENEW_EVERY_S)
            try:
                if not await self.renew() and not self.lost_to:
                    logger.warning("the lease %s could not be renewed", self._name)
            except SetupError as error:
                logger.warning("the lease %s could not be renewed: %s", self._name, error)
        logger.error("run %s took the prefix %s over", self.lost_to, self.prefix)

    async def release(self) -> None:
        """Give the prefix up, so that the next fleet need not wait; leave another's Lease alone.

        While objects that it notes are there, the Lease stays: by it others find them.
        """
        if not self._lease or self.lost_to:
            return
        found = await find_applied(self._api, self.noted)
        if found.owned or found.unread:
            return
        metadata, self._lease = self._lease["metadata"], {}
        options = {"preconditions": {"uid": metadata["uid"]}}
        await self._api.request("DELETE", f"{RUN_LEASES}/{self._name}", body=options)

    def _is_ours(self, holder: RunHolder) -> bool:
        return (holder.run, holder.holder) == (self.run_id, self.holder)

    async def _store(self, method: str, path: str, body: Json) -> bool:
        """Write the Lease; return whether nobody else had written it since it was read."""
        stored = await self._api.request(method, path, body=body)
        if stored.code in (404, 409):
            return False
        self._lease = expect(stored, f"cannot write the lease {self._name}")
        self._written = Size.of(self._lease)
        return True

    def _body(self, before: Json) -> Json:
        """Return the Lease to write: ours, on top of the version that was read."""
        now = rfc3339_micro(self.clock.wall_ns()).decode()
        spec = before.get("spec", {})
        is_ours = spec.get("holderIdentity") == self.run_id
        metadata: Json = {
            "name": self._name,
            "namespace": RUN_NAMESPACE,
            "labels": {RUN_LABEL: self.run_id, PREFIX_LABEL: self.prefix},
            "annotations": {
                VERSION_ANNOTATION: __version__,
                **({APPLIED_ANNOTATION: orjson.dumps(self.noted).decode()} if self.noted else {}),
                **({HOLDER_ANNOTATION: self.holder} if self.holder else {}),
                **({ADDRESSES_ANNOTATION: self.addresses} if self.addresses else {}),
                **({NODES_ANNOTATION: str(self.size)} if self.size else {}),
                **self.notes,
            },
        }
        if before:
            metadata["resourceVersion"] = before["metadata"]["resourceVersion"]
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self.run_id,
                "leaseDurationSeconds": DURATION_S,
                "acquireTime": spec.get("acquireTime", now) if is_ours else now,
                "renewTime": now,
                "leaseTransitions": int(spec.get("leaseTransitions") or 0)
                + int(bool(before) and not is_ours),
            },
        }


async def _whole(writing: Coroutine[object, object, bool]) -> bool:
    """Write to the end, also when cancelled: what was written must be known."""
    task = asyncio.ensure_future(writing)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def check_free(prefix: str, holder: RunHolder, run_id: str = "") -> None:
    """Raise SetupError if another run than `run_id` holds the prefix and lives."""
    if not holder.is_alive or holder.run == run_id:
        return
    raise SetupError(
        f"the name prefix {prefix} is in use by run {holder.run} (alive {holder.renewed_ago_s} s "
        f"ago): choose another --name-prefix, or end that run; if it crashed, its nodes can be "
        f"taken over in {holder.rest_s} s"
    )


def is_run_lease(lease: Json) -> bool:
    """Return whether a Lease is of a run: name, labels and holder say the same, not one alone."""
    metadata = lease["metadata"]
    labels = metadata.get("labels") or {}
    run, prefix = labels.get(RUN_LABEL, ""), labels.get(PREFIX_LABEL, "")
    is_named = metadata["name"] == run_lease_name(prefix)
    return bool(run) and is_named and lease.get("spec", {}).get("holderIdentity") == run


def read_holder(lease: Json, now_s: int) -> RunHolder:
    """Read a run's Lease; `now_s` is the server's clock."""
    metadata, spec = lease["metadata"], lease.get("spec", {})
    # When the server last stored the Lease; the holder's own word if it does not say.
    times = [each["time"] for each in metadata.get("managedFields") or () if each.get("time")]
    written_s = max(map(time_s, times or [spec.get("renewTime") or ""]))
    return RunHolder(
        run=spec.get("holderIdentity") or "",
        prefix=metadata.get("labels", {}).get(PREFIX_LABEL, ""),
        version=metadata.get("annotations", {}).get(VERSION_ANNOTATION, ""),
        renewed_ago_s=max(0, now_s - written_s),
        duration_s=int(spec.get("leaseDurationSeconds") or DURATION_S),
        holder=metadata.get("annotations", {}).get(HOLDER_ANNOTATION, ""),
        has_applied=bool(read_noted(lease)),
    )


async def find_lease(api: Api, prefix: str) -> tuple[Json | None, int]:
    """Return the Lease of a prefix, None if nobody holds it, and the server's time."""
    found = await api.request("GET", f"{RUN_LEASES}/{run_lease_name(prefix)}")
    now_s = server_now_s(found)
    if found.code == 404:
        return None, now_s
    return expect(found, f"cannot read the lease {run_lease_name(prefix)}"), now_s


async def holder_of(api: Api, prefix: str) -> RunHolder | None:
    """Return who holds a prefix, alive or not; None if nobody does."""
    lease, now_s = await find_lease(api, prefix)
    return read_holder(lease, now_s) if lease is not None else None


async def find_leases(api: Api, run: str = "") -> tuple[list[Json], list[Json], int]:
    """Return the Leases of a run, or of all; those with the label alone; and the server's time."""
    selector = f"{RUN_LABEL}={run}" if run else RUN_LABEL
    listed = await api.request("GET", RUN_LEASES, query={"labelSelector": selector})
    items = expect(listed, "cannot list run leases").get("items") or []
    owned = [lease for lease in items if is_run_lease(lease)]
    refused = [lease for lease in items if not is_run_lease(lease)]
    return owned, refused, server_now_s(listed)


async def find_holders(api: Api, run: str = "") -> list[RunHolder]:
    """Return who holds the Leases of a run, or of all runs, alive or not."""
    owned, _refused, now_s = await find_leases(api, run)
    return [read_holder(lease, now_s) for lease in owned]


async def noted_of(api: Api, run: str) -> dict[str, list[str]]:
    """Return where a run has created objects, and those whose names it has taken over."""
    leases, _refused, _now_s = await find_leases(api)
    found = []
    for lease in leases:
        noted = read_noted(lease)
        is_its = lease["spec"]["holderIdentity"] == run
        found.append(noted if is_its else {run: noted.get(run, [])})
    return merged(found)


async def list_runs(api: Api) -> FoundRuns:
    """Return every run that has left anything, or has a Lease, oldest first."""
    holders: dict[str, list[RunHolder]] = {}
    leases, refused, now_s = await find_leases(api)
    for lease in leases:
        holder = read_holder(lease, now_s)
        holders.setdefault(holder.run, []).append(holder)
    nodes: dict[str, list[FoundNode]] = {}
    found = await find_nodes(api, RUN_LABEL)
    for node in found.owned:
        nodes.setdefault(node.run, []).append(node)
    loads = [each.run for each in await find_load(api)]
    objects: dict[str, list[str]] = {}
    copies: dict[str, tuple[str, ...]] = {}
    for run, collections in merged(map(read_noted, leases)).items():
        applied = await find_applied(api, {run: collections})
        objects[run] = [*(one.path for one in applied.owned), *applied.unread]
        copies[run] = applied.refused
    kept: list[Stored | Leftover] = [*await find_stored(api), *await find_records(api)]
    for run, path in ((each.run, each.path) for each in kept):
        objects.setdefault(run, []).append(path)
    left = [run for run, paths in objects.items() if paths]
    runs = [
        _run_info(run, holders.get(run, []), nodes.get(run, []), now_s)._replace(
            objects=tuple(objects.get(run, ())), copies=copies.get(run, ())
        )
        for run in dict.fromkeys([*holders, *nodes, *loads, *left])
    ]
    runs.sort(key=lambda info: (-info.age_s, info.run))
    names = tuple(lease["metadata"]["name"] for lease in refused)
    return FoundRuns(runs, found.refused, names)


def _run_info(run: str, holders: list[RunHolder], nodes: list[FoundNode], now_s: int) -> RunInfo:
    started_s = run_started_s(run)
    if started_s is None:
        started_s = min((node.created_s for node in nodes), default=now_s)
    prefixes = {node.prefix for node in nodes} | {holder.prefix for holder in holders}
    return RunInfo(
        run=run,
        prefixes=tuple(sorted(prefixes - {""})),
        nodes=len(nodes),
        is_alive=any(holder.is_alive for holder in holders),
        age_s=max(0, now_s - started_s),
        version=holders[0].version if holders else "",
    )


# ---- addresses ----


class Claim(NamedTuple):
    """What a process got."""

    shift: int  # of its nodes' positions against their indices
    moved_from: int | None = None  # where its Nodes' addresses were until now, if not here


async def claim_addresses(
    api: Api, lease: RunLease, plan: AddressPlan, settings: Settings
) -> Claim:
    """Claim the addresses of all nodes that a process may have; its Lease is held.

    Raises SetupError if a pool has no room, or if the server refuses an answer.
    """
    first, count = settings.node_index(0), settings.most
    taken, kept = await _look(api, plan, settings, lease.run_id)
    start, claimed = first if kept is None else kept, -1
    for attempt in range(CLAIM_TRIES_MAX):
        others = list(taken)
        owned, _, _ = await find_leases(api)
        for each in owned:  # what the other processes of all fleets have claimed, living or not
            if each["metadata"]["uid"] != lease.uid:
                notes = each["metadata"].get("annotations") or {}
                others += _ranges(each_of(notes.get(ADDRESSES_ANNOTATION, "")))
        if claimed >= 0 and plan.free(claimed, count, others) == claimed:
            return Claim(claimed - first, kept if kept not in (None, claimed) else None)
        if attempt:  # two that met look in different places
            digest = hashlib.sha256(f"{lease.prefix}/{attempt}".encode()).digest()
            start = int.from_bytes(digest[:8]) % max(plan.room - count, 1)
        found = plan.free(start, count, others)
        if found is None:
            raise SetupError(
                f"addressPool {plan}: no {count:,} addresses in a row are free in this cluster: "
                "choose another addressPool in the profile, or end another fleet"
            )
        claimed = found
        lease.addresses = ",".join(map(str, plan.ranges(claimed, count)))
        if not await lease.renew():
            raise SetupError(f"another process has just written the Lease of {lease.prefix}")
    raise SetupError(f"addressPool {plan}: other fleets claim the same addresses: try again")


async def _look(
    api: Api, plan: AddressPlan, settings: Settings, run_id: str
) -> tuple[list[AddressRange], int | None]:
    """Return what Nodes have, and where the claim of the process began whose Nodes are ours now.

    Nodes of this very run are left to the claims of its processes.
    """
    taken: list[AddressRange] = []
    kept: int | None = None
    selector = f"{RUN_LABEL}!={run_id}"
    async for page in api.pages(NODES, "nodes", labelSelector=selector):
        for node in page:
            slot = settings.slot_of(node["metadata"]["name"])
            if settings.manage and MANAGED_ANNOTATION in (
                node["metadata"].get("annotations") or {}
            ):
                continue  # it has what an earlier run with --manage gave it, and may be ours again
            if slot is None or settings.manage:
                spec = node.get("spec") or {}
                cidrs = spec.get("podCIDRs") or ([spec["podCIDR"]] if spec.get("podCIDR") else [])
                taken += _ranges([*_internal(node), *cidrs])
            elif kept is None:
                kept = _start(node, slot, plan, settings)
    if kept is None and not settings.manage:  # of a process of this run that was here before
        first = await api.request("GET", f"{NODES}/{settings.node_name(0)}")
        kept = _start(first.body, 0, plan, settings) if first.ok else None
    return taken, kept


def _ranges(addresses: Iterable[str]) -> Iterator[AddressRange]:
    return filter(None, map(range_of, addresses))


def _start(node: Json, slot: int, plan: AddressPlan, settings: Settings) -> int | None:
    """Return the position of slot 0, by a Node of another slot."""
    position = plan.position_of(_internal(node))
    if position is None:
        return None
    start = position - slot
    return start if start >= 0 and start + settings.most <= plan.room else None


def _internal(node: Json) -> Iterator[str]:
    for each in (node.get("status") or {}).get("addresses") or ():
        if each.get("type") in ("InternalIP", "ExternalIP"):
            yield each.get("address", "")
