"""The time in which a scene is played, and the steps that it takes.

The live judge plays in real time and notes each step. A replay plays the same scene in virtual
time, and takes each step when the live judge took it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Step:
    """Something that a scene did to its nodes."""

    after_s: float
    """Since the scene began."""
    what: str


class Course(Protocol):
    """Where a scene takes its time from, and whom it tells of its steps."""

    @property
    def steps(self) -> Sequence[Step]:
        """The steps that the scene has taken."""

    def now_s(self) -> float:
        """Return the time since the epoch."""

    def sleep(self, wait_s: float) -> None:
        """Let time go by."""

    def begin(self) -> None:
        """Count the time of steps from now on."""

    def step(self, what: str) -> None:
        """Hear of a step that the scene is about to take."""


@dataclass(slots=True)
class LiveCourse:
    """Real time."""

    begun_s: float = 0.0
    _steps: list[Step] = field(default_factory=list)

    @property
    def steps(self) -> Sequence[Step]:
        return tuple(self._steps)

    def now_s(self) -> float:
        return time.time()

    def sleep(self, wait_s: float) -> None:
        time.sleep(wait_s)

    def begin(self) -> None:
        self.begun_s = self.now_s()

    def step(self, what: str) -> None:
        self._steps.append(Step(self.now_s() - self.begun_s, what))
