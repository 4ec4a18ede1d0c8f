"""`fleet run FILE --simulate`: which scenarios and options can be, one run, or many seeds."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from fleet import KUBERNETES_VERSION
from fleet.errors import Exit, UsageError
from fleet.profile.loader import NodeMix, mix_of
from fleet.profile.option_types import rate_text
from fleet.profile.settings import Fidelity, OutputFormat, Settings
from fleet.report.slo_file import INDICATORS, SIG, STEADY
from fleet.run.scenario_command import player_of, settings_of
from fleet.run.simulated_run import SimulatedRun
from fleet.scenario.scenario import Scenario
from fleet.simulation.user_requests import not_simulated

OPTIONS = frozenset(
    {
        *("nodes", "name_prefix", "profile", "seed", "rate", "story"),
        *("run_dir", "run_id", "output", "quiet", "no_report", "no_agents"),
    }
)
"""The options of `fleet spawn` that say something of a simulated run."""


def simulate(
    scenario: Scenario,
    path: Path,
    given: Mapping[str, object],
    seeds: int | None,
    tell: Callable[[str], None],
    show: Callable[[str], None],
) -> int:
    """Play a scenario in virtual time, with one seed or with many; return the exit code.

    `tell` takes what goes on, `show` the result.
    Raises UsageError by name for what is not simulated.
    """
    settings = _settings(scenario, path, given)
    mix = _mix(settings)
    player = player_of(scenario, path)
    _check(scenario, path)
    for objective in player.objectives():
        if objective.source != SIG and INDICATORS[objective.sli].phase == STEADY:
            raise UsageError(
                f"{path}: spec.expectations: {objective.sli} is of a real API server; a simulated "
                "run has none"
            )
    if seeds:
        return _play_seeds(scenario, path, settings, seeds, tell, show)
    for model in mix.models:
        if model.agents:
            names = ", ".join(each.name for each in model.agents)
            tell(f"profile {model.name}: its agents are not simulated: {names}")
    outcome = SimulatedRun(settings, mix, player, _unheard if settings.quiet else tell).run()
    is_json = settings.output is OutputFormat.JSON
    show(outcome.json() if is_json else outcome.text())
    return outcome.exit_code


def _play_seeds(
    scenario: Scenario,
    path: Path,
    settings: Settings,
    seeds: int,
    tell: Callable[[str], None],
    show: Callable[[str], None],
) -> int:
    """Play it with one seed after the other; what fails is told with the command that replays it.

    A bug in fleet fails its seed alone.
    """
    failed = []
    for seed in range(settings.seed, settings.seed + seeds):
        one = settings.model_copy(update={"seed": seed})
        problems = _problems(scenario, path, one)
        if problems:
            failed.append(f"seed {seed}: {problems[0]}; replay it: {replay(path, one)}")
            tell(failed[-1])
        elif (seed - settings.seed + 1) % 10 == 0:
            tell(f"{seed - settings.seed + 1} of {seeds} seeds")
    show("\n".join([*failed, f"{seeds - len(failed)} of {seeds} seeds passed"]))
    return Exit.EXPECTATION_FAILED if failed else Exit.OK


def _problems(scenario: Scenario, path: Path, settings: Settings) -> list[str]:
    """Return what went wrong with one seed."""
    mix = _mix(settings)
    run = SimulatedRun(settings, mix, player_of(scenario, path), _unheard, keeps=False)
    try:
        figures = run.run().figures
    except Exception as error:  # noqa: BLE001 - whatever it is, the other seeds go on
        return [f"{type(error).__name__}: {error}"]
    decided = figures.judgement()
    return [] if decided.exit_code is Exit.OK else decided.reasons


def replay(path: Path, settings: Settings) -> str:
    """Return the command that plays the same again."""
    words = ["fleet", "run", "--simulate", str(path), "--seed", str(settings.seed)]
    words += ["--nodes", str(settings.nodes)]
    for each in settings.profiles:
        words += ["--profile", f"{each.source}={each.weight:g}"]
    if settings.rate:
        words += ["--rate", rate_text(settings.rate)]
    return shlex.join(words)


def _settings(scenario: Scenario, path: Path, given: Mapping[str, object]) -> Settings:
    for option, value in given.items():
        if value and option not in OPTIONS and not _is_default(option, value):
            flag = "--" + option.replace("_", "-")
            raise UsageError(f"{flag}: a simulated run has no use for it")
    return settings_of(scenario, path, given)


def _mix(settings: Settings) -> NodeMix:
    mix = mix_of(settings)
    mix.check_addresses(settings.node_index(settings.nodes))
    mix.adapt(KUBERNETES_VERSION, zone_labels=True)
    return mix


def _unheard(_words: str) -> None:
    pass


def _is_default(option: str, value: object) -> bool:
    field = Settings.model_fields.get(option)
    return (field is not None and field.default == value) or (
        option == "fidelity" and value == Fidelity.KUBELET
    )


def _check(scenario: Scenario, path: Path) -> None:
    """Raise UsageError for what is not simulated: an autoscaler, and some objects."""
    if scenario.spec.autoscaler is not None:
        raise UsageError(f"{path}: spec.autoscaler: is of a real API server and scheduler")
    for number, phase in enumerate(scenario.spec.phases):
        for what, specs in (("apply", phase.apply), ("churn", phase.churn)):
            for at, each in enumerate(specs):
                for manifest in each.manifests(path):
                    if why := not_simulated(manifest):
                        where = f"spec.phases[{number}].{what}[{at}]"
                        raise UsageError(f"{path}: {where}: {why}")
