"""What a scenario does when, for people: `fleet run FILE --dry-run`."""

from collections.abc import Iterable, Iterator

from fleet.clock import NS_PER_S
from fleet.faults.fault import FAULTS, FaultSpec, words_of
from fleet.quantity import format_duration
from fleet.scenario.random_faults import faults_of
from fleet.scenario.scenario import PhaseFault, PhaseSpec, Scenario
from fleet.scenario.workload import ManifestSpec


def time_line(scenario: Scenario, nodes: int, seed: int | None = None) -> str:
    """Return the time line, in minutes since all nodes were Ready; `seed`: the run's or the file's.

    What follows a phase that waits for something comes at the earliest then: `>=`.
    """
    pools = ", ".join(f"{each.replicas} of {each.profile}" for each in scenario.spec.node_pools)
    seed = scenario.spec.seed if seed is None else seed
    lines = [f"{scenario.metadata.name}: {nodes} nodes ({pools} in the file), seed {seed}", ""]
    lines.append(f"{'':>9}  bring-up: until all nodes are Ready")
    at_ns, is_open = 0, False
    for number, phase in enumerate(scenario.spec.phases):
        lines += (
            f"{_clock(at_ns + offset_ns, is_open=is_open):>9}  {text}"
            for offset_ns, text in _lines(phase, faults_of(phase, number, seed))
        )
        at_ns += phase.duration_ns
        is_open = is_open or phase.until is not None
    lines.append(f"{_clock(at_ns, is_open=is_open):>9}  clean-up and verdict")
    return "\n".join(lines)


def _lines(phase: PhaseSpec, faults: Iterable[PhaseFault]) -> Iterator[tuple[int, str]]:
    waits = []
    if phase.duration_ns:
        waits.append(f"for {format_duration(phase.duration_ns)}")
    if phase.until is not None:
        limit = format_duration(phase.until.timeout_ns)
        waits.append(f"until {phase.until.condition}, {limit} at most")
    yield 0, f"{phase.name}: {', then '.join(waits)}"
    marks = []
    for fault in faults:
        lasts = "" if fault.duration_ns is None else f" for {format_duration(fault.duration_ns)}"
        marks.append((fault.at_ns, f"  {words_of(fault)}{whom(fault)}{lasts}"))
        if fault.duration_ns is not None:
            marks.append((fault.at_ns + fault.duration_ns, f"  {words_of(fault)} is healed"))
    for each in phase.apply:
        times = f"{each.count} times {what_of(each)}, {rate_words(each.rate)}"
        marks.append((each.at_ns, f"  apply {times if each.count > 1 else what_of(each)}"))
    marks += [
        (
            0,
            (
                f"  churn {what_of(each)}, {rate_words(each.rate)}, each for "
                f"{format_duration(each.lifetime_ns)}"
            ),
        )
        for each in phase.churn
    ]
    yield from sorted(marks)


def what_of(spec: ManifestSpec) -> str:
    """Say which objects these are."""
    if spec.manifest is None:
        return spec.file
    metadata = spec.manifest["metadata"]
    assert isinstance(metadata, dict), metadata
    return f"{spec.manifest['kind']} {metadata['name']}"


def rate_words(rate: float) -> str:
    """Say how often."""
    return f"{rate:g}/s"


def whom(fault: FaultSpec) -> str:
    """Say which nodes a fault hits, "" if it is none of nodes."""
    if FAULTS[fault.type].of_control_plane:
        return ""
    labels = fault.node_selector.match_labels.items()
    parts = [f"{key}={value}" for key, value in labels]
    parts += [f"zone {fault.zone}"] if fault.zone else []
    parts += [", ".join(fault.nodes)] if fault.nodes else []
    among = " and ".join(parts) or "all nodes"
    return f" on {among}" if fault.share == 1.0 else f" on {fault.share:.0%} of {among}"


def _clock(at_ns: int, *, is_open: bool) -> str:
    minutes, seconds = divmod(at_ns // NS_PER_S, 60)
    return f"{'>=' if is_open else ''}{minutes}:{seconds:02d}"
