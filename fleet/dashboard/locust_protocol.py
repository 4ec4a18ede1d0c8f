"""A Locust worker as the master sees it: what it is sent, and what it makes of the answers.

    client_ready -> ack -> spawn, spawn, ... -> stop -> client_stopped, client_ready -> ... -> quit

`spawn` carries an absolute target, one "user" of class VirtualNode is one node. The newest target
wins; counts that are reported are nodes that exist, not nodes that were asked for. A master that
was restarted knows nobody and answers no heartbeat: unanswered ones are counted, never timed, so
that a pause of our own is not taken for it. It then ramps from 0; targets below what lives are not
followed until they pass it, or until the ramp is over.

Source: locust/runners.py, MasterRunner.client_listener, WorkerRunner.worker;
locust/rpc/protocol.py.
"""

import enum
from dataclasses import dataclass, field
from typing import Any, NamedTuple

USER_CLASS = "VirtualNode"
FAULT_ORDER = "fleet-fault"
FAULT_TOLD = "fleet-fault-told"
"""What fleet's own locustfile and a worker say of faults; both are custom messages to Locust."""
FOREIGN_WORKER = -1  # the version of a worker that is not Locust's own: the master skips its check
TICK_S = 1.0
REPORT_TICKS = 3
ACK_TICKS = 5
READY_TRIES_MAX = 3
SILENCE_MAX = 5  # heartbeats without an answer after which the master does not know us
QUIET_TICKS = 10  # after so long without a word of the master we say so, and again each minute
REMINDER_TICKS = 60

Json = dict[str, Any]


class Message(NamedTuple):
    """One message to the master."""

    kind: str
    data: object = None


class WorkerState(enum.Enum):
    """What the master shows of a worker; the values are Locust's."""

    READY = "ready"
    SPAWNING = "spawning"
    RUNNING = "running"


class Load(NamedTuple):
    """What the process costs: percent of a core, bytes."""

    cpu_percent: float
    rss_bytes: int


@dataclass(slots=True, kw_only=True)
class LocustWorker:
    """The protocol machine. Feed it messages, ticks and counts; send what it leaves in `out`.

    `target` is what the master wants, None as long as it wants nothing of us. `reopen` asks for a
    new socket under a new identity, `fresh` for statistics that begin now, `is_done` for the end.
    """

    holds: bool  # keep the nodes when the master quits
    nodes_max: int  # so many were confirmed
    fresh: bool = False
    index: int = -1
    is_done: bool = False
    notes: list[str] = field(default_factory=list)  # for people
    out: list[Message] = field(default_factory=list)
    reopen: bool = False
    state: WorkerState = WorkerState.READY
    target: int | None = None
    _has_connection: bool = False  # by the last message
    _is_registered: bool = False
    _adopting: bool = False
    _answered_spawn: bool = True
    _after_stop: str = ""  # what to say once no node is left
    _last_spawn: float = 0.0
    _nodes: int = 0
    _quiet_ticks: int = 0
    _refused: set[str] = field(default_factory=set)  # classes that we shall run, and cannot
    _reset_at_complete: bool = False
    _ticks: int = 0
    _tries: int = 0
    _unanswered: int = 0
    _wanted: int = 0

    def on_message(self, kind: str, data: Any) -> None:
        """Take one message of the master; an unknown kind is some plugin's, and not for us."""
        if self._quiet_ticks >= QUIET_TICKS and self._is_registered:
            self.notes.append("the Locust master answers again")
        self._quiet_ticks = 0
        if kind == "ack":
            self._is_registered = True
            self._adopting = self._nodes > 0
            self._tries = self._unanswered = 0
            self.index = (data or {}).get("index", -1)
            self.notes.append(f"joined the Locust master as worker {self.index}")
            self.out.append(Message("report"))  # it counts our nodes before it deals any out
        elif kind == "heartbeat":
            self._unanswered = 0
        elif kind == "spawn":
            self._on_spawn(data)
        elif kind == "spawning_complete":
            self._on_ramp_over()
        elif kind == "stop":
            self._end("client_stopped")
        elif kind == "quit":
            self._on_quit()
        elif kind == "reconnect":
            self.reconnect()

    def on_count(self, nodes: int) -> None:
        """Take how many nodes exist now."""
        self._nodes = nodes
        if self._after_stop:
            if not nodes:
                self._say_stopped()
        elif self.target is not None and not self._answered_spawn and nodes == self.target:
            self._answered_spawn = True
            self.state = WorkerState.RUNNING
            self.out.append(Message("spawning_complete", self._counts()))

    def on_tick(self, load: Load) -> None:
        """Take the passing of a second."""
        self._ticks += 1
        self._quiet_ticks += 1
        self._has_connection = True
        if not self._is_registered:
            self._ask_in()
            return
        if self._unanswered >= SILENCE_MAX:
            self.notes.append("the Locust master does not know us: it was restarted, or is gone")
            self._forget_master()
            self._ticks = 1
            self._ask_in()
            return
        self._unanswered += 1
        beat = {
            "state": self.state.value,
            "current_cpu_usage": load.cpu_percent,
            "current_memory_usage": load.rss_bytes,
        }
        self.out.append(Message("heartbeat", beat))

    def on_unsent(self, kind: str) -> None:
        """Learn that a message had no connection to leave by; nothing follows for the master."""
        self._has_connection = False
        if kind == "heartbeat":
            self._unanswered = 0
        elif kind == "client_ready":
            self._ticks = self._tries = 0  # asked again at the next tick

    def is_reminder_due(self) -> bool:
        """Return whether to say, this second, that no master answers."""
        over = self._quiet_ticks - QUIET_TICKS
        return over >= 0 and not over % REMINDER_TICKS

    def wants_report(self) -> bool:
        """Return whether statistics are due: each second of a ramp, else every third.

        While the master does not answer, what came stays and is part of a later report.
        """
        if not (self._is_registered and self._has_connection and self._unanswered <= 1):
            return False
        return self.state is WorkerState.SPAWNING or self._ticks % REPORT_TICKS == 0

    def report(self, statistics: Json, fleet: Json) -> Message:
        """Return the message that carries statistics, counts and figures of the fleet."""
        return Message("stats", {**statistics, **self._counts(), "fleet": fleet})

    def reconnect(self) -> None:
        """Register again, over a new socket."""
        self._forget_master()
        self.reopen = True

    def leave(self) -> None:
        """End of our own accord: no target is followed any more, the nodes go first."""
        self._end("quit")

    def abandon(self) -> None:
        """Tell the master that we go, nodes or not."""
        self.out.append(Message("quit"))
        self.is_done = True

    def _forget_master(self) -> None:
        """Begin to register again."""
        self._is_registered = False
        self._ticks = self._tries = self._unanswered = 0

    def _ask_in(self) -> None:
        if (self._ticks - 1) % ACK_TICKS:
            return
        self._tries += 1
        if self._tries > READY_TRIES_MAX:  # a half-open connection may hold our identity
            self._tries = 0
            self.reopen = True
        self.out.append(Message("client_ready", FOREIGN_WORKER))

    def _on_spawn(self, data: Json) -> None:
        if data["timestamp"] <= self._last_spawn or self._after_stop == "quit":
            return
        self._last_spawn = data["timestamp"]
        self._after_stop = ""
        classes = data["user_classes_count"]
        foreign = {name for name, count in classes.items() if name != USER_CLASS and count}
        if foreign - self._refused:
            self._complain(
                f"a fleet worker runs {USER_CLASS} only, not {', '.join(sorted(foreign))}: start "
                f"the master with `fleet locust master`, API users with `fleet locust users`"
            )
        self._refused = foreign
        if self.state is WorkerState.READY and not self._adopting:
            self.fresh = True
        options = data.get("parsed_options") or {}
        self._reset_at_complete = bool(options.get("reset_stats"))
        wanted, before = classes.get(USER_CLASS, 0), self._wanted
        self._wanted = wanted
        if wanted > self.nodes_max >= before:
            self._complain(
                f"{wanted:,} nodes are wanted of one worker that may have {self.nodes_max:,}, as "
                f"confirmed when it started: start it with a larger --max-nodes, or more workers"
            )
        if self._adopting and self._wanted < self._nodes:
            self.target = self._nodes
        else:
            self._adopting = False
            self.target = min(self._wanted, self.nodes_max)
        self.state = WorkerState.SPAWNING
        self._answered_spawn = False
        self.out.append(Message("spawning"))
        self.on_count(self._nodes)

    def _complain(self, text: str) -> None:
        """Say it here and on the dashboard."""
        self.notes.append(text)
        self.out.append(Message("exception", {"msg": text, "traceback": ""}))

    def _on_ramp_over(self) -> None:
        if self._adopting and self._last_spawn:
            self._adopting = False
            self.target = min(self._wanted, self.nodes_max)
        if self._reset_at_complete:
            self._reset_at_complete = False
            self.fresh = True

    def _on_quit(self) -> None:
        if self.holds:
            self.notes.append(f"the Locust master has quit; {self._nodes:,} nodes stay")
            self._forget_master()
        else:
            self._end("quit")

    def _end(self, then: str) -> None:
        if self._after_stop == "quit":
            return
        self._after_stop = then
        self._adopting = False
        self._answered_spawn = True
        self.target = 0
        if not self._nodes:
            self._say_stopped()

    def _say_stopped(self) -> None:
        """Report that no node is left; the last statistics go before."""
        then, self._after_stop = self._after_stop, ""
        self.state = WorkerState.READY
        self.out.append(Message("report"))
        self.out.append(Message(then))
        if then == "quit":
            self.is_done = True
        else:
            self._forget_master()
            self.target = None

    def _counts(self) -> Json:
        return {"user_classes_count": {USER_CLASS: self._nodes}, "user_count": self._nodes}
