"""Random faults of a phase, drawn: the same seed makes the same ones at the same times."""

import math
from collections.abc import Iterator

from fleet.clock import Draws
from fleet.faults.fault import FaultSpec
from fleet.scenario.scenario import PhaseFault, PhaseSpec, RandomFaults

_STREAM_WHEN, _STREAM_WHICH = 0xFA071, 0xFA072


def faults_of(phase: PhaseSpec, number: int, seed: int) -> tuple[PhaseFault, ...]:
    """Return the faults of the phase of this number, those that are drawn behind the others."""
    draws = Draws(seed)
    drawn = (
        each
        for at, random in enumerate(phase.random_faults)
        for each in _drawn(random, phase.duration_ns, number << 16 | at, draws)
    )
    return (*phase.faults, *drawn)


def _drawn(random: RandomFaults, phase_ns: int, owner: int, draws: Draws) -> Iterator[PhaseFault]:
    """Yield faults with exponential times between them, until the phase is over."""
    at_ns = count = 0
    while True:
        share = draws.uniform(owner, _STREAM_WHEN, count)
        at_ns += int(-math.log(1 - share) * random.interval_ns)
        if at_ns >= phase_ns:
            return
        which = int(draws.uniform(owner, _STREAM_WHICH, count) * len(random.of))
        spec, lasts_ns = random.of[which], random.duration_ns
        if spec.is_instant or (lasts_ns is not None and at_ns + lasts_ns >= phase_ns):
            lasts_ns = None
        fields = {name: getattr(spec, name) for name in FaultSpec.model_fields}
        yield PhaseFault.model_construct(**fields, at_ns=at_ns, duration_ns=lasts_ns)
        count += 1
