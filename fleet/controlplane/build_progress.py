"""How a build stands: one bar on a terminal; elsewhere a line for each step, and one every 10 s.

A step is what Go does: it looks for modules, downloads them, compiles, links. Go says nothing for
half a minute while it links, so time passes by itself: `tick`, or the bar's own thread.
"""

import sys
import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from fleet.controlplane.options import Progress, no_progress

LINE_S = 10.0  # between lines where no bar can be drawn: a build of minutes is some dozen lines


def to_stderr(line: str) -> None:
    """Print a line as progress of a program that has no display."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - that is its purpose


class _Words(ProgressColumn):
    """Words that change by themselves: the time since the build began, and what is left."""

    def __init__(self, words: Callable[[], str]) -> None:
        super().__init__()
        self._words = words

    def render(self, task: object) -> Text:
        del task
        return Text(self._words(), style="progress.elapsed")


class BuildProgress:
    """Shows one build of `what`. Lines go to `note`; a bar only if its terminal can have one."""

    def __init__(
        self,
        what: str,
        note: Progress,
        *,
        console: Console | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._note = note
        self._now_s = now_s
        self._began_s = self._step_s = self._line_s = now_s()
        self._doing, self._detail = "", ""
        self._done = self._total = 0
        console = console or Console(stderr=True)
        self._bar: Bar | None = None
        self._task = TaskID(0)
        if console.is_terminal and not console.is_dumb_terminal and note is not no_progress:
            self._bar = Bar(
                TextColumn("building {task.fields[what]}: {task.description}"),
                BarColumn(bar_width=30),
                TextColumn("{task.fields[count]}"),
                _Words(self.elapsed),
                _Words(self._rest),
                console=console,
                transient=True,
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, doing: str, total: int = 0) -> None:
        """Begin a step, of so many packages if that is known."""
        if doing == self._doing:
            return
        self._doing, self._detail, self._done, self._total = doing, "", 0, total
        self._step_s = self._now_s()
        if self._bar is None:
            self._print()
            return
        for task in self._bar.task_ids:
            self._bar.remove_task(task)
        self._task = self._bar.add_task(
            doing, total=total or None, what=self._what, count=self._count()
        )

    def advance(self, detail: str = "") -> None:
        """Count one more package or module."""
        self._done += 1
        self._detail = detail
        if self._bar is not None:
            self._bar.update(self._task, advance=1, count=self._count())
        self.tick()

    def tick(self) -> None:
        """Let time pass; called about once a second."""
        if self._bar is None and self._now_s() - self._line_s >= LINE_S:
            self._print()

    def elapsed(self) -> str:
        """Return the time since the beginning."""
        return _duration(self._now_s() - self._began_s)

    def _count(self) -> str:
        if self._total:
            return f"{self._done} of ~{self._total} packages"  # what Go has in its cache is missing
        return " ".join(filter(None, (str(self._done or ""), self._detail)))

    def _print(self) -> None:
        self._line_s = self._now_s()
        parts = (self._doing, self._count(), self.elapsed(), self._rest())
        self._note(f"building {self._what}: {', '.join(filter(None, parts))}")

    def _rest(self) -> str:
        """Estimate what is left of this step."""
        took_s = self._now_s() - self._step_s
        if not self._total or not self._done or took_s < LINE_S:
            return ""
        return f"about {_duration(took_s / self._done * max(self._total - self._done, 0))} left"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
