"""The control plane's programs, built once with Go into the user cache.

A build is a directory with one binary and a symlink for each component. It is made next to its
place and renamed into it, under a file lock: two builders wait for each other, and an interrupted
one leaves nothing that a later run could take for a build.
"""

import asyncio
import contextlib
import dataclasses
import fcntl
import os
import re
import shutil
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from fleet import KUBERNETES_VERSION
from fleet.controlplane import binaries
from fleet.controlplane.options import Progress, no_progress
from fleet.controlplane.process import bound_to_us
from fleet.errors import SetupError
from fleet.profile.release import minor_of

GO_PLACES = ("/usr/local/go/bin/go", "/usr/lib/go/bin/go")  # of go.dev, of Debian
LOCK_POLL_S = 0.5
LOG_LINES_SHOWN = 15  # of a build that failed: Go names the cause last
TICK_S = 1.0
LINE_S = 10.0  # between lines: a build of minutes is some dozen of them
PACKAGES = 2_700  # of a control plane: 2,635 in v1.34.4 to 2,739 in v1.37.2
PACKAGE_LINE = re.compile(r"[\w./-]+")
GO_ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
"""As the released binaries are built: static. The user's own flags could change the result."""
DISK_BYTES = 4 << 30  # what Go needs for its module and build caches, measured, and a little more


async def provide_binaries(
    argument: Path | None = None, progress: Progress = no_progress, *, release: str = ""
) -> binaries.Binaries:
    """Find the programs, or build them. Raises SetupError if neither is possible."""
    found = await asyncio.to_thread(binaries.find_binaries, argument, release)
    return found or await build_binaries(progress, release or KUBERNETES_VERSION)


async def build_binaries(
    progress: Progress = no_progress, release: str = KUBERNETES_VERSION
) -> binaries.Binaries:
    """Build the programs of a release into the user cache, unless they are there.

    Raises SetupError without Go, with one that is too old, and when the build fails; then the log
    is kept.
    """
    target = binaries.cache_directory(release)
    target.parent.mkdir(parents=True, exist_ok=True)
    async with held_lock(target, progress):
        if (cached := binaries.cached_binaries(release)) is not None:
            return cached
        go = await find_go()
        await GoBuild(go, target, progress, release).run()
    built = binaries.cached_binaries(release)
    assert built is not None, target
    return dataclasses.replace(built, source=f"built into {target / 'bin'}")


class BuildProgress:
    """Shows one build of `what` in lines: one for each step, and one every `LINE_S`.

    A step is what Go does: it looks for modules, downloads them, compiles, links. Go says nothing
    for half a minute while it links, so time passes by itself: `tick`.
    """

    def __init__(
        self, what: str, note: Progress, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._what = what
        self._note = note
        self._now_s = now_s
        self._began_s = self._line_s = now_s()
        self._doing, self._detail = "", ""
        self._done = self._total = 0

    def begin(self, doing: str, total: int = 0) -> None:
        """Begin a step, of so many packages if that is known."""
        if doing != self._doing:
            self._doing, self._detail, self._done, self._total = doing, "", 0, total
            self._line()

    def advance(self, detail: str = "") -> None:
        """Count one more package or module."""
        self._done += 1
        self._detail = detail
        self.tick()

    def tick(self) -> None:
        """Let time pass; called about once a second."""
        if self._now_s() - self._line_s >= LINE_S:
            self._line()

    def elapsed(self) -> str:
        minutes, seconds = divmod(int(self._now_s() - self._began_s), 60)
        return f"{minutes}m{seconds:02d}s" if minutes else f"{seconds}s"

    def _line(self) -> None:
        self._line_s = self._now_s()
        count = " ".join(filter(None, (str(self._done or ""), self._detail)))
        if self._total:  # what Go has in its cache is missing
            count = f"{self._done} of ~{self._total} packages"
        parts = filter(None, (self._doing, count, self.elapsed()))
        self._note(f"building {self._what}: {', '.join(parts)}")


class GoBuild:
    """One build: resolves the packages, compiles them, moves the result into its place."""

    what = "the control plane"
    module = binaries.MODULE

    def __init__(
        self, go: str, target: Path, progress: Progress, release: str = KUBERNETES_VERSION
    ) -> None:
        self._go = go
        self._release = release
        self._target = target
        self._log = target.with_name(target.name + ".log")
        self._note = progress
        self._shown = BuildProgress(self.what, progress)
        self._last: deque[str] = deque(maxlen=LOG_LINES_SHOWN)

    async def run(self) -> None:
        """Build, and put the result where it belongs. Raises SetupError."""
        work = self._target.with_name(self._target.name + ".partial")
        shutil.rmtree(work, ignore_errors=True)  # of a builder that was killed: we hold the lock
        shutil.rmtree(self._target, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            free = shutil.disk_usage(work).free
            if free < DISK_BYTES:
                self._note(f"only {free >> 20} MiB of disk are free; the build may need more")
            self._log.write_bytes(b"")
            await self._make(work)
            work.rename(self._target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        self._log.unlink(missing_ok=True)
        self._note(f"built {self.what} in {self._shown.elapsed()}")

    async def _make(self, work: Path) -> None:
        """Fill the directory that becomes the build."""
        await self._build(work / binaries.PROGRAM, ".")
        (work / "bin").mkdir()
        for name in binaries.PROGRAMS:
            (work / "bin" / name).symlink_to(Path("..") / binaries.PROGRAM)

    async def _build(self, output: Path, package: str, *flags: str) -> None:
        """Build one program. Go does not list packages that its cache has: hence the `~`."""
        program = binaries.PROGRAM if package == "." else package  # as Go lists it, last
        shown = self._shown
        shown.begin("looking for its Go modules")

        def on_line(line: str) -> None:
            if line.startswith("go: downloading "):
                shown.begin("downloading modules")
                shown.advance(line.split()[2])
            elif line == program:
                shown.begin("linking")
            elif PACKAGE_LINE.fullmatch(line):
                shown.begin("compiling", PACKAGES)
                shown.advance(line)

        modfile = (f"-modfile={self._release}.mod",) if self._release else ()
        flags = flags or ("-ldflags", " ".join(binaries.linker_flags(self._release)))
        options = ("-v", "-trimpath", "-buildvcs=false", *flags, "-o", str(output))
        await self._go_command(on_line, "build", *modfile, *options, package)

    async def _go_command(self, on_line: Callable[[str], None], *arguments: str) -> None:
        """Run Go in the module and hand on its lines. Raises SetupError if it fails."""
        process = await asyncio.create_subprocess_exec(
            *bound_to_us((self._go, *arguments)),
            cwd=self.module,
            env={**os.environ, **GO_ENVIRONMENT},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        ticking = asyncio.create_task(self._tick())
        try:
            with self._log.open("ab", buffering=0) as log:
                async for raw in process.stdout:
                    log.write(raw)
                    line = raw.decode(errors="replace").rstrip()
                    self._last.append(line)
                    on_line(line)
            returncode = await process.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # Go's compilers too
            await process.wait()
            raise
        finally:
            ticking.cancel()
        if returncode != 0:
            what = f"`go {arguments[0]}` of {self.what} failed; the log is {self._log}:"
            raise SetupError("\n  ".join((what, *self._last)))

    async def _tick(self) -> None:
        """Let time pass while Go says nothing."""
        while True:
            await asyncio.sleep(TICK_S)
            self._shown.tick()


async def find_go() -> str:
    """Find a Go that can build the releases. Raises SetupError that names what else to do."""
    places = (shutil.which("go"), *GO_PLACES)
    go = next((place for place in places if place and os.access(place, os.X_OK)), None)
    wanted = _wanted_go()
    if go is None:
        raise SetupError(_no_programs(f"and Go {wanted} or newer to build them is missing too"))
    # In the module, so that a Go that can fetch the toolchain it lacks does so.
    process = await asyncio.create_subprocess_exec(
        *bound_to_us((go, "env", "GOVERSION")),
        cwd=binaries.MODULE,
        env={**os.environ, "GOWORK": "off"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, problem = await process.communicate()
    version = re.match(r"go(\d+)\.(\d+)", output.decode())
    found = tuple(int(part) for part in version.groups()) if version else ()
    if process.returncode != 0 or found < tuple(int(part) for part in wanted.split(".")):
        answer = (problem or output).decode(errors="replace").strip()
        raise SetupError(
            _no_programs(f"and {go} cannot build them ({answer}): Go {wanted} is needed")
        )
    return go


def _wanted_go() -> str:
    match = re.search(r"^go (\d+\.\d+)", (binaries.MODULE / "go.mod").read_text(), re.MULTILINE)
    assert match is not None, binaries.MODULE
    return match.group(1)


def _no_programs(why: str) -> str:
    minor = minor_of(KUBERNETES_VERSION)
    return f"""no control plane: its programs are nowhere to be found, {why}. Do one of these:
  install Go {_wanted_go()} or newer (https://go.dev/dl): fleet then builds them, in some minutes;
  name a directory that has them: --controlplane-bin DIR or ${binaries.BIN_VARIABLE};
  install the wheel of {binaries.PACKAGE} that a release has (`make controlplane-wheel`);
  `setup-envtest use {minor}`, ${binaries.KUBEBUILDER_VARIABLE}: no scheduler;
  use a cluster that is there: --kubeconfig FILE or --context NAME."""


@contextlib.asynccontextmanager
async def held_lock(target: Path, progress: Progress) -> AsyncIterator[None]:
    """Hold the file lock of a build; it goes with the process, however that ends."""
    with target.with_name(target.name + ".lock").open("wb") as file:
        waits = False
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if not waits:
                progress("another process is building the control plane: waiting for it")
                waits = True
            await asyncio.sleep(LOCK_POLL_S)
        yield
