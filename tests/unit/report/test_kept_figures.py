"""What one process of a run hands to another is complete, and is data."""

import math
import pickle
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest
from run_files import figures_at

import fleet
from fleet.metrics import Histogram, Requests
from fleet.report.control_plane import Exposition
from fleet.report.figure import is_record
from fleet.report.figures import AgentFigures
from fleet.report.record import Record, dump, load, merge
from fleet.report.report import Expectation, Phase, RunFigures, ServiceLevel, summary
from fleet.report.service_levels import Evidence, Objective


def filled(record: object) -> None:
    """Set every number of a record, and those inside, to one of its own."""
    assert is_record(record)
    for number, each in enumerate(fields(record), start=3):
        value = getattr(record, each.name)
        if isinstance(value, Histogram):
            value.record(number * 1_000)
            value.record(number * 700_000)
        elif isinstance(value, Requests):
            value.record(("GET", "pods"), 200, number, 77)
            value.record(("PUT", "leases"), 0, number)
        elif is_record(value):
            filled(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            object.__setattr__(record, each.name, type(value)(number))


def whole() -> RunFigures:
    figures = figures_at(100, 5_000)
    agent = AgentFigures()
    for record in (figures.pods, figures.watch, figures.connections, figures.process, agent):
        filled(record)
    figures.agents = {"kube-proxy": agent}
    figures.rejected = {"a pod": 2}
    figures.slis = [ServiceLevel(sli="PodStartupLatency", measured=1.5, met=True)]
    figures.phases = [Phase(name="steady", from_s=1.0)]
    figures.expectations = [Expectation("x", is_met=True)]
    figures.incomplete_reasons = ["it was killed"]
    return figures


def same(one: object, other: object) -> bool:
    """Compare values that may have no equality of their own."""
    if is_record(one) and is_record(other):
        return type(one) is type(other) and all(
            same(getattr(one, each.name), getattr(other, each.name)) for each in fields(one)
        )
    if isinstance(one, Histogram) and isinstance(other, Histogram):
        return all(getattr(one, name) == getattr(other, name) for name in Histogram.__slots__)
    if isinstance(one, Requests) and isinstance(other, Requests):
        return one.rows.keys() == other.rows.keys() and all(
            same(list(codes.values()), list(other.rows[row].values()))
            and [*codes] == [*other.rows[row]]
            for row, codes in one.rows.items()
        )
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Sequence) and isinstance(other, Sequence) and not isinstance(one, str):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other and type(one) is type(other)


def test_everything_that_was_measured_comes_back() -> None:
    figures = whole()
    told = Exposition({("a", "x|y"): 1.5}, {("b", ""): [1.0, 2.0]}, {"b": [0.5, math.inf]})
    client = [("GET", "pods", 200, Histogram())]
    client[0][3].record(70)
    record = Record(
        shard=3,
        name="fleet-0003",
        began_s=1.5,
        ready_s=2.5,
        is_leader=True,
        figures=figures,
        evidence=Evidence(steady_s=9.5, steady=told, whole=told, client=client),
        objectives=(Objective("LeaseLateness", 99.0, 0.5, "fleet"),),
        waited=(Expectation("x", is_met=None),),
        about={"options": {"nodes": 3}, "local_control_plane": True},
    )
    back = load(dump(record))
    assert same(back, record)
    both = merge([figures, back.figures])
    assert summary(both) == summary(merge([figures, figures]))


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b"\xc0", pickle.dumps(1), msgspec.msgpack.encode({"figures": 3})],
)
def test_what_is_no_record_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="no record of a process"):
        load(content)


def test_nothing_that_fleet_reads_can_run_code() -> None:
    root = Path(fleet.__file__).parent
    for path in root.rglob("*.py"):
        words = set(path.read_text().replace("(", " ").replace(".", " ").split())
        assert not words & {"pickle", "marshal", "shelve", "dill", "eval", "unsafe_load"}, path
