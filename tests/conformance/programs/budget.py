"""What one command of a pod may cost fleet: characters, commands and nesting, in one account.

    spend: what a program reads, expands, matches or prints is paid for before it is made
    nest:  a script, an expansion or an expression within another one

A unit is a character that Python goes over once, about 25 ns and a byte, so that a whole account is
about 50 ms and 2 MB on any machine, and the same script is over its budget everywhere. When virtual
time passes (`sleep`), the account is full again. A script that keeps within it for so long that its
runs together cost too much is no danger: it is one that never ends.
"""

from types import TracebackType

from fleet.runtime.container_config import OverBudgetError

__all__ = ["Budget", "OverBudgetError", "check_nesting"]

UNITS = 2 << 20
"""For a script or a probe of a pod, between two instants of its run."""
UNITS_WHOLE = 4 << 20
"""For a user who runs a command: `kubectl cp` reads and writes archives of many megabytes."""
REFILLS_MAX = 2
"""So many whole accounts are spent on one run before it is taken for one that never ends."""
COMMAND_UNITS = 1000
"""What a command costs beside what it reads and prints."""
MATCH_UNITS = 16
"""What a character costs that a pattern is held against."""
LINE_UNITS = 32
"""What a line of a log costs beside its characters: each is kept by itself."""
COPIED_SHIFT = 4
"""A text that is passed on as it is costs a sixteenth of its length."""
NESTING_MAX = 32
"""Real scripts nest less than ten deep; each level takes up to ten frames of Python's 1,000."""


class Budget:
    """The account of one command."""

    __slots__ = ("_depth", "_left", "_spent", "_units")

    def __init__(self, units: int = UNITS) -> None:
        self._units = units
        self._left = units
        self._spent = 0  # on what was before
        self._depth = 0

    @property
    def spent(self) -> int:
        """Return what was spent since `begin`."""
        return self._spent + self._units - self._left

    def begin(self) -> None:
        """Start a run, or another round of one that is followed for as long as it lasts."""
        self._left, self._spent, self._depth = self._units, 0, 0

    def refill(self) -> bool:
        """Fill the account, since virtual time has passed; False if that was done too often."""
        self._spent += self._units - self._left
        self._left = self._units
        return self._spent <= REFILLS_MAX * self._units

    def spend(self, units: int) -> None:
        """Pay for something before it is made. Raises OverBudgetError."""
        self._left -= units
        if self._left < 0:
            raise OverBudgetError("it reads, prints or expands too much")

    def __enter__(self) -> None:
        """Go a level deeper. Raises OverBudgetError."""
        check_nesting(self._depth + 1)
        self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Come back from a level."""
        self._depth -= 1


def check_nesting(depth: int) -> None:
    """Raise OverBudgetError where something is nested too deeply."""
    if depth > NESTING_MAX:
        raise OverBudgetError("it is nested too deeply")
