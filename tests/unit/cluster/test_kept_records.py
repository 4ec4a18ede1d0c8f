"""Records of shards in the cluster: found by both marks, read back, removed by `fleet clean`."""

import asyncio
import base64
import gzip
import os
from copy import deepcopy
from pathlib import Path

import orjson
import pytest
from world.cluster_fakes import FakeApi

from fleet.cluster.cleanup import clean_run
from fleet.cluster.identity import Permission
from fleet.cluster.kept_records import (
    BYTES_MAX,
    CONFIG_MAPS,
    RECORD_OF,
    find_records,
    keep_record,
    packed,
    read_records,
    record_name,
)
from fleet.cluster.ownership import OWNER_ANNOTATION
from fleet.cluster.runs import list_runs
from fleet.errors import Exit, SetupError
from fleet.report.record import Record, load
from fleet.report.report import RunFigures
from fleet.report.run_directory import CONTROLPLANE, RECORD, TIMESERIES, bundle
from fleet.run.clean_command import Choice, clean

RUN = "big"
NAME = record_name(RUN, 7, 1_800_000_000.5)
MIB = 1 << 20


def kept(*shards: int) -> FakeApi:
    """Return a cluster with the records of some shards, and two copies that are somebody else's."""
    api = FakeApi()

    async def keep() -> None:
        for shard in shards:
            name = record_name(RUN, shard, 1_800_000_000.5)
            for content in (b"first", f"shard {shard}".encode()):
                await keep_record(api, RUN, name, {RECORD: packed(content)})

    asyncio.run(keep())
    api.put(f"{CONFIG_MAPS}/unmarked", metadata={"labels": {RECORD_OF: RUN}})
    copied = {"labels": {RECORD_OF: RUN}, "annotations": {OWNER_ANNOTATION: "big/default/other"}}
    api.put(f"{CONFIG_MAPS}/copied", metadata=copied)
    return api


def test_the_last_record_of_each_shard_is_read_back() -> None:
    found = asyncio.run(read_records(kept(0, 3), RUN))
    assert list(found) == ["fleet-record-big-0000-6b49d200", "fleet-record-big-0003-6b49d200"]
    assert [files[RECORD] for files in found.values()] == [b"shard 0", b"shard 3"]
    assert asyncio.run(read_records(kept(0), "other")) == {}


FOREIGN = [
    {},
    {"labels": {RECORD_OF: RUN}},
    {"annotations": {OWNER_ANNOTATION: f"{RUN}/default/{NAME}"}},
    {"labels": {RECORD_OF: "other"}, "annotations": {OWNER_ANNOTATION: f"other/default/{NAME}"}},
    {"labels": {RECORD_OF: RUN}, "annotations": {OWNER_ANNOTATION: f"{RUN}/default/another"}},
]


@pytest.mark.parametrize("metadata", FOREIGN)
def test_a_config_map_of_somebody_else_with_the_name_of_a_record_stays_as_it_is(
    metadata: dict[str, object],
) -> None:
    api = FakeApi()
    foreign = deepcopy(api.put(f"{CONFIG_MAPS}/{NAME}", metadata=metadata, data={"a": "b"}))
    with pytest.raises(SetupError, match=rf"default/{NAME} is not one of run big: it stays"):
        asyncio.run(keep_record(api, RUN, NAME, {RECORD: packed(b"first")}))
    assert api.objects == {f"{CONFIG_MAPS}/{NAME}": foreign}


def test_who_takes_the_name_of_a_record_that_was_removed_keeps_it() -> None:
    api = FakeApi()
    uid = asyncio.run(keep_record(api, RUN, NAME, {RECORD: packed(b"first")}))
    foreign = deepcopy(api.put(f"{CONFIG_MAPS}/{NAME}", data={"a": "b"}))
    with pytest.raises(SetupError, match="it stays"):
        asyncio.run(keep_record(api, RUN, NAME, {RECORD: packed(b"second")}, uid))
    assert api.objects == {f"{CONFIG_MAPS}/{NAME}": foreign}


def test_a_record_is_replaced_by_its_uid_and_written_again_if_it_was_removed() -> None:
    api = FakeApi()
    uid = asyncio.run(keep_record(api, RUN, NAME, {RECORD: packed(b"first")}))
    assert asyncio.run(keep_record(api, RUN, NAME, {RECORD: packed(b"second")}, uid)) == uid
    assert api.log == [("POST", CONFIG_MAPS), ("PUT", f"{CONFIG_MAPS}/{NAME}")]
    del api.objects[f"{CONFIG_MAPS}/{NAME}"]
    assert asyncio.run(keep_record(api, RUN, NAME, {RECORD: packed(b"third")}, uid)) != uid
    assert asyncio.run(read_records(api, RUN)) == {NAME: {RECORD: b"third"}}


def test_what_is_no_record_is_an_error_in_one_line() -> None:
    api = kept(0)
    [path] = [each.path for each in asyncio.run(find_records(api, RUN))]
    api.objects[path]["binaryData"] = {f"{RECORD}.gz": base64.b64encode(b"no gzip").decode()}
    with pytest.raises(SetupError, match=r"ConfigMap default/fleet-record-.* is no record"):
        asyncio.run(read_records(api, RUN))


def test_the_end_of_a_run_leaves_its_records_and_a_clean_up_removes_them() -> None:
    api = kept(0, 1)
    asyncio.run(clean_run(api, RUN, keeps_records=True))
    [run] = asyncio.run(list_runs(api)).runs
    assert (run.run, run.nodes, run.is_alive, len(run.objects)) == (RUN, 0, False, 2)
    said: list[str] = []
    assert asyncio.run(clean(api, Choice(run=RUN), say=said.append)) is Exit.OK
    assert sorted(api.objects) == [f"{CONFIG_MAPS}/copied", f"{CONFIG_MAPS}/unmarked"]


def test_who_may_not_list_records_cleans_up_all_the_same() -> None:
    api = kept(0)
    api.denied.add(Permission("list", "", "configmaps", namespace="default"))
    assert asyncio.run(find_records(api)) == []
    asyncio.run(clean_run(api, RUN))


def test_a_record_fits_into_a_config_map_however_long_the_run_was(tmp_path: Path) -> None:
    lines = (orjson.dumps({"wall_s": at, "x": os.urandom(200).hex()}) for at in range(4_000))
    (tmp_path / TIMESERIES).write_bytes(b"\n".join(lines))
    sample = {"component": "etcd", "took_ms": 1, "bytes": 9, "histograms": {}, "bounds": {}}
    sample |= {"wall_s": 1, "values": {"x": {"": 1}}}
    (tmp_path / CONTROLPLANE).write_bytes(orjson.dumps(sample) + b"\n")
    record = Record(figures=RunFigures(run_id=RUN))
    assert list(bundle(tmp_path, record, BYTES_MAX)) == [RECORD]
    record.is_over = True
    files = bundle(tmp_path, record, BYTES_MAX)
    assert set(files) == {RECORD, TIMESERIES, CONTROLPLANE}
    api = FakeApi()
    asyncio.run(keep_record(api, RUN, "whole", files))
    assert len(orjson.dumps(api.objects[f"{CONFIG_MAPS}/whole"])) < MIB
    back = asyncio.run(read_records(api, RUN))["whole"]
    assert load(back[RECORD]).is_over
    assert back[CONTROLPLANE]
    assert 500 < len(back[TIMESERIES].splitlines()) < 2_000


def test_what_cannot_be_thinned_until_it_fits_is_left_out(tmp_path: Path) -> None:
    (tmp_path / TIMESERIES).write_bytes(b'{"x": "%b"}\n' % os.urandom(9_000).hex().encode() * 9)
    (tmp_path / CONTROLPLANE).write_bytes(b"")
    record = Record(figures=RunFigures(run_id=RUN), is_over=True)
    files = bundle(tmp_path, record, 9_000)
    assert files[TIMESERIES] == files[CONTROLPLANE] == packed(b"")
    assert load(gzip.decompress(files[RECORD])).is_over
