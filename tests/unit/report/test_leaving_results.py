"""Results that other programs read: their own parsers take what fleet writes."""

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest
from junitparser import Failure, JUnitXml
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from run_files import figures_at, write_run
from support.summary_schema import VALIDATOR, errors_of

from fleet.metrics import Requests
from fleet.report.comparison import compare
from fleet.report.figures import AgentFigures
from fleet.report.openmetrics import openmetrics
from fleet.report.record import merge
from fleet.report.report import RunFigures, summary
from fleet.report.report_command import compared_junit, junit
from fleet.report.run_directory import RunRecord, read_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    path = tmp_path_factory.mktemp("leaving") / "run"
    write_run(path, is_slow=True, fault=True)
    return read_run(path)


def errors(content: object) -> list[str]:
    return errors_of(json.loads(json.dumps(content)))


def test_summaries_are_as_their_schema_says(run: RunRecord) -> None:
    VALIDATOR.check_schema(VALIDATOR.schema)
    assert errors(run.summary) == []
    assert errors(summary(RunFigures(run_id="nothing"))) == []
    answers = Requests()
    answers.record(("GET", "nodes"), 200, 1_000)
    proxies = {"kube-proxy": AgentFigures(running=2, requests=answers)}
    most = replace(
        figures_at(60, 5_000), agents=proxies, own_limits={"open files": 2}, rejected={"a": 1}
    )
    assert errors(summary(merge([most, figures_at(50, 900)]))) == []


@pytest.mark.parametrize("change", [{"verdict": "fine"}, {"wall_s": "1"}, {"nodes": {}}])
def test_the_schema_refuses_what_fleet_would_never_write(
    run: RunRecord, change: dict[str, object]
) -> None:
    assert len(errors(run.summary | change)) >= 1
    assert errors({key: run.summary[key] for key in run.summary if key not in change})


def test_openmetrics_has_every_number_of_the_summary(run: RunRecord) -> None:
    read: Iterable[Metric] = text_string_to_metric_families(  # type: ignore[no-untyped-call]
        openmetrics(run)
    )
    families = {each.name: each for each in read}
    [info] = families["fleet_run"].samples
    assert (info.labels["verdict"], info.labels["run_id"]) == (run.verdict, run.name)

    def of(name: str, **labels: str) -> float:
        [found] = [
            each.value for each in families[name].samples if labels.items() <= each.labels.items()
        ]
        return float(found)

    assert of("fleet_run_nodes_ready") == run.number("nodes.ready")
    assert of("fleet_run_requests_count", verb="PUT", resource="leases", code="200") == 240
    [broken] = [each for each in run.levels if each.met is False]
    assert of("fleet_run_slis_measured", sli=broken.sli) == broken.measured
    assert of("fleet_run_slis_met", sli=broken.sli) == 0
    numbers = sum(len(each.samples) for each in families.values()) - 1
    assert numbers == count(run.summary)


def count(value: object) -> int:
    """Count the numbers in a value; the code of an answer is a label."""
    if isinstance(value, dict):
        return sum(count(each) for key, each in value.items() if key != "code")
    if isinstance(value, list):
        return sum(map(count, value))
    return isinstance(value, int | float)


def test_junit_is_read_by_a_parser_of_junit(run: RunRecord) -> None:
    for text in (junit(run), compared_junit(compare([run, run], 0.1))):
        [suite] = JUnitXml.fromstring(text.encode())
        cases = list(suite)
        stated = (suite.tests, suite.failures, suite.errors, suite.skipped)
        suite.update_statistics()  # type: ignore[no-untyped-call]
        assert stated == (suite.tests, suite.failures, suite.errors, suite.skipped)
        assert suite.tests == len(cases) > 1
    [suite] = JUnitXml.fromstring(junit(run).encode())
    failed = [case.name for case in suite for each in case.result if isinstance(each, Failure)]
    assert "MutatingApiCallLatency" in failed
