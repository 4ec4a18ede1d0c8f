"""What a run shows while it lasts: a live block on a terminal, plain lines anywhere else.

All of it goes to stderr; stdout is for the result. The host of the nodes calls `update` as often
as they like: the figures carry their own time, and what comes too soon is not drawn. A block that
did not change is not written.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO, cast

from fleet.report.figure import Kind, figure
from fleet.report.report import own_limit_words
from fleet.report.summary_text import size

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live

FRAME_S = 0.25  # the least time between two frames: four a second
CHANGED_LINE_S = 10.0
STEADY_LINE_S = 30.0
ESTIMATE_AFTER_S = 5.0  # of rising nodes; what is sooner is over sooner than it is read

ANSWER_BYTES_MAX = 1024

LABEL_COLUMNS = 15
FAULTS_SHOWN = 4
MORE_FAULTS = "fault "
BAR_COLUMNS = 30
NODES_COLUMNS = 62  # of the line of nodes, without its bar and its three numbers
DELAYS = ("request_p99_ms", "lease_late_p99_ms")
STATE_STYLES = {"Running": "green", "Failed": "red", "Pending": "yellow"}
Words = list[tuple[str, str]]
"""Pieces of a line, each with its style on a terminal."""


@dataclass(slots=True, kw_only=True)
class LiveFigures:
    """How the run stands. None is for what is not known; of processes all is `combined`."""

    elapsed_s: float = figure(0.0, kind=Kind.FACT)
    nodes_requested: int = 0
    nodes_registered: int = 0
    nodes_ready: int = 0
    held_by: str = ""  # what keeps nodes from starting just now
    own_limits: Mapping[str, int] = field(default_factory=dict)
    """Limits of fleet's own that were hit, and how often."""
    scenario: str = ""  # which phase of a scenario is played, and what it waits for
    faults: list[str] = field(default_factory=list)
    """What is on: its name, its nodes, the time that is left."""
    pods: Mapping[str, int] = field(default_factory=dict)
    """Pods by state, in the order to show them: Running, Pending, ..."""
    requests_per_s: float = 0.0
    request_p99_ms: float | None = figure(None, kind=Kind.MOMENT)
    lease_late_p99_ms: float | None = figure(None, kind=Kind.MOMENT)
    api_errors: int = 0
    watches: int = 0
    agents: int = 0  # what runs next to the kubelets: with the next two
    agent_watches: int = 0
    agent_bytes_per_s: float = 0.0
    fleet_cpu: float | None = None  # in cores, as the next one
    controlplane_cpu: float | None = None
    rss_bytes: int = 0


class Unfailing:
    """A stream whose end is somebody else's: a log on a full disk, or a pipe that was closed.

    What cannot be written is lost; it is no reason to end a run.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


class Display:
    """The live display of one run."""

    def __init__(self, *, stream: TextIO | None = None, is_quiet: bool = False) -> None:
        self._stream = cast("TextIO", Unfailing(stream or sys.stderr))
        self._console = None if is_quiet else _terminal(self._stream)
        self._is_quiet = is_quiet
        """Only notes are printed."""
        self._rising_from: tuple[float, int] | None = None
        """When nodes began to become Ready, and how many were."""
        self._hints: tuple[str, ...] = ()  # the last lines of the block: how to end the run
        self._phase = "starting"
        self._figures = LiveFigures()
        self._live: Live | None = None
        self._drawn: list[tuple[str, Words]] = []
        self._next_frame_s = 0.0
        self._printed: tuple[object, ...] = ()
        self._printed_s = float("-inf")

    def start(self) -> None:
        """Begin to draw; may follow a `stop`, after something else had the terminal."""
        if self._console is not None and self._live is None:
            from rich.live import Live  # noqa: PLC0415 - see `_terminal`

            self._live = Live(
                console=self._console,
                auto_refresh=False,  # a thread of its own would draw what did not change
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._drawn = []
            self._live.start()
            self._draw()

    def phase(self, name: str) -> None:
        """Say what the run is doing now; shown at once."""
        is_step = name.partition(":")[0] == self._phase.partition(":")[0]  # "cleaning up: ..."
        if name == self._phase:
            return
        self._phase = name
        if self._live is not None:
            self._draw()
        elif self._console is None and not is_step:
            self._print_line()

    def over(self) -> None:
        """Take the figures off: nothing renews them from here on."""
        self._figures = LiveFigures(elapsed_s=self._figures.elapsed_s)
        if self._live is not None:
            self._draw()

    def hint(self, *hints: str) -> None:
        """Replace the last lines of the block: where the kubeconfig is, how to end the run."""
        self._hints = hints
        if self._console is None:
            for line in hints:
                self.tell(line)

    def update(self, figures: LiveFigures) -> None:
        """Take new figures, and show them if it is time."""
        for name in DELAYS:  # of a moment without any: or lines would come and go
            if getattr(figures, name) is None:
                setattr(figures, name, getattr(self._figures, name))
        self._figures = figures
        if figures.nodes_ready >= figures.nodes_requested:
            self._rising_from = None
        elif self._rising_from is None and figures.nodes_ready:
            self._rising_from = figures.elapsed_s, figures.nodes_ready
        if self._live is not None:
            if figures.elapsed_s >= self._next_frame_s:
                self._next_frame_s = figures.elapsed_s + FRAME_S
                self._draw()
        elif self._console is None and figures.elapsed_s >= self._line_due_s(figures):
            self._print_line()

    def tell(self, line: str) -> None:
        """Print a line that nobody has to act upon: the quiet do without."""
        if not self._is_quiet:
            self.note(line)

    def note(self, line: str) -> None:
        """Print one line for good, above the block; whole, as it may be a command to copy."""
        if self._console is None:
            self._stream.write(f"{line}\n")
            self._stream.flush()
        else:
            self._console.print(line, markup=False, emoji=False, soft_wrap=True)

    def stop(self) -> None:
        """Leave the last frame on the terminal."""
        live, self._live = self._live, None
        if live is not None:
            live.update(self._block(), refresh=True)
            live.stop()

    def pause(self) -> None:
        """Take the block off the terminal, which something else needs; `start` draws it again."""
        if self._live is not None:
            self._live.transient = True
        self.stop()

    # The live block.

    def _draw(self) -> None:
        assert self._live is not None, "only a started display draws"
        rows = self._rows()
        if rows != self._drawn:
            self._drawn = rows
            self._live.update(self._block(), refresh=True)

    def _block(self) -> "Group":
        from rich.console import Group  # noqa: PLC0415 - see `_terminal`
        from rich.text import Text  # noqa: PLC0415

        lines = (_line_of(*row) for row in self._rows())
        return Group(*[Text.assemble(*line, no_wrap=True, overflow="ellipsis") for line in lines])

    def _rows(self) -> list[tuple[str, Words]]:
        """Return the lines by label; empty ones are left out."""
        now = self._figures
        head = [("fleet", "bold cyan"), (f"  {self._phase}  ", ""), (clock(now.elapsed_s), "dim")]
        rows = [
            ("", head),
            ("nodes", self._nodes(now)),
            *_facts(now),
            *((f"hint {i}", [(hint, "dim")]) for i, hint in enumerate(self._hints)),
        ]
        return [row for row in rows if row[1]]

    def _nodes(self, now: LiveFigures) -> Words:
        if not now.nodes_requested:
            return []
        words = f" of {self._wanted(now)}"
        return [*self._bar(now), ("  ", ""), (f"{now.nodes_ready:,}", "bold"), (words, "")]

    def _wanted(self, now: LiveFigures) -> str:
        words = f"{now.nodes_requested:,} Ready"
        if now.nodes_ready < now.nodes_requested:
            words += f", {now.nodes_registered:,} registered{self._left(now)}"
        return words

    def _left(self, now: LiveFigures) -> str:
        """Say how long it takes until all nodes are Ready if it goes on as so far."""
        if self._rising_from is None:
            return ""
        from_s, before = self._rising_from
        gained, took_s = now.nodes_ready - before, now.elapsed_s - from_s
        if gained <= 0 or took_s < ESTIMATE_AFTER_S:
            return ""
        left_s = (now.nodes_requested - now.nodes_ready) * took_s / gained
        return f", about {clock(left_s)} left"

    def _bar(self, now: LiveFigures) -> Words:
        """Draw what is Ready in green, what is registered in yellow."""
        assert self._console is not None, "only a terminal has a block"
        is_unicode = (self._console.encoding or "").lower().startswith("utf")
        full, empty = ("━", "╌") if is_unicode else ("#", "-")
        wanted = now.nodes_requested
        room = self._console.width - NODES_COLUMNS - 3 * len(f"{wanted:,}")
        columns = min(BAR_COLUMNS, max(0, room))
        ready = columns * min(now.nodes_ready, wanted) // wanted
        registered = max(ready, columns * min(now.nodes_registered, wanted) // wanted)
        return [
            (full * ready, "green"),
            (full * (registered - ready), "yellow"),
            (empty * (columns - registered), "dim"),
        ]

    # Plain lines.

    def _line_due_s(self, now: LiveFigures) -> float:
        state = self._state(now)
        if state[:1] != self._printed[:1]:  # the first figures, or another size
            return self._printed_s
        is_news = state != self._printed
        return self._printed_s + (CHANGED_LINE_S if is_news else STEADY_LINE_S)

    def _state(self, now: LiveFigures) -> tuple[object, ...]:
        """Return what makes a line worth printing: not the rates, which always change."""
        nodes = (now.nodes_requested, now.nodes_registered, now.nodes_ready)
        return (*nodes, now.api_errors, *now.pods.items())

    def _print_line(self) -> None:
        if self._is_quiet:
            return
        now = self._figures
        self._printed, self._printed_s = self._state(now), now.elapsed_s
        facts = [
            PLAIN.get(label, "fault " if label.startswith("fault") else f"{label} ")
            + "".join(text for text, _ in words)
            for label, words in _facts(now)
            if words
        ]
        nodes = f"{now.nodes_ready:,}/{self._wanted(now)}" if now.nodes_requested else ""
        words = "; ".join(filter(None, [nodes, *facts]))
        self.note(f"[{clock(now.elapsed_s):>5}] {self._phase}" + (f": {words}" if words else ""))


def _terminal(stream: TextIO) -> "Console | None":
    """Return what draws on a terminal; None where lines are all that can be shown."""
    if not stream.isatty():
        return None
    from rich.console import Console  # noqa: PLC0415 - a log does without these 1.5 MB

    console = Console(file=stream, highlight=False, soft_wrap=False)
    return console if console.is_terminal and not console.is_dumb_terminal else None


def _line_of(label: str, words: Words) -> Words:
    if not label or label.startswith("hint "):
        return words
    shown = "" if label.startswith(MORE_FAULTS) else label
    return [("  ", ""), (f"{shown:<{LABEL_COLUMNS}}", "dim"), *words]


def clock(seconds: float) -> str:
    """Return an elapsed time as 0:42 or 1:02:03."""
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"


def _facts(now: LiveFigures) -> list[tuple[str, Words]]:
    """Return what both forms show, by label; some of it is empty."""
    limits = f"{own_limit_words(now.own_limits)}; the run is invalid" if now.own_limits else ""
    is_held = now.nodes_ready < now.nodes_requested
    return [
        ("own limits", _words(limits, "red")),
        ("held back by", _words(now.held_by if is_held else "")),
        ("scenario", _words(now.scenario)),
        *_faults(now.faults),
        ("pods", _pods(now.pods)),
        ("requests", _requests(now)),
        ("leases", _words(_leases(now))),
        ("agents", _words(_agents(now))),
        ("fleet", _words(_process(now))),
        ("control plane", _words(_cores(now.controlplane_cpu))),
    ]


def _words(text: str, style: str = "") -> Words:
    return [(text, style)] if text else []


PLAIN = {
    "own limits": "own limits of fleet were hit: ",
    **dict.fromkeys(("scenario", "pods", "requests"), ""),
}
"""What stands before a fact in a line of text, if it is not the label."""


def _faults(faults: Sequence[str]) -> list[tuple[str, Words]]:
    """Return a line for each of the first faults; only the first has a label that is shown."""
    lines = list(faults[:FAULTS_SHOWN])
    if len(faults) > FAULTS_SHOWN:
        lines.append(f"and {len(faults) - FAULTS_SHOWN:,} more")
    return [
        (f"{MORE_FAULTS}{number}" if number else "faults", [(each, "red")])
        for number, each in enumerate(lines)
    ]


def _pods(pods: Mapping[str, int]) -> Words:
    shown = [
        (f"{count:,} {state}", STATE_STYLES.get(state, ""))
        for state, count in pods.items()
        if count
    ]
    return [piece for each in shown for piece in ((", ", ""), each)][1:]


def _requests(now: LiveFigures) -> Words:
    if not (now.nodes_registered or now.requests_per_s or now.api_errors):
        return []
    words = f"{now.requests_per_s:,.0f}/s, "
    if now.request_p99_ms is not None:
        words += f"p99 {_ms(now.request_p99_ms)}, "
    errors = "error" if now.api_errors == 1 else "errors"
    return [(words, ""), (f"{now.api_errors:,} {errors}", "red" if now.api_errors else "dim")]


def _leases(now: LiveFigures) -> str:
    if now.lease_late_p99_ms is None:
        return ""
    return f"sent p99 {_ms(now.lease_late_p99_ms)} late"


def _agents(now: LiveFigures) -> str:
    if not now.agents:
        return ""
    rate = f"{now.agent_bytes_per_s / 1e6:,.1f} MB/s received"
    return f"{now.agents:,} running, {now.agent_watches:,} watches, {rate}"


def _process(now: LiveFigures) -> str:
    words = [_cores(now.fleet_cpu)]
    words.append(size(now.rss_bytes) if now.rss_bytes else "")
    words.append(f"{now.watches:,} watches" if now.watches else "")
    return ", ".join(word for word in words if word)


def _cores(cores: float | None) -> str:
    if cores is None:
        return ""
    return f"{cores:.1%} of a core" if cores < 1 else f"{cores:.2f} cores"


def _ms(value: float) -> str:
    return f"{value:,.1f} ms" if value < 100 else f"{value:,.0f} ms"


async def ask_on_terminal(question: str) -> bool:
    """Ask a person; anything but yes is no. The loop turns all the time, so that signals end it."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    try:
        answer = await _line(sys.stdin.fileno())
    except asyncio.CancelledError:
        sys.stderr.write("\n")
        raise
    return answer.strip().lower() in (b"y", b"yes")


async def _line(terminal: int) -> bytes:
    """Return what is typed up to a newline or the end of the input."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[bytes] = loop.create_future()
    read = b""

    def on_readable() -> None:
        nonlocal read
        piece = os.read(terminal, ANSWER_BYTES_MAX)
        read += piece
        is_over = not piece or b"\n" in read or len(read) > ANSWER_BYTES_MAX
        if is_over and not typed.done():
            typed.set_result(read)

    is_blocking = os.get_blocking(terminal)
    loop.add_reader(terminal, on_readable)
    try:
        return await typed
    finally:
        loop.remove_reader(terminal)
        # libuv has made it non-blocking, for the shell that shares it too.
        os.set_blocking(terminal, is_blocking)
