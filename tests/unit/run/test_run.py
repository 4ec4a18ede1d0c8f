"""What a run says and counts; its whole life is in tests/e2e."""

import asyncio
import contextlib
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop

from fleet.cluster.api_client import Api, Cluster
from fleet.cluster.cleanup import is_tenth
from fleet.cluster.runs import RunLease
from fleet.controlplane.binaries import Binaries
from fleet.controlplane.options import ControlPlaneInfo
from fleet.errors import RunInterruptedError, SetupError, UsageError
from fleet.host.node_host import NodeHost
from fleet.host.siblings import Siblings
from fleet.profile.settings import Settings
from fleet.report.display import Display, LiveFigures, ask_on_terminal
from fleet.report.meter import Meter
from fleet.report.record import Record
from fleet.report.report import Expectation, Outcome, RunFigures
from fleet.report.run_directory import RunDirectory
from fleet.report.service_levels import DEFAULTS
from fleet.run import target
from fleet.run.lead import Follower, Leader, Standing
from fleet.run.observation import Observation
from fleet.run.run import Run
from fleet.run.target import Target
from fleet.run.user_command import check_command


def make_run(**options: object) -> Run:
    display = Display(stream=StringIO())
    return Run(Settings.from_options(**options), display=display)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"kubeconfig": Path("/k")}, " --kubeconfig=/k"),
        ({"kubeconfig": Path("/k"), "context": "c"}, " --kubeconfig=/k --context=c"),
        ({"in_cluster": True}, " --in-cluster"),
        ({}, ""),
    ],
)
def test_what_is_left_is_told_with_the_command_that_removes_it(
    options: dict[str, object], where: str
) -> None:
    run = make_run(**options, keep=True)
    left = run.ending.left_behind()
    command = f"fleet clean{where} --run {run._run_id}"
    assert left.endswith(command)
    assert "\n" not in left
    assert run.ending.next_steps() == [f"{command}  # removes the nodes that were kept"]


def test_no_control_plane_is_started_for_options_that_do_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def found(*_place: object, release: str) -> Binaries:
        return Binaries({}, release, "v1.36.3")

    monkeypatch.setattr(target, "provide_binaries", found)
    monkeypatch.setattr(target, "attach", lambda: None)
    monkeypatch.setattr(target, "ControlPlane", None)

    async def begin(**options: object) -> None:
        async with make_run(**options)._target.open():
            raise AssertionError

    with pytest.raises(UsageError, match="--confirm-cluster x: no cluster is named"):
        asyncio.run(begin(confirm_cluster="x"))
    with pytest.raises(UsageError, match=r"the API server is v1.36.3; a kubelet may be"):
        asyncio.run(begin(kubelet_version="v1.37.2"))


@pytest.mark.parametrize(
    ("figures", "commands"),
    [
        ({"invalid_reasons": ["it lagged"]}, ["fleet spawn --nodes 20"]),
        ({"incomplete_reasons": ["it was ended"]}, []),
        ({"expectations": [Expectation("p99", is_met=False)]}, ["fleet capacity --max-nodes 40"]),
        ({}, ["fleet spawn --nodes 40 -- kubectl get nodes", "fleet capacity --max-nodes 400"]),
    ],
)
def test_what_to_try_next_fits_the_outcome(figures: dict[str, object], commands: list[str]) -> None:
    run = make_run(nodes=40)
    for name, value in figures.items():
        setattr(run._figures, name, value)
    assert [each.partition("  #")[0] for each in run.ending.next_steps()] == commands
    assert not make_run(context="c").ending.next_steps()


def test_the_kubeconfig_that_was_asked_for_is_the_one_to_export(tmp_path: Path) -> None:
    run, written = make_run(kubeconfig_out=tmp_path / "mine"), StringIO()
    run._display = Display(stream=written)
    run._target.local = cast("ControlPlaneInfo", object())
    run._target.kubeconfig = Path("/its/own")
    run._tell_use()
    assert written.getvalue().splitlines()[0] == f"export KUBECONFIG={tmp_path / 'mine'}"


@pytest.mark.parametrize("where", ["", "./", "bin/"])
def test_a_command_that_cannot_run_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A name that is not on the PATH, a file that is not executable, and a directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("no-such-program", "no-program.txt", "no-program.d"):
        (tmp_path / "no-program.txt").touch()
        (tmp_path / "no-program.d").mkdir(exist_ok=True)
        run = make_run(command=(f"{where}{name}",), run_dir=tmp_path / "run")
        with pytest.raises(SetupError, match=f"cannot run '{where}{name}': it is not "):
            asyncio.run(run.run())
        assert not (tmp_path / "run").exists()


def test_a_command_is_found_on_the_path_that_it_will_have(tmp_path: Path) -> None:
    program = tmp_path / "suite"
    program.touch(mode=0o755)
    check_command(("suite", "-v"), {"PATH": str(tmp_path)})
    check_command((str(program),), {})
    check_command((), {})
    with pytest.raises(SetupError):
        check_command(("suite",), {"PATH": "/none"})


async def test_a_refused_run_leaves_no_directory(tmp_path: Path) -> None:
    run = make_run(kubeconfig=tmp_path / "none", run_dir=tmp_path / "runs" / "one")
    with pytest.raises(UsageError, match="no such file"):
        await run.run()
    assert not list(tmp_path.iterdir())


def test_keys_of_a_profile_without_effect_are_told_once_by_the_first_process(
    tmp_path: Path,
) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(
        "apiVersion: fleet.emulator/v1alpha1\nkind: NodeProfile\nmetadata: {name: odd}\n"
        "spec: {kubeletConfiguration: {cgroupDriver: systemd}}\n"
    )
    told = "warning: profile odd: kubeletConfiguration: without effect: cgroupDriver"
    for shared, count in ((None, 1), (False, 0)):
        shown = StringIO()
        settings = Settings.from_options(
            profile=(str(path),), kubeconfig=tmp_path / "none", shared=shared
        )
        run = Run(settings, display=Display(stream=shown))
        with pytest.raises(UsageError, match="no such file"):
            asyncio.run(run.run())
        assert shown.getvalue().count(told) == count


async def test_a_run_directory_is_used_once(tmp_path: Path) -> None:
    (tmp_path / "summary.json").touch()
    with pytest.raises(UsageError, match="already holds a run"):
        await make_run(kubeconfig=tmp_path / "none", run_dir=tmp_path).run()


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Make a terminal of stdin; return what types on it."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        yield ours
    os.close(ours)


@pytest.mark.parametrize(
    ("typed", "is_yes"),
    [(b"y\n", True), (b"YES\n", True), (b"\n", False), (b"no\n", False), (b"\x04", False)],
)
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_anything_but_yes_is_no(
    keyboard: int, run: Callable[..., bool], typed: bytes, *, is_yes: bool
) -> None:
    os.write(keyboard, typed)
    assert run(ask_on_terminal("May I?")) is is_yes
    assert os.get_blocking(sys.stdin.fileno())  # the shell has the same terminal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_question_at_once(
    keyboard: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Nobody answers it; nothing is left, and the code is a documented one."""

    async def prepare(*_arguments: object) -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
        assert await ask_on_terminal("May I?")

    monkeypatch.setattr(Target, "open", lambda _target: nothing())
    monkeypatch.setattr(Cluster, "connect", lambda _selection: connected())
    run = make_run(kubeconfig=Path("k"), run_dir=tmp_path / "run")
    monkeypatch.setattr(run, "_run_on", prepare)
    with pytest.raises(RunInterruptedError, match="interrupted; nothing was created") as raised:
        uvloop.run(run.run())
    assert raised.value.exit_code == 130
    assert os.get_blocking(sys.stdin.fileno())
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)
    os.write(keyboard, b"y\n")  # what is typed later is the shell's


@contextlib.asynccontextmanager
async def nothing() -> AsyncIterator[None]:
    yield


async def connected() -> contextlib.AbstractAsyncContextManager[None]:
    return nothing()


def test_progress_is_told_ten_times() -> None:
    assert [done for done in range(1, 11) if is_tenth(done, 10)] == list(range(1, 11))
    assert len([done for done in range(1, 5001) if is_tenth(done, 5000)]) == 10
    assert [done for done in range(1, 4) if is_tenth(done, 3)] == [1, 2, 3]
    assert is_tenth(5000, 5000)


def test_only_the_first_shard_is_held_to_the_levels_of_a_file(tmp_path: Path) -> None:
    """It looks at the control plane; a pod that cannot judge would end with 4."""
    slo = tmp_path / "slo.yaml"
    slo.write_text(
        "apiVersion: fleet.emulator/v1alpha1\nkind: ServiceLevelObjectives\nmetadata: {name: x}\n"
        "spec: {defaults: false, expectations: [{sli: LeaseLateness, max: 1s}]}\n"
    )
    for shard, wanted in ((0, ("LeaseLateness",)), (1, tuple(each.sli for each in DEFAULTS))):
        made = Run(Settings.from_options(nodes=2, shard=shard, run_id="r", slo=slo))
        assert tuple(each.sli for each in made._objectives) == wanted


@pytest.mark.parametrize(("shard", "verdict"), [(None, Outcome.INCOMPLETE), (1, Outcome.PASS)])
def test_the_verdict_so_far_of_a_shard_is_of_this_shard(
    shard: int | None, verdict: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the one at its end: others may run on other machines."""
    options = {} if shard is None else {"shard": shard, "nodes_total": 10, "run_id": "r"}
    run = make_run(nodes=5, **options)
    met = Expectation("x", is_met=True)
    record = Record(shard=1, shards=2, figures=RunFigures(run_id="r"), waited=(met,))
    run._directory = cast("RunDirectory", SimpleNamespace(path=tmp_path))
    run._meter = cast("Meter", SimpleNamespace(elapsed_s=lambda: 9.0))
    run._observation = cast("Observation", SimpleNamespace(latest=LiveFigures()))
    monkeypatch.setattr(run, "_record", lambda: record)
    assert run._status()["verdict"] == verdict


@pytest.mark.parametrize(("begun", "wanted"), [([], 60), ([5], 60), ([5, 9], 24)])
def test_each_process_says_how_many_nodes_it_is_to_have_once_it_has_begun(
    begun: list[int], wanted: int
) -> None:
    """By the Leases of its processes a run may have been scaled without a word to the first one."""
    run = make_run(nodes=60, processes=3)
    run._meter = cast("Meter", SimpleNamespace(live=lambda: LiveFigures(nodes_requested=10)))
    others = [LiveFigures(nodes_requested=nodes) for nodes in begun]
    run._siblings = cast("Siblings", SimpleNamespace(live=lambda: others))
    run._observation = cast("Observation", SimpleNamespace(tell=lambda _live: None))
    assert run._live().nodes_requested == wanted


@pytest.mark.parametrize(
    ("options", "ready"),
    [
        ({"processes": 2}, 5),
        ({"processes": 2, "shard": 0, "nodes_total": 9, "run_id": "r"}, 7),
        ({}, 5),
    ],
)
def test_ready_nodes_of_other_processes_count_once(options: dict[str, object], ready: int) -> None:
    """2 nodes here and 3 of a sibling, which is a shard that follows, too; 2 of other machines."""
    run = make_run(nodes=6, **options)
    standings = [Standing(ready=3)] + [Standing(ready=2)] * ("shard" in options)
    leader = Leader(cast("RunLease", SimpleNamespace(notes={})), cast("Api", None))
    leader.standings = standings
    run._leader = leader if run._settings.shard == 0 else None
    run._node_host = cast("NodeHost", SimpleNamespace(state=lambda: SimpleNamespace(ready=2)))
    latest = LiveFigures(nodes_ready=5)  # of all processes
    run._observation = cast("Observation", SimpleNamespace(latest=latest))
    assert asyncio.run(run._answer({"do": "ready"})) == {"ready": ready}


async def test_another_process_on_a_dashboard_takes_part_in_faults_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its nodes are never known to be all there: a dashboard decides how many there are."""
    seen = list[bool]()

    class FakeDashboard:
        def __init__(self, *_what: object) -> None:
            """It needs nothing."""

        async def start(self, _note: object) -> str:
            return ""

        async def run(self, *_what: object) -> None:
            assert run._follower is not None
            seen.append(run._follower.is_up)

    dashboard = SimpleNamespace(DashboardRun=FakeDashboard)
    monkeypatch.setitem(sys.modules, "fleet.dashboard.dashboard", dashboard)
    run = make_run(nodes=2, shard=1, run_id="r", locust_master="127.0.0.1:1")
    nothing_else = cast("Any", None)
    run._follower = Follower(nothing_else, nothing_else, "", nothing_else, nothing_else)
    run._node_host = run._cluster = run._lease = run._faults = nothing_else
    run._directory = cast("RunDirectory", SimpleNamespace(path=Path()))
    follow = asyncio.Event().wait
    run._observation = cast("Observation", SimpleNamespace(follow=follow))
    await run._serve_dashboard(0, None)
    await run._background.stop()
    assert seen == [True]
