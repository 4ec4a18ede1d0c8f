"""How fast a resource grows, and whether that is more than its noise."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

BLOCKS = 12
"""Samples of a process follow each other; the means of a dozen stretches do so much less."""
HOUR_S = 3600.0
SIGMAS = 2.0


class Slope(NamedTuple):
    """A straight line through the means of blocks."""

    mean: float
    per_hour: float
    error_per_hour: float
    """Standard error of the slope."""

    def is_flat(self, share_max: float) -> bool:
        """Return whether it grows by no more an hour than its noise, or that share of its mean.

        A slope that is not known is not flat.
        """
        noise = max(SIGMAS * self.error_per_hour, share_max * abs(self.mean))
        return math.isfinite(noise) and self.per_hour <= noise


def slope(at_s: Sequence[float], values: Sequence[float]) -> Slope:
    """Fit a line. Samples of less than three blocks have no slope that is known."""
    size = max(1, len(values) // BLOCKS)
    starts = range(0, len(values) - size + 1, size)
    times = [fmean(at_s[at : at + size]) for at in starts]
    means = [fmean(values[at : at + size]) for at in starts]
    if len(means) < 3:
        return Slope(fmean(values) if values else 0.0, 0.0, math.inf)
    center, level = fmean(times), fmean(means)
    spread = sum((each - center) ** 2 for each in times)
    steep = sum((t - center) * (y - level) for t, y in zip(times, means, strict=True)) / spread
    left = sum((y - level - steep * (t - center)) ** 2 for t, y in zip(times, means, strict=True))
    error = math.sqrt(left / (len(means) - 2) / spread)
    return Slope(level, steep * HOUR_S, error * HOUR_S)
