"""The comparison itself, on a recording: what it must find, and what it leaves to chance."""

import dataclasses
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from judge import Recording, load
from listed_differences import read_listed, too_often
from mutations import MUTATIONS, Mutation
from normalisation import TABLE, Normaliser
from oracle_limits import LIMITS, PAGE
from scene import SIDES
from value_comparison import Trace

RECORDED = Path(__file__).with_name("recorded.json.gz")


@cache
def recorded() -> Recording:
    return load(RECORDED)


@cache
def traces() -> tuple[Trace, Trace]:
    return recorded().traces()


def lines(real: Trace, fleet: Trace) -> set[str]:
    return set(recorded().compare_traces(real, fleet).lines)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_found(name: str) -> None:
    real, fleet = traces()
    mutate: Mutation = MUTATIONS[name]
    assert lines(real, mutate(fleet)) - lines(real, fleet)


def test_a_node_does_not_differ_from_itself() -> None:
    for trace in traces():
        assert lines(trace, trace) == set()


def by(trace: Trace, seconds: float) -> Trace:
    """Let everything come later."""
    moved = [dataclasses.replace(each, at_s=each.at_s + seconds) for each in trace.exchanges]
    return trace._replace(exchanges=moved)


def test_all_that_comes_later_by_less_than_the_limit_is_the_same() -> None:
    real, _ = traces()
    [limit_s] = LIMITS["offset_s"]
    assert not [line for line in lines(real, by(real, limit_s - 0.1)) if "time:" in line]
    assert [line for line in lines(real, by(real, limit_s + 0.1)) if "time:" in line]


def test_reads_of_a_claim_have_a_limit() -> None:
    real, _ = traces()
    read = next(each for each in real.exchanges if (each.verb, each.resource) == ("get", "pods"))
    claim = dataclasses.replace(read, resource="persistentvolumeclaims", name="data")
    [limit] = LIMITS["reads_of_a_claim"]

    def reading(times: int) -> Trace:
        return real._replace(exchanges=[*real.exchanges, *[claim] * times])

    once, most = reading(1), reading(1 + int(limit))
    assert lines(once, most) == set()
    assert lines(once, reading(2 + int(limit)))
    assert lines(real, once)


def test_replays_have_a_limit() -> None:
    [of_scene], [of_all] = LIMITS["replays_of_a_scene"], LIMITS["replays"]
    assert not too_often({"a": int(of_scene)}, LIMITS)
    assert too_often({"a": int(of_scene) + 1}, LIMITS)
    assert too_often(dict.fromkeys(map(str, range(int(of_all) + 1)), 1), LIMITS)


def test_every_row_of_the_list_is_read() -> None:
    listed = read_listed(PAGE)
    assert len(listed) + len(LIMITS) == PAGE.read_text().count("\n| `")
    for each in listed:
        re.compile(each.match)
        assert each.reason
        assert re.search(r"[\w/-]+\.go\b|/impersonation$", each.source), each


def test_every_rule_of_normalisation_is_needed() -> None:
    """A rule that changes nothing in a recording would hide what nobody has seen."""
    changed = set(used_rules())
    assert changed == {rule.what for rule in TABLE}


def used_rules() -> Iterator[str]:
    recording = recorded()
    for rule in TABLE:
        pattern = re.compile(re.escape(rule.word))
        for trace in recording.traces():
            texts = (
                str(part)
                for each in trace.exchanges
                for part in (
                    each.name,
                    each.path,
                    *each.body.values(),
                    *each.state.values(),
                    *each.headers.values(),
                )
            )
            if any(pattern.search(text) for text in texts):
                yield rule.what
                break


def test_names_of_both_nodes_are_one_word() -> None:
    plain = Normaliser({"real-0": "NODE", "scene-real": "SCENE"})
    assert (
        plain.text("pod of scene-real on real-0 at 127.0.0.9:80") == "pod of SCENE on NODE at IP:80"
    )
    assert plain.text("12", "metadata.resourceVersion") == "N"
    assert plain.text("0", "metadata.resourceVersion") == "0"
    assert set(SIDES) == {"real", "fleet"}
