"""`fleet run FILE`: the options of the command line and those that the file stands for."""

from collections.abc import Mapping
from pathlib import Path

from fleet.errors import UsageError
from fleet.profile.loader import mix_of
from fleet.profile.settings import Settings
from fleet.run.scenario_player import ScenarioPlayer
from fleet.scenario.forecast import forecast
from fleet.scenario.scenario import Scenario
from fleet.scenario.time_line import time_line

ENDS_BY_ITSELF = ("duration", "until_ready", "dashboard", "locust_master", "slo")
"""Options of `fleet spawn` that a scenario leaves no room for."""
ONE_PROCESS = ("processes", "shard", "manage")
"""And that one with an autoscaler does not."""


def settings_of(scenario: Scenario, path: Path, given: Mapping[str, object]) -> Settings:
    """Return the settings of a run: the file's, where the command line says nothing else.

    Raises UsageError.
    """
    for option in ENDS_BY_ITSELF:
        if given.get(option):
            flag = "--" + option.replace("_", "-")
            raise UsageError(f"{flag}: a scenario says itself how the run goes; see {path}")
    options = {key: value for key, value in given.items() if value is not None and value != ()}
    options.setdefault("nodes", scenario.nodes)
    options.setdefault("profile", scenario.profiles(path))
    options.setdefault("seed", scenario.spec.seed)
    autoscaler = scenario.spec.autoscaler
    if autoscaler is not None:
        for option in ONE_PROCESS:
            if options.get(option):
                flag = "--" + option.replace("_", "-")
                raise UsageError(f"{flag}: {path} has an autoscaler, which is of one process")
        most = max(autoscaler.max_replicas, int(str(options["nodes"])))
        options |= {"autoscaled": True, "max_nodes": most}
    settings = Settings.from_options(**options)
    if scenario.cuts_off and not settings.has_own_watches:
        raise UsageError(
            f"{path}: Partition needs connections of the nodes' own: --fidelity kubelet and "
            "--watches per-node"
        )
    if scenario.stops_components and settings.names_cluster:
        raise UsageError(
            f"{path}: ComponentDown and ComponentStall are of a local control plane that the run "
            "starts; leave the cluster's name out"
        )
    return settings


def dry_run(scenario: Scenario, path: Path, settings: Settings) -> str:
    """Return what `--dry-run` prints: the time line, and a forecast of the load."""
    mix = mix_of(settings)
    is_light = settings.fidelity == "light"
    told = forecast(scenario, path, settings.nodes, mix, light=is_light)
    return f"{time_line(scenario, settings.nodes, settings.seed)}\n{told}"


def player_of(scenario: Scenario, path: Path) -> ScenarioPlayer:
    """Return who plays a scenario."""
    return ScenarioPlayer(scenario, path)
