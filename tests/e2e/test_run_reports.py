"""Reports of real runs: in a real browser, of a control plane that is slow, of a starved fleet."""

import asyncio
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.chromium import INSTALL, Page, browse, find_chromium
from e2e.e2e_world import DEDICATED, World, eventually, workload
from e2e.lateness import assert_done
from fleet.controlplane.options import APISERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER
from fleet.report.report import LAG_LEAST_S, STANDSTILL_LIMIT_MS
from fleet.report.run_directory import read_run
from fleet.report.service_levels import INDICATORS

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PREFIX = "told"
NODES = 20
SECONDS = 14
"""Of a run that is looked at: its control plane was asked three times and more."""
REPORT_BYTES_MAX = 3_000_000
STRICT = """
apiVersion: fleet.emulator/v1alpha1
kind: ServiceLevelObjectives
metadata: {name: strict}
spec:
  defaults: false
  expectations:
  - {sli: MutatingApiCallLatency, percentile: 99, max: 1500ms}
  - {sli: SingleObjectReadLatency, max: 20s}
"""
PLOTS = """[...document.querySelectorAll('figure canvas')].map(each => each.getContext('2d')
  .getImageData(0, 0, each.width, each.height).data.some(value => value))"""
"""Of each plot, whether anything is drawn."""
OVERLAPS = """[...document.querySelectorAll('figure')].some(figure => {
  const boxes = [...figure.querySelectorAll('.phase')].map(each => each.getBoundingClientRect());
  boxes.sort((one, other) => one.left - other.left);
  return boxes.some((box, at) => at && box.left < boxes[at - 1].right - 0.5);
})"""
"""Whether the name of a phase lies over that of another."""
SPILL = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
LENGTH = "document.documentElement.scrollHeight"
NARROW_LENGTH_MAX = 4100
PAPER = "getComputedStyle(document.body).backgroundColor"
SMALLEST = """Math.min(...[...document.querySelectorAll('.u-legend *, .phase')].map(each =>
  parseFloat(getComputedStyle(each).fontSize)))"""


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLEET_NO_REPORT")


def levels(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["sli"]: each for each in summary["slis"]}


async def look_at(page: Page, report: Path, shots: Path) -> None:
    await page.call("Network.enable")
    await page.call("Log.enable")
    await page.open(report.as_uri())
    drawn = await page.until(PLOTS)
    assert len(drawn) >= 12, drawn
    assert all(drawn), drawn
    shown = await page.ask("document.querySelectorAll('#service-levels tbody tr').length")
    assert shown == len(INDICATORS)
    assert await page.ask("document.querySelectorAll('#what-limited-the-run tbody tr').length") >= 3
    assert await page.ask("document.querySelectorAll('.limit').length") >= 4  # lines in plots
    papers = set()
    for width, height in ((1280, 2400), (390, 1800)):
        for scheme in ("light", "dark"):
            await page.call(
                "Emulation.setDeviceMetricsOverride",
                width=width, height=height, deviceScaleFactor=1, mobile=width < 500,
            )  # fmt: skip
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            await page.call("Emulation.setEmulatedMedia", features=features)
            # charts take their new width a moment later
            await page.until(f"({SPILL}) <= 0")
            await page.until(f"!({OVERLAPS})")
            assert await page.ask(SMALLEST) >= 10, (width, scheme)
            assert width > 500 or await page.ask(LENGTH) <= NARROW_LENGTH_MAX
            assert await page.ask("document.querySelectorAll('.phase.phase').length")
            papers.add(await page.ask(PAPER))
            await page.screenshot(shots / f"report-{width}-{scheme}.png")
    assert len(papers) == 2
    assert not page.errors
    assert [each for each in page.requests if not each.startswith(("file:", "data:"))] == []


@pytest.mark.skipif(not find_chromium(), reason=INSTALL)
@pytest.mark.usefixtures("reports")
def test_a_report_is_whole_in_a_browser(world: World, tmp_path: Path) -> None:
    world.apply(workload("Deployment", "web", 30))
    with world.spawn(PREFIX, NODES, world.quick(), has_levels=True) as run:
        run.until_ready()
        eventually(lambda: len(world.ready_pods("web")) == 30, "pods run")
        series = run.directory / "timeseries.jsonl"
        lines = len(series.read_text().splitlines())
        eventually(lambda: len(series.read_text().splitlines()) >= lines + SECONDS, "some seconds")
        printed = run.end_well_or_late()
    world.kubectl("delete", "deployment", "web")
    report = run.directory / "report.html"
    assert str(report) in printed
    assert '<section id="start-of-pods"' in report.read_text()
    summary = run.summary()
    asked = summary["controlplane"]["asked_by_fleet"]["metrics"]
    assert asked - summary["controlplane"]["lost"] >= 2  # a busy component answers too late
    known = read_run(run.directory).samples.of
    assert set(known) == {APISERVER, SCHEDULER, CONTROLLER_MANAGER, ETCD}
    found = levels(summary)
    assert found["MutatingApiCallLatency"]["samples"] > 50
    starts = summary["pods"]
    for part in ("api", "fleet", "simulated"):
        assert 0 <= starts[f"start_{part}_ms"]["p50"] <= starts["start_ms"]["p99"], part
    assert starts["start_api_ms"]["p50"] > 0
    if starts["start_scheduler_ms"]["p50"] is None:
        assert summary["controlplane"]["lost"]
    assert found["PodStartupLatency"]["p50"] <= found["PodStartupLatency"]["measured"]
    # Less than a minute is no sample.
    assert summary["wall_s"] >= 60 or not found["MutatingApiCallLatency"]["judged"]
    assert found["PodStartupLatency"]["samples"] >= 30
    assert summary["expectations"] == []

    async def scenario() -> None:
        async with browse(tmp_path) as page:
            await look_at(page, report, run.directory)

    asyncio.run(scenario())
    world.assert_nothing_left(PREFIX)


OUTAGE = """
apiVersion: fleet.emulator/v1alpha1
kind: Scenario
metadata: {name: outage}
spec:
  seed: 7
  nodePools: [{name: main, profile: default, replicas: 300}]
  phases:
  - name: load
    apply:
    - manifest:
        apiVersion: apps/v1
        kind: Deployment
        metadata: {name: outage}
        spec:
          replicas: PODS
          selector: {matchLabels: {app: outage}}
          template:
            metadata: {labels: {app: outage}}
            spec: {containers: [{name: c, image: nginx}]}
    until: {condition: PodsReady, timeout: 10m}
  - {name: before, duration: 30s}
  - name: outage
    duration: 100s
    faults:
    - {type: Partition, mode: BlackHole, zone: zone-b, at: 5s, duration: 85s}
  - name: recovery
    duration: 30s
    until: {condition: NodesReady, timeout: 10m}
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not find_chromium(), reason=INSTALL)
@pytest.mark.usefixtures("reports")
def test_the_report_of_a_zone_outage_is_whole_in_a_browser(world: World, tmp_path: Path) -> None:
    """With 2,000 nodes, or $FLEET_REPORT_NODES: `make report-outage`, which keeps the pictures."""
    nodes = int(os.environ.get("FLEET_REPORT_NODES", "2000"))
    kept = Path(os.environ.get("FLEET_REPORT_SHOTS", tmp_path / "shots"))
    kept.mkdir(parents=True, exist_ok=True)
    path = tmp_path / "outage.yaml"
    path.write_text(OUTAGE.replace("PODS", str(nodes)))
    named = (f"--kubeconfig={world.info.kubeconfig}", *DEDICATED, "--zone-labels")
    with world.start("dark", "run", str(path), f"--nodes={nodes}", *named) as run:
        printed, _ = run.process.communicate(timeout=3000)
    report = run.directory / "report.html"
    assert_done(run.process.returncode, printed, run.log)
    summary = run.summary()
    assert summary["nodes"]["registered"] == nodes
    assert [each["name"] for each in summary["phases"] if each["kind"] == "fault"] == [
        "Partition BlackHole"
    ]
    assert summary["nodes"]["ever_not_ready"] >= nodes // 3, printed
    assert report.stat().st_size < REPORT_BYTES_MAX
    shutil.copy(report, kept)

    async def scenario() -> None:
        async with browse(tmp_path) as page:
            await look_at(page, report, kept)
            text = await page.ask("document.body.innerText")
            assert "Partition BlackHole" in text  # and how long until as many were Ready again
            assert f"{nodes:,} / {nodes:,}" in text or summary["nodes"]["ready"] < nodes

    asyncio.run(scenario())
    world.assert_nothing_left("dark")


@pytest.mark.slow  # of a real server's latency; unit tests of service levels have the verdict
@pytest.mark.usefixtures("reports")
def test_a_slow_control_plane_fails_and_is_named(world: World, tmp_path: Path) -> None:
    """The server's etcd stalls for 5 s: the run is valid, fails, and says what broke first."""
    slo = tmp_path / "slo.yaml"
    slo.write_text(STRICT)
    etcd = world.info.pids[ETCD]
    with world.spawn(PREFIX, NODES, f"--slo={slo}", world.quick(), has_levels=True) as run:
        run.until_ready()
        time.sleep(4)
        os.kill(etcd, signal.SIGSTOP)
        try:
            time.sleep(5)
        finally:
            os.kill(etcd, signal.SIGCONT)
        time.sleep(8)
        run.interrupt()
        printed, _ = run.process.communicate(timeout=240)
    assert_done(run.process.returncode, printed, run.log, expected=1)
    summary = run.summary()
    assert summary["verdict"] == "fail", printed
    met = {each["name"].split()[0]: each["met"] for each in summary["expectations"]}
    assert met == {"MutatingApiCallLatency": False, "SingleObjectReadLatency": True}
    assert "NOT MET: MutatingApiCallLatency p99 <= 1.5 s (" in printed
    told = world.fleet("report", str(run.directory), "--format", "json")
    broken = json.loads(told.stdout)["first_broken"]
    assert broken["sli"] == "MutatingApiCallLatency"
    assert re.search(r" s, (PUT|POST|PATCH) [a-z/]+, over its limit", broken["words"])
    assert broken["at_s"] is not None
    text = (run.directory / "report.html").read_text()
    assert "what broke first" in text
    world.assert_nothing_left(PREFIX)


@pytest.mark.usefixtures("reports")
def test_a_sick_server_ends_a_run_in_order(world: World) -> None:
    """Its etcd stalls: /readyz turns red, the run says why it ends, and removes its nodes."""
    etcd = world.info.pids[ETCD]
    with world.spawn(PREFIX, NODES, "--stop-if=readyz:2s", world.quick()) as run:
        run.until_ready()
        os.kill(etcd, signal.SIGSTOP)
        try:
            run.until("the run ends: /readyz")
        finally:
            os.kill(etcd, signal.SIGCONT)
        run.process.communicate(timeout=240)
    assert run.process.returncode == 4
    summary = run.summary()
    assert summary["verdict"] == "incomplete"
    assert summary["stop_reason"].startswith("/readyz of the API server ")
    assert summary["stop_reason"].endswith(" for 2s (--stop-if)")
    assert summary["stop_reason"] in summary["invalid_reasons"]
    assert summary["stop_reason"] in (run.directory / "report.html").read_text()
    world.assert_nothing_left(PREFIX)


@pytest.mark.usefixtures("reports")
def test_a_starved_fleet_is_invalid(world: World) -> None:
    with world.spawn(PREFIX, NODES, world.quick()) as run:
        run.until_ready()
        run.process.send_signal(signal.SIGSTOP)
        time.sleep(2 * STANDSTILL_LIMIT_MS / 1000)
        run.process.send_signal(signal.SIGCONT)
        series = run.directory / "timeseries.jsonl"
        eventually(lambda: len(series.read_text().splitlines()) > LAG_LEAST_S, "it is judged")
        run.interrupt()
        run.process.communicate(timeout=240)
    assert run.process.returncode == 4
    reasons = run.summary()["invalid_reasons"]
    assert any("it stood still" in each for each in reasons), reasons
    assert "INVALID" in (run.directory / "report.html").read_text()
    world.assert_nothing_left(PREFIX)
