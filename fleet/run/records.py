"""The record of a shard in the cluster: kept while the run is on, and made one report of.

The API server is the meeting point of shards that share no file system. What cannot be written is
reported once and tried again; the files in the run directory are there in any case.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from fleet.cluster.api_client import Api, Cluster
from fleet.cluster.cleanup import PATIENCE_S
from fleet.cluster.credentials import ClusterSelection
from fleet.cluster.kept_records import BYTES_MAX, keep_record, read_records, record_name
from fleet.errors import SetupError, UsageError
from fleet.report.record import Record
from fleet.report.run_directory import CONTROLPLANE, RECORD, RUNS_DIRECTORY, TIMESERIES, bundle
from fleet.run.clean_command import standing

FILES = {RECORD, TIMESERIES, CONTROLPLANE}
SHARDS = "shards"
"""Where the records of a whole run are, in its run directory."""
KEEP_EVERY_S = 30.0
"""What a pod that is killed loses at most."""


class Records:
    """Keeps the record of one process. `note` is for the user."""

    def __init__(self, cluster: Cluster, directory: Path, note: Callable[[str], None]) -> None:
        self._api = cluster.api("record", patience_s=PATIENCE_S)
        self._directory = directory
        self._note = note
        self._problem = ""
        self._uid = ""  # of the ConfigMap, once it is written

    async def run(self, record: Callable[[], Record]) -> None:
        """Write it over again and again, until cancelled."""
        while True:
            await self.keep(record())
            await asyncio.sleep(KEEP_EVERY_S)

    async def keep(self, record: Record) -> None:
        """Write it, or say why that is not possible."""
        run = record.figures.run_id
        name = record_name(run, record.shard, record.began_s)
        files = bundle(self._directory, record, BYTES_MAX)
        try:
            self._uid = await keep_record(self._api, run, name, files, self._uid)
        except SetupError as error:
            problem = f"the record of this shard is not in the cluster: {error}"
            if problem != self._problem:
                self._note(f"{problem}; it is in {self._directory} (fleet report --merge)")
            self._problem = problem


async def fetch_records(selection: ClusterSelection, run: str, directory: Path | None) -> Path:
    """Write the records of a run into run directories, and return where they are.

    Raises UsageError if there are none.
    """
    selection = selection if selection.is_named else standing()
    async with await Cluster.connect(selection) as cluster:
        directory = directory or RUNS_DIRECTORY / f"{run}-merged"
        if not await write_records(cluster.api("record"), run, shards := directory / SHARDS):
            raise UsageError(f"--run {run}: no shard of this run has left a record in this cluster")
        return shards


async def write_records(api: Api, run: str, shards: Path) -> int:
    """Write what `fetch_records` fetches into a directory; return how many records there are."""
    found = await read_records(api, run)
    for name, files in found.items():
        (shards / name).mkdir(parents=True, exist_ok=True)
        for file in FILES & files.keys():
            (shards / name / file).write_bytes(files[file])
    return len(found)
