"""The programs of containers in the conformance suite, as a plug-in.

It reads more of the shell than fleet does, knows the images that the suite uses, and answers
`kubectl exec` with a shell. Nothing of it asks a network: no pod of a fleet is reached.
"""

import posixpath
from functools import lru_cache

from fleet.k8s.pods import ContainerSpec, Pod, ProbeSpec, ScriptSpec
from fleet.profile.container_behavior import LogBehavior, ProbeBehavior
from fleet.runtime.container_config import OverBudgetError, expanded
from fleet.runtime.program import UNKNOWN, HttpReply, Process, Program, Run, Session, Steps

from . import session as sessions
from .agnhost import is_agnhost
from .container_files import ContainerFiles
from .images import NOTHING, entry_point, is_server, runs_its_args
from .liveness import behavior_of_server
from .probe_script import behavior_of_script
from .process import Process as ShellProcess
from .process import has_script, is_shell, is_understood, run_words
from .script import LOOKS, PROGRAMS
from .surroundings import Surroundings
from .whole import surroundings, whole_surroundings

ROOTS = ("", "/usr/share/nginx/html", "/var/www/html", "/usr/local/apache2/htdocs")
"""Where web servers look for what they show."""


def program_of(pod: Pod, spec: ContainerSpec) -> Program:  # noqa: ARG001
    """Return the program of any container."""
    script = spec.script or ScriptSpec()
    return SuiteProgram(
        _words(spec.image, spec.command, spec.args, has_input=script.stdin),
        is_server=is_server(spec),
    )


def _words(
    image: str, command: tuple[str, ...], args: tuple[str, ...], *, has_input: bool
) -> tuple[str, ...]:
    """Return the words of a container's command, () if they are for an unknown entry point."""
    words = command + args
    own = () if command or (has_input and not words) else entry_point(image, words)
    if not has_input and is_shell(words) and (command or runs_its_args(image)):
        own = NOTHING  # its script is the standard input, which is /dev/null
    if own:
        return own + args if own != NOTHING else own
    return words if command or runs_its_args(image) or has_script(args) else ()


@lru_cache(maxsize=256)
def _looks(words: tuple[str, ...]) -> bool:
    """Return whether a command may look at what is around it."""
    if is_agnhost(words):
        return True
    name = posixpath.basename(words[0]) if words else ""
    return name in PROGRAMS and any(LOOKS.search(word) for word in (name, *words[1:]))


class SuiteProgram(Program):
    """What a container of the suite runs."""

    __slots__ = ("is_server", "words")

    def __init__(self, words: tuple[str, ...], *, is_server: bool) -> None:
        self.words = words
        self.is_server = is_server

    @property
    def heeds_term(self) -> bool:  # type: ignore[override]
        """Whether SIGTERM ends it at once."""
        return is_agnhost(self.words)

    @property
    def reads_files(self) -> bool:  # type: ignore[override]
        """Whether what it does depends on files, variables or the instant."""
        return _looks(self.words)

    def run(self, process: Process, term_ns: int | None = None) -> Run:
        """Return what the process does by itself."""
        if not self.words:
            return UNKNOWN
        if is_shell(self.words):
            return Run(None)  # it reads its stdin
        around = surroundings(process)._replace(term_ns=term_ns)
        if around.error:
            return Run(None, error=around.error)
        try:
            return run_words(expanded(self.words, around.variables), around)
        except OverBudgetError as error:
            return Run(None, error=str(error))

    def log(self, process: Process, term_ns: int | None = None) -> LogBehavior | Steps:
        """Return what it logs."""
        if not is_understood(self.words):
            return super().log(process)
        around = surroundings(process)._replace(term_ns=term_ns)
        return ShellProcess(expanded(self.words, around.variables), around)

    def exec(self, process: Process, words: tuple[str, ...]) -> Run | None:
        """Return what the command of a probe or a hook does."""
        return run_words(words, surroundings(process))

    def session(
        self, process: Process, words: tuple[str, ...], *, stdin: bool, tty: bool
    ) -> Session | None:
        """Return a command of a user."""

        def around(given: bytes | None, *, is_trial: bool) -> Surroundings:  # noqa: ARG001
            return whole_surroundings(process, given)

        return sessions.Session(words, around, process.start_ns, stdin=stdin, tty=tty)

    def attached(self, process: Process, *, tty: bool) -> Session | None:
        """Return the container's own process where it reads its stdin."""
        words = self.words or ("sh",)
        around = whole_surroundings(process, None)
        if not is_shell(words) and not sessions.Session.reads_input(words, around):
            return None
        return self.session(process, words, stdin=True, tty=tty)

    def probe(self, pod: Pod, spec: ContainerSpec, probe: ProbeSpec) -> ProbeBehavior | None:  # noqa: ARG002
        """Return what a probe finds over the life of a container."""
        if probe.handler == "exec":
            return behavior_of_script(probe.command, self.words)
        return behavior_of_server(spec, probe)

    def http(self, process: Process, port: int, path: str) -> HttpReply | None:  # noqa: ARG002
        """Return that a page is not there whose file somebody removed."""
        files = surroundings(process).files
        assert isinstance(files, ContainerFiles), process.spec.name
        pages = [f"{root}/{path.lstrip('/')}" for root in ROOTS]
        is_gone = any(map(files.is_removed, pages)) and not any(map(files.is_written, pages))
        return HttpReply(404) if is_gone else None
