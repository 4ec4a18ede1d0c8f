"""Which program a container runs: of a plug-in, else what its command says, else by role.

A plug-in is a Python file or package with a function `program_of(pod, spec)` that returns a
`Program`, or None for a container that it does not know. `--programs` names files; the entry-point
group `fleet.programs` those of packages that are installed. The first that knows a container wins.
"""

import importlib.util
import posixpath
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path

from fleet.errors import UsageError
from fleet.k8s.pods import ContainerSpec, Pod, ProbeSpec
from fleet.profile.container_behavior import (
    ALWAYS_GOOD,
    LogBehavior,
    ProbeAnswer,
    ProbeBehavior,
    ProbePhase,
)
from fleet.profile.distribution import constant
from fleet.profile.pod_behavior import ContainerBehavior
from fleet.runtime import commands
from fleet.runtime.commands import NewFiles, Script
from fleet.runtime.container_config import OverBudgetError, expanded, mounts_of, own_variables
from fleet.runtime.files import ANY_FILE, FileChange, ProcessFiles, layer_of
from fleet.runtime.program import UNKNOWN, HttpReply, Process, Program, Run, Steps, says

GROUP = "fleet.programs"
Finder = Callable[[Pod, ContainerSpec], Program | None]
_plug_ins: list[Finder] = []  # of this process, in order
PHASES_MAX = 64  # a script that changes its files more often is followed so far
OUTPUT_MAX = 10 << 10  # Source: pkg/probe/exec/exec.go, maxReadLength


def program_of(pod: Pod, spec: ContainerSpec) -> Program:
    """Return the program of a container."""
    for find in _plug_ins:
        found = find(pod, spec)
        if found is not None:
            return found
    return CommandProgram(command_of(spec), has_input=spec.script is not None and spec.script.stdin)


def has_plug_ins() -> bool:
    """Return whether this process has loaded any plug-in."""
    return bool(_plug_ins)


def command_of(spec: ContainerSpec) -> tuple[str, ...]:
    """Return the words of a container's command, () if they are for an unknown entry point."""
    args = spec.args
    is_read = bool(args) and posixpath.basename(args[0]) in commands.COMMANDS
    if spec.command or is_read or commands.script_at(args) or commands.is_shell(args):
        return spec.command + args
    return ()


def is_unknown(pod: Pod, spec: ContainerSpec) -> bool:
    """Return whether a container may do what fleet knows nothing of."""
    run = program_of(pod, spec).run(Process(pod, spec))
    return run.unknown_ns is not None or any(each.path == ANY_FILE for each in run.changes)


class CommandProgram(Program):
    """What the command of a container says, as far as it is read."""

    __slots__ = ("_has_input", "words")

    def __init__(self, words: tuple[str, ...], *, has_input: bool = False) -> None:
        self.words = words
        self._has_input = has_input

    @property
    def reads_files(self) -> bool:  # type: ignore[override]
        """Whether what it does depends on files or variables."""
        return bool(self.words) and _universal(self.words) is None

    def run(self, process: Process, term_ns: int | None = None) -> Run:
        """Return what the process does by itself."""
        if not self.words:
            return UNKNOWN
        if commands.is_shell(self.words):
            return Run(None) if self._has_input else Run(0)
        found = _universal(self.words)
        if found is not None and (term_ns is None or not found.traps):
            return found
        try:
            return _script(self.words, process, term_ns, is_own=True).run()
        except OverBudgetError as error:
            return Run(None, error=str(error))

    def log(self, process: Process, term_ns: int | None = None) -> LogBehavior | Steps:
        """Return what it logs: what its command prints."""
        run = _universal(self.words) if self.words else UNKNOWN
        if run is not None and not run.written and run.unknown_ns == 0:
            return super().log(process)
        try:
            return _script(self.words, process, term_ns, is_own=True)
        except OverBudgetError:
            return super().log(process)

    def probe(self, pod: Pod, spec: ContainerSpec, probe: ProbeSpec) -> ProbeBehavior | None:  # noqa: ARG002
        """Return what an exec probe finds: its command is run on the files of the container's."""
        if probe.handler != "exec" or not _is_short(probe.command):
            return None
        return _phases(probe.command, self.words if _is_short(self.words) else ())


def _script(
    words: tuple[str, ...],
    process: Process,
    term_ns: int | None = None,
    *,
    is_own: bool,
    is_asked: bool = False,
) -> Script:
    """Return a command at its start. Raises OverBudgetError."""
    variables = own_variables(process)
    files = ProcessFiles(
        process.files,
        mounts_of(process, variables),
        layer_of(process.pod.uid, process.spec.name),
        process.start_ns,
        is_own=is_own,
    )
    words = expanded(words, variables) if is_own else words  # else as it is: handlers.go, Run
    return Script(words, files, term_ns, is_asked=is_asked)


class _Looked(Exception):  # noqa: N818 - it is none
    """A command looked at what is around it."""


class _Unseen:
    """Files that must not be looked at."""

    def read(self, path: str, _after_ns: int) -> str | None:
        raise _Looked(path)

    def write(self, path: str, _text: str | None) -> None:
        raise _Looked(path)


def _is_short(words: tuple[str, ...]) -> bool:
    """Return whether a command may be kept; a hostile pod's may have a megabyte."""
    return sum(map(len, words)) <= commands.TEXT_MAX


def _universal(words: tuple[str, ...]) -> Run | None:
    """Return what a command does wherever it runs, None if that depends on where."""
    is_kept = _is_short(words) and not any("$(" in word for word in words)
    return _run_unseen(words) if is_kept else None


@lru_cache(maxsize=256)
def _run_unseen(words: tuple[str, ...]) -> Run | None:
    try:
        return Script(words, _Unseen()).run()
    except _Looked:
        return None


# ---- what is asked of a container ----


def declared_run(words: tuple[str, ...], behavior: ContainerBehavior) -> Run | None:
    """Return what a PodBehavior says that a command does, None if it says nothing."""
    found = behavior.exec_answer(words)
    if found is None:
        return None
    code, after_ns = found.exit_code, found.after
    return says(found.stdout, stderr=found.stderr, exit_code=code, after_ns=after_ns)


def _said_run(
    process: Process, words: tuple[str, ...], program: Program, behavior: ContainerBehavior
) -> Run | None:
    return declared_run(words, behavior) or program.exec(process, words)


def run_in(
    process: Process, words: tuple[str, ...], program: Program, behavior: ContainerBehavior
) -> Run:
    """Return what a command does that a kubelet runs in a container.

    As declared, else as the container's program says, else as far as it is read.
    """
    found = _said_run(process, words, program, behavior)
    if found is not None:
        return found
    try:
        return _script(words, process, is_own=False).run()
    except OverBudgetError as error:
        return Run(None, error=str(error))


def script_in(process: Process, words: tuple[str, ...]) -> Script:
    """Return a command that a user runs; what is not read is an error that the user sees."""
    try:
        return _script(words, process, is_own=False, is_asked=True)
    except OverBudgetError:  # such a container was not started: nobody is in it
        return Script((), NewFiles({}, is_new=True), is_asked=True)


def http_reply(
    process: Process, port: int, path: str, program: Program, behavior: ContainerBehavior
) -> HttpReply | None:
    """Return what answers a GET on a port of a container, None if nobody says."""
    path = path.partition("?")[0]
    declared = behavior.http_answer(port, path)
    if declared is not None:
        return HttpReply(declared.status, declared.body.encode(), declared.content_type)
    return program.http(process, port, path)


def record(process: Process, changes: Iterable[FileChange], writer: str) -> None:
    """Have others see the files that a process changed, or will."""
    assert process.files is not None, process.spec.name
    layer = layer_of(process.pod.uid, process.spec.name)
    mounts = mounts_of(process, own_variables(process))
    process.files.record(mounts, layer, process.start_ns, changes, writer)


# ---- probes ----


def probe_of(
    pod: Pod, spec: ContainerSpec, probe: ProbeSpec, program: Program, behavior: ContainerBehavior
) -> ProbeBehavior:
    """Return what a probe finds over the life of a container, of which no result is declared."""
    process = Process(pod, spec)
    if probe.handler == "exec":
        run = declared_run(probe.command, behavior)
        found = None if run is not None else program.probe(pod, spec, probe)
        run = run if found is not None or run is not None else program.exec(process, probe.command)
        if run is not None:
            return ProbeBehavior((_exec_phase(run, 0),))
        return found or CommandProgram(()).probe(pod, spec, probe) or ALWAYS_GOOD
    if probe.handler != "httpGet":
        return program.probe(pod, spec, probe) or ALWAYS_GOOD
    found = None
    if behavior.http_answer(probe.port, probe.path.partition("?")[0]) is None:
        found = program.probe(pod, spec, probe)
    phase = _phase(process, probe, 0, program, behavior)
    return found or (ALWAYS_GOOD if phase == ProbePhase() else ProbeBehavior((phase,)))


def probe_in_files(
    process_at: Callable[[int], Process],
    probe: ProbeSpec,
    before: ProbeBehavior,
    age_ns: int,
    program: Program,
    behavior: ContainerBehavior,
) -> ProbeBehavior:
    """Return what a probe found up to an age of its container, and finds from then on.

    Somebody wrote into the container (`kubectl exec`): the probe's command is run on the files as
    they are, and as the container's program will change them. Where that is no answer, a plug-in's
    program says it as before. `process_at` returns a process that starts at an age.
    """
    now = process_at(age_ns)
    assert now.files is not None, now.spec.name
    phases = [each for each in before.phases if each.after_ns < age_ns]
    start_ns = now.start_ns - age_ns
    said = None
    if not isinstance(program, CommandProgram):
        said = program.probe(now.pod, now.spec, probe)
    ages = {at_ns - start_ns for at_ns in now.files.instants(now.pod.uid, now.start_ns)}
    ages |= {each.after_ns for each in said.phases if each.after_ns > age_ns} if said else set()
    for after_ns in sorted({age_ns, *ages})[:PHASES_MAX]:
        found = _phase(process_at(after_ns), probe, after_ns, program, behavior, said)
        if not phases or found._replace(after_ns=phases[-1].after_ns) != phases[-1]:
            phases.append(found)
    return ProbeBehavior(tuple(phases))


def _phase(
    process: Process,
    probe: ProbeSpec,
    after_ns: int,
    program: Program,
    behavior: ContainerBehavior,
    said: ProbeBehavior | None = None,
) -> ProbePhase:
    """Return what one attempt finds at an age of a container; what nobody answers is as `said`."""
    if probe.handler == "exec":
        run = _said_run(process, probe.command, program, behavior)
        if run is not None or said is None:
            run = run or run_in(process, probe.command, program, behavior)
            return _exec_phase(run, after_ns)
    else:
        reply = http_reply(process, probe.port, probe.path, program, behavior)
        if reply is not None or said is None:
            code = HTTP_OK if reply is None else reply.code
            if HTTP_OK <= code < HTTP_BAD_REQUEST:
                return ProbePhase(after_ns)
            return ProbePhase(after_ns, ProbeAnswer.FAILURE, status_code=code)
    return said.at(after_ns)[0]._replace(after_ns=after_ns)


HTTP_OK, HTTP_BAD_REQUEST = 200, 400
"""Source: pkg/probe/http/http.go, DoHTTPProbe: what lies between has passed."""


def _exec_phase(run: Run, after_ns: int) -> ProbePhase:
    """Return the phase of a probe whose command runs so; what nobody knows passes."""
    if run.error:
        return ProbePhase(after_ns, ProbeAnswer.TIMEOUT)
    if run.run_ns is None or run.ends_unknown:
        return ProbePhase(after_ns)
    latency = constant(run.run_ns)
    if not run.exit_code:
        return ProbePhase(after_ns, latency=latency)
    output = run.text("")[:OUTPUT_MAX]
    return ProbePhase(after_ns, ProbeAnswer.FAILURE, latency=latency, output=output)


@lru_cache(maxsize=256)
def _phases(probe: tuple[str, ...], container: tuple[str, ...]) -> ProbeBehavior:
    """Return what an exec probe finds while a container's command makes and removes files.

    A file of which that command says nothing is unknown, and so is one that is missing when a
    command runs that may make it: a probe that needs it succeeds.
    Differs: files in volumes are taken to be the container's own.
    """
    run = UNKNOWN
    if container and not commands.is_shell(container):
        run = Script(container, NewFiles({}, is_new=True)).run()
    files = dict[str, str | None].fromkeys(each.path for each in run.changes)
    files.pop(ANY_FILE, None)
    by_time: dict[int, list[FileChange]] = {0: []}
    for each in run.changes:
        by_time.setdefault(each.after_ns, []).append(each)
    phases: list[ProbePhase] = []
    for after_ns, changes in list(by_time.items())[:PHASES_MAX]:
        for each in changes:
            if each.path == ANY_FILE:
                files = {path: text for path, text in files.items() if text is not None}
            else:
                files[each.path] = each.text
        phase = _exec_phase(Script(probe, NewFiles(dict(files), is_new=False)).run(), after_ns)
        if not phases or phase._replace(after_ns=phases[-1].after_ns) != phases[-1]:
            phases.append(phase)
    return ALWAYS_GOOD if phases == [ProbePhase()] else ProbeBehavior(tuple(phases))


# ---- plug-ins ----


def load_programs(paths: Iterable[Path]) -> None:
    """Have containers run the programs of plug-ins: of files, then of installed packages.

    Raises UsageError.
    """
    found = [_of_file(path) for path in paths]
    for point in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        origin = f"entry point {point.name} of {GROUP}"
        try:
            loaded = point.load()
        except Exception as error:  # whatever a plug-in of a user raises
            raise UsageError(f"{origin}: cannot be imported: {_in_a_line(error)}") from error
        found.append(_finder(loaded, origin))
    _plug_ins[:] = found


def _of_file(path: Path) -> Finder:
    where = path / "__init__.py" if path.is_dir() else path
    if not where.is_file():
        raise UsageError(f"--programs {path}: is neither a Python file nor a package")
    name = f"fleet_programs_{path.stem.replace('-', '_')}"
    spec = importlib.util.spec_from_file_location(name, where)
    if spec is None or spec.loader is None:
        raise UsageError(f"--programs {path}: is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # for imports within a package
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a plug-in of a user raises
        raise UsageError(f"--programs {path}: cannot be imported: {_in_a_line(error)}") from error
    return _finder(getattr(module, "program_of", None), f"--programs {path}")


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _finder(found: object, origin: str) -> Finder:
    if not callable(found):
        raise UsageError(f"{origin}: has no function program_of(pod, spec)")
    return found
