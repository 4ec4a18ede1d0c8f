"""What the other processes of a run are told: no option may be forgotten."""

from pathlib import Path

import pytest

from fleet.cli import spawn
from fleet.config import Settings
from fleet.display import LiveFigures
from fleet.siblings import (
    FIRST_ONLY,
    INHERITED,
    LIVE,
    OWN,
    PASSED_ON,
    Sibling,
    keep_live,
    sibling_arguments,
    without_options,
)

GIVEN: dict[str, object] = {
    "name_prefix": "other",
    "profile": ("gpu=3", "default"),
    "fidelity": "light",
    "encoding": "protobuf",
    "watches": "per-node",
    "identity": "csr",
    "bootstrap_kubeconfig": Path(__file__),  # any file
    "approve_csrs": True,
    "in_cluster": True,
    "context": "there",
    "no_taint": True,
    "zone_labels": True,
    "simulate_csi": True,
    "seed": 7,
    "story": ("other-0001-00000", "other-0001-00001"),
    "restart_share": "25%",
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
    kinds = (frozenset(PASSED_ON), OWN, INHERITED, FIRST_ONLY)
    assert sum(map(len, kinds)) == len(frozenset().union(*kinds)), "one kind each"
    assert frozenset().union(*kinds) == frozenset(Settings.model_fields)


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
    assert other.metrics_port == 9001
    assert not other.until_ready


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
