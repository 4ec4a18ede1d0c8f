"""What the other processes of a run are told: no option may be forgotten; and how they end."""

import asyncio
from pathlib import Path

import pytest

from fleet.background import Background
from fleet.cli import spawn
from fleet.controlplane.options import ComponentDeath
from fleet.errors import FleetError, SetupError, UsageError
from fleet.host.siblings import (
    FIRST_ONLY,
    INHERITED,
    LIVE,
    OWN,
    PASSED_ON,
    SETUP_TRIES_MAX,
    Sibling,
    Siblings,
    keep_live,
    sibling_arguments,
    without_options,
)
from fleet.profile.settings import Settings
from fleet.report.display import LiveFigures

GIVEN: dict[str, object] = {
    "name_prefix": "other",
    "profile": ("gpu=3", "default"),
    "programs": (Path("one.py"), Path("two.py")),
    "fidelity": "light",
    "start": "cold",
    "encoding": "protobuf",
    "watches": "per-node",
    "identity": "csr",
    "bootstrap_kubeconfig": Path(__file__),  # any file
    "approve_csrs": True,
    "in_cluster": True,
    "context": "there",
    "no_taint": True,
    "zone_labels": True,
    "provider_id": "none",
    "no_agents": True,
    "simulate_csi": True,
    "seed": 7,
    "kubelet_version": "v1.35.4",
    "story": ("other-0001-00000", "other-0001-00001"),
    "metrics_host": "0.0.0.0",
}
"""A value for each that is not the default."""
NEEDED: dict[str, dict[str, object]] = {
    "approve_csrs": {"identity": "csr"},
    "bootstrap_kubeconfig": {"identity": "csr"},
    "metrics_host": {"metrics_port": 9000},
}


def told(settings: Settings, **given: object) -> Settings:
    """Return the settings of the second process, by way of its command line."""
    kubeconfig = given.get("kubeconfig")
    assert kubeconfig is None or isinstance(kubeconfig, Path)
    arguments = sibling_arguments(settings, 1, "run-1", kubeconfig, str(given.get("confirm", "")))
    return Settings.from_options(**spawn.make_context("spawn", arguments).params)


def test_every_option_is_passed_on_or_known_not_to_be() -> None:
    """What is none of the others' is passed on: a new option is given here, or named there."""
    kinds = (OWN, INHERITED, FIRST_ONLY)
    assert sum(map(len, kinds)) == len(frozenset().union(*kinds)), "one kind each"
    assert frozenset().union(*kinds) < frozenset(Settings.model_fields)
    assert {Settings.model_fields[each].alias or each for each in PASSED_ON} == set(GIVEN)


@pytest.mark.parametrize("field", PASSED_ON)
def test_a_process_has_what_all_have(field: str) -> None:
    name = Settings.model_fields[field].alias or field
    given = {name: GIVEN[name], **NEEDED.get(field, {})}
    settings = Settings.from_options(nodes=4, processes=2, **given)
    assert getattr(settings, field) != Settings.model_fields[field].default
    assert getattr(told(settings), field) == getattr(settings, field)


def test_a_process_has_its_own_part() -> None:
    settings = Settings.from_options(
        nodes=7, processes=2, rate=10, metrics_port=9000, holder="pod", until_ready=True
    )
    other = told(settings, kubeconfig=Path("local.kubeconfig"), confirm="uid-1")
    assert (other.nodes, other.shard, other.shard_stride, other.rate) == (3, 1, 4, 5.0)
    assert (other.run_id, other.holder, other.keep, other.processes) == ("run-1", "pod", True, 1)
    assert (other.kubeconfig, other.confirm_cluster) == (Path("local.kubeconfig"), "uid-1")
    assert other.shared is True
    assert other.metrics_port == 9001
    assert not other.until_ready


def test_a_process_takes_the_cluster_for_what_the_first_has_found() -> None:
    """It is given the kubeconfig of a local control plane, which nobody has named."""
    settings = Settings.from_options(nodes=4, processes=2)
    other = told(settings, kubeconfig=Path("local.kubeconfig"))
    assert other.names_cluster
    assert other.shared is False
    assert not other.confirm_cluster
    assert Settings.from_options().shared is None


def test_credentials_are_inherited_and_options_are_not() -> None:
    given = {
        "PATH": "/bin",
        "FLEET_NODES": "9",
        "FLEET_SIMULATE_CSI": "1",
        "FLEET_BOOTSTRAP_TOKEN": "abcdef.0123456789abcdef",
        "FLEET_CERT_DIR": "/certificates",
    }
    kept = without_options(given)
    assert set(kept) == {"PATH", "FLEET_BOOTSTRAP_TOKEN", "FLEET_CERT_DIR"}


def test_how_a_process_stands_is_known_while_it_says_so(tmp_path: Path) -> None:
    sibling = Sibling((), tmp_path)
    sibling.look()
    assert sibling.live is None
    sibling.run_directory.mkdir()
    live = LiveFigures(nodes_ready=3, pods={"on nodes": 2}, fleet_cpu=0.5)
    keep_live(sibling.run_directory, live)
    sibling.look()
    assert sibling.live == live
    (sibling.run_directory / LIVE).unlink()  # as when another was started in its place
    sibling.look()
    assert sibling.live is None


UP = "up"
"""A process of which it is known how it stands, and then dies."""


class World:
    """One other process that ends as the test says, and a clock that only waiting moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path, *ends: object) -> None:
        self.now_s = 0.0
        self.waits: list[float] = []
        self.notes: list[str] = []
        self.ends: list[FleetError] = []
        self.directory = directory
        self.script = list(ends)
        self.starts = 0
        self.siblings = Siblings(
            [()],
            directory,
            self.notes.append,
            self.ends.append,
            sleep=self.sleep,
            now_s=lambda: self.now_s,
        )
        world = self

        async def start(sibling: Sibling) -> None:
            world.starts += 1
            sibling._attempt += 1

        async def wait(sibling: Sibling) -> ComponentDeath:
            if not world.script:
                await asyncio.Event().wait()
            end = world.script.pop(0)
            if isinstance(end, tuple):
                mark, end = end
                assert mark == UP
                sibling.run_directory.mkdir(parents=True)
                keep_live(sibling.run_directory, LiveFigures(nodes_ready=1))
            code, said = (end, ()) if isinstance(end, int) else (int(str(end)[0]), (str(end)[2:],))
            return ComponentDeath("process-0001", code, directory / "log", tuple(said))

        monkeypatch.setattr(Sibling, "start", start)
        monkeypatch.setattr(Sibling, "wait", wait)

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now_s += seconds
        await asyncio.sleep(0)

    def play(self) -> None:
        async def play() -> None:
            background = Background(print)
            await self.siblings.start(background)
            for _ in range(100):
                await asyncio.sleep(0)
            await background.stop()

        asyncio.run(play())


@pytest.mark.parametrize(
    ("end", "kind"),
    [("2 fleet: --watches: no such thing", UsageError), ("3 fleet: port taken", SetupError)],
)
def test_a_process_that_cannot_run_ends_the_run_with_its_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str, kind: type[FleetError]
) -> None:
    world = World(monkeypatch, tmp_path, end)
    world.play()
    [error] = world.ends
    assert type(error) is kind
    assert str(error) == end.replace(f"{end[0]} fleet", "process-0001")
    assert (world.starts, world.waits, world.siblings.restarts) == (1, [], 0)


def test_a_process_that_dies_is_started_again_later_and_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = World(monkeypatch, tmp_path, *[-9] * 8)
    world.play()
    assert world.waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert (world.starts, world.siblings.restarts, world.ends) == (9, 8, [])
    assert world.notes[1] == "process-0001 ended with -9; starting it again in 2 s"


def test_a_process_that_was_up_may_find_the_server_away_for_a_while(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refused = "3 fleet: 127.0.0.1:1: connection refused"
    world = World(monkeypatch, tmp_path, (UP, -9), refused, refused, (UP, -9))
    world.play()
    assert (world.starts, world.ends) == (5, [])
    assert world.notes[1].endswith("again in 2 s: process-0001: 127.0.0.1:1: connection refused")
    world = World(monkeypatch, tmp_path / "2", (UP, -9), *[refused] * 20)
    world.play()
    assert world.starts == 1 + SETUP_TRIES_MAX
    assert [str(error) for error in world.ends] == ["process-0001: 127.0.0.1:1: connection refused"]


def test_waiting_for_their_nodes_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world = World(monkeypatch, tmp_path)
    ready = [0, 1, 1, 2, *[2] * 1000]
    monkeypatch.setattr(Siblings, "ready", lambda _self: ready.pop(0))
    asyncio.run(world.siblings.wait_ready(3, stalled_s=10))
    assert 10 < world.now_s < 12
    ready[:] = [0] * 1000 + [3]
    asyncio.run(world.siblings.wait_ready(3))
    assert not ready
