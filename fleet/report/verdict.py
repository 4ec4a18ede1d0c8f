"""The verdict on a run, decided in one place: `decide`.

The exit code, the terminal, `summary.json`, `report.html`, Markdown, JUnit, `fleet capacity` and
comparisons all read what it returns; none of them judges again. The gravest verdict that applies
wins:

    INCOMPLETE  the run did not get to its end
    INVALID     fleet itself was not sound: the figures say nothing of the server
    FAIL        a judged level was not met
    NOT JUDGED  nothing could be judged, or not all that the user asked for
    PASS        every judged level was met
"""

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fleet.errors import Exit

if TYPE_CHECKING:
    from fleet.report.report import Expectation, RunFigures

LONGER = "run it longer, for example with --duration 5m"
NOTHING_ASKED = "the run was held to no service level"


class Outcome(enum.StrEnum):
    """What `verdict` in summary.json can be."""

    PASS = "pass"  # noqa: S105 - it is no password
    FAIL = "fail"
    NOT_JUDGED = "not-judged"
    INVALID = "invalid"
    INCOMPLETE = "incomplete"

    @property
    def words(self) -> str:
        """Return the verdict as people read it: `NOT JUDGED`."""
        return self.replace("-", " ").upper()


class Verdict(NamedTuple):
    """What a run is worth, and why."""

    outcome: Outcome
    reasons: list[str]
    """Why, in words; nothing for PASS. The last one of NOT JUDGED says what to do."""
    exit_code: Exit


def decide(figures: "RunFigures") -> Verdict:
    """Return the verdict on a run.

    A level is judged or not by `service_levels.measure`. What the user asked for (`--slo`, a
    scenario) and could not be judged is an expectation whose `is_met` is None: that run exits
    with 4, so that a gate in CI does not pass on what nobody has measured.
    """
    invalid = figures.all_invalid_reasons()
    if figures.incomplete_reasons:
        reasons = [*figures.incomplete_reasons, *invalid]
        return Verdict(Outcome.INCOMPLETE, reasons, Exit.INVALID)
    if invalid:
        return Verdict(Outcome.INVALID, invalid, Exit.INVALID)
    unmet = [each for each in figures.expectations if each.is_met is False]
    if unmet:
        return Verdict(Outcome.FAIL, _words("not met", unmet), Exit.EXPECTATION_FAILED)
    open_ = [each for each in figures.expectations if each.is_met is None]
    if open_:
        reasons = [*_words("not judged", open_), figures.how_longer]
        return Verdict(Outcome.NOT_JUDGED, reasons, Exit.INVALID)
    if not figures.expectations:
        why = dict.fromkeys(each.unjudged for each in figures.slis if each.unjudged)
        reasons = [*why, figures.how_longer] if why else [NOTHING_ASKED]
        return Verdict(Outcome.NOT_JUDGED, reasons, Exit.OK)
    return Verdict(Outcome.PASS, [], Exit.OK)


def _words(what: str, expectations: Sequence["Expectation"]) -> list[str]:
    return [
        f"{what}: {each.name}{f' ({each.detail})' if each.detail else ''}" for each in expectations
    ]
