"""`fleet scale`: another number of nodes for a run that goes on, and `fleet status`.

    on this machine    an order on the run's socket; its first process shares it out
    in a cluster       the annotation `fleet.emulator/nodes` of the Lease of each shard, which its
                       holder finds at the next renewal, within 10 s

A run has room for `--max-nodes`: so many names, addresses and files were checked when it began. A
shard that is started again has as many nodes as it was scaled to. Each change ends the steady part
of the run, as on a dashboard.
"""

from dataclasses import dataclass

from fleet.background import Background
from fleet.cluster.api_client import Api, Cluster, expect
from fleet.cluster.credentials import ClusterSelection
from fleet.cluster.kept_records import read_records
from fleet.cluster.runs import (
    NODES_ANNOTATION,
    RUN_LEASES,
    RunLease,
    Size,
    find_leases,
    list_runs,
    read_holder,
)
from fleet.errors import FleetError, UsageError
from fleet.host.elastic import ElasticFleet
from fleet.host.node_host import NodeHost
from fleet.host.siblings import Siblings
from fleet.profile.settings import Settings
from fleet.report.record import load, so_far
from fleet.report.run_directory import RECORD
from fleet.run.clean_command import age_words
from fleet.run.control_socket import Json, Listed, ask, find_run, running
from fleet.run.observation import Observation


@dataclass(eq=False)
class Scaling:
    """The number of nodes of a run, `settings` being those of all its processes."""

    _settings: Settings
    _host: NodeHost
    _lease: RunLease
    _api: Api
    _background: Background
    _observation: Observation
    _fleet: ElasticFleet | None = None

    def __post_init__(self) -> None:
        self.nodes = self._settings.nodes
        """Of all processes."""

    def open(self) -> None:
        """Follow the Lease, from when all nodes have been Ready once."""
        self._lease.on_nodes = self._follow
        size = self._lease.size
        if size is not None and size.nodes != size.begun:  # it was scaled before it started again
            self._follow(size.nodes)

    async def scale(self, nodes: int, siblings: Siblings | None) -> Json:
        """Have so many nodes from now on. Raises UsageError, and FleetError if a process fails."""
        settings, most, before = self._settings, self._settings.most, self.nodes
        if nodes > most:
            raise UsageError(f"--nodes {nodes}: this run has room for {most}; see --max-nodes")
        parts = [settings.part(nodes, number) for number in range(settings.processes)]
        directories = siblings.run_directories() if siblings is not None else []
        for directory, part in zip(directories, parts[1:], strict=True):
            await ask(directory, {"do": "scale", "nodes": part})
        if self._lease.size is not None:
            self._lease.size = self._lease.size._replace(nodes=parts[0])
        self._follow(parts[0])
        self.nodes = nodes
        return {"nodes": nodes, "told": f"{nodes:,} nodes from now on, {before:,} before"}

    def _follow(self, nodes: int) -> None:
        """Have so many nodes in this process."""
        if self._fleet is None:
            self._fleet = ElasticFleet(self._host, self._api, self._host.size)
            self._background.keep("the number of nodes", self._fleet.run)
            self._background.keep("the look for a steady part", self._observation.follow)
        if self._settings.processes == 1:
            self.nodes = nodes
        self._fleet.aim(nodes)


async def scale_here(run: str, nodes: int) -> Json:
    """Scale a run of this machine, "" for the only one; return its answer."""
    listed = [each.directory for each in running() if each.run_id == run]
    if run and not listed:
        known = ", ".join(each.run_id for each in running()) or "none"
        raise UsageError(
            f"{run}: no such run on this machine (there are: {known}); name its cluster with "
            "--context"
        )
    return await ask(find_run(listed[0] if listed else None), {"do": "scale", "nodes": nodes})


async def scale_in_cluster(selection: ClusterSelection, run: str, nodes: int) -> Json:
    """Have the shards of a run in a cluster share so many nodes."""
    if not run:
        raise UsageError("name the run to scale: fleet status lists them")
    async with await Cluster.connect(selection) as cluster:
        return await scale_shards(cluster.api("scale"), run, nodes)


async def scale_shards(api: Api, run: str, nodes: int) -> Json:
    """Write into the Lease of each living shard how many nodes it is to have."""
    leases, _refused, now_s = await find_leases(api, run)
    alive = [each for each in leases if read_holder(each, now_s).is_alive]
    sizes = [Size.of(each) for each in alive]
    if not alive or None in sizes:
        raise UsageError(f"{run}: no shard of this run is alive in this cluster and can be scaled")
    rooms = [size.most for size in sizes if size is not None]
    if nodes > sum(rooms):
        raise UsageError(f"--nodes {nodes}: the shards of this run have room for {sum(rooms)}")
    left = nodes
    for at, (lease, size) in enumerate(
        sorted(zip(alive, sizes, strict=True), key=lambda each: each[1].most if each[1] else 0)
    ):
        assert size is not None
        part = min(-(-left // (len(alive) - at)), size.most)  # small ones first; others have more
        left -= part
        name, uid = lease["metadata"]["name"], lease["metadata"]["uid"]
        notes = {NODES_ANNOTATION: str(size._replace(nodes=part))}
        patch = {"metadata": {"uid": uid, "annotations": notes}}
        path = f"{RUN_LEASES}/{name}"
        answer = await api.request("PATCH", path, body=patch)
        expect(answer, f"cannot scale the shard of {name}")
    shards = f"{len(alive)} shards" if len(alive) > 1 else "1 shard"
    return {"nodes": nodes, "told": f"{nodes:,} nodes for {shards}, within 10 s"}


# ---- fleet status ----

NOTHING = "no fleet runs on this machine; name a cluster to see what runs there"


async def status(selection: ClusterSelection) -> list[Json]:
    """Return a row for each run of this machine, and of the cluster if one is named."""
    rows = [await _row(each) for each in running()]
    if selection.is_named:
        async with await Cluster.connect(selection) as cluster:
            known = {row["run"] for row in rows}
            rows += [row for row in await rows_of(cluster.api("status")) if row["run"] not in known]
    return rows


async def _row(fleet: Listed) -> Json:
    row: Json = {"run": fleet.run_id, "nodes": str(fleet.nodes), "age": "-", "verdict": "-"}
    try:
        told = await ask(fleet.directory, {"do": "status"})
    except FleetError:  # it has just ended, or is busy
        told = None
    if told is not None:
        row["nodes"] = f"{told['ready']} of {told['nodes']} Ready"
        row |= {"age": age_words(int(told["age_s"])), "verdict": told["verdict"]}
    return row | {"where": str(fleet.directory)}


async def rows_of(api: Api) -> list[Json]:
    """Return a row for each run of a cluster; the verdict is of what its shards have kept."""
    rows = []
    for info in (await list_runs(api)).runs:
        try:
            kept = await read_records(api, info.run) if info.objects else {}
            records = [load(files[RECORD]) for files in kept.values() if RECORD in files]
        except (FleetError, ValueError):  # we may not list them, or another version wrote them
            records = []
        verdict = so_far(records).value if records else "-"
        row: Json = {"run": info.run, "nodes": str(info.nodes), "age": age_words(info.age_s)}
        where = "cluster" if info.is_alive else "cluster, not running"
        rows.append(row | {"verdict": verdict, "where": where})
    return rows
