"""A control plane that stands on its own: `fleet controlplane up`, `down` and `status`.

`up` starts a supervisor that outlives the command; the components die with it, also by SIGKILL. The
supervisor holds the directory's lock as long as it lives and writes there, once all is ready, what
`attach` reads. The process that takes the lock removes that file first, so that it is its own.
Until all is ready the supervisor reports to `up` on its stdout in lines of JSON: its `pid`,
`progress`, and at last `ready` or `error`. A pointer in the user's state directory names the
directory that was brought up last, so that `fleet spawn` finds one that was started with `--dir`.
"""

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from fleet.background import run_loop
from fleet.controlplane.build import provide_binaries
from fleet.controlplane.controlplane import ControlPlane, Probe, check_options
from fleet.controlplane.directory import (
    Layout,
    Pair,
    claim_directory,
    is_held,
    is_own,
    state_home,
    write_private,
)
from fleet.controlplane.kubeconfig import write_kubeconfig_out
from fleet.controlplane.options import (
    ControlPlaneInfo,
    ControlPlaneOptions,
    Progress,
    from_json,
    no_progress,
    to_json,
)
from fleet.controlplane.process import start_ticks
from fleet.errors import FleetError, SetupError, UsageError
from fleet.profile.release import minor_of
from fleet.profile.secret_variables import without_secrets

DOWN_TIMEOUT_S = 20.0  # in which its supervisor ends the components, etcd with GRACE_S
KILL_TIMEOUT_S = 5.0
POLL_S = 0.05
SUPERVISOR = "from fleet.controlplane.standing import supervisor; supervisor()"


@dataclasses.dataclass(frozen=True, slots=True)
class Status:
    """What a look at a standing control plane shows."""

    info: ControlPlaneInfo
    is_ready: bool  # whether the API server says so now
    components: Mapping[str, bool]  # which components run


async def up(
    options: ControlPlaneOptions | None = None, *, progress: Progress = no_progress
) -> ControlPlaneInfo:
    """Bring a control plane up that outlives this process; return the running one if there is one.

    Without `options.directory` it lives in the user's state directory, and `down` removes all of
    it. Raises UsageError and SetupError as `ControlPlane.start` does.
    """
    options = options or ControlPlaneOptions()
    directory = (options.directory or default_directory()).expanduser().absolute()
    info = attach(directory)
    if info is not None:
        if options.release and minor_of(options.release) != minor_of(info.server_version):
            raise UsageError(
                f"--kubernetes-version {minor_of(options.release)}: the control plane in "
                f"{directory} runs already, with {info.server_version}; end it with "
                "`fleet controlplane down`, or name another --dir"
            )
        progress(f"a control plane is running in {directory} already")
        if options.kubeconfig_out is not None:
            write_kubeconfig_out(options.kubeconfig_out, info.kubeconfig.read_bytes())
    else:
        check_options(options)
        # In the foreground: it may take minutes.
        await provide_binaries(options.binaries, progress, release=options.release)
        info = await _start_supervisor(_absolute(options, directory), progress)
    _pointer().parent.mkdir(parents=True, exist_ok=True)
    _pointer().write_text(f"{directory}\n")
    return info


async def down(directory: Path | None = None) -> bool:
    """Take a standing control plane down; False if none runs.

    Raises SetupError if it does not end.
    """
    layout = Layout(_directory(directory))
    info = attach(layout.root)
    if info is None:
        return False
    for number, timeout_s in ((signal.SIGTERM, DOWN_TIMEOUT_S), (signal.SIGKILL, KILL_TIMEOUT_S)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(info.owner_pid, number)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not is_held(layout):
                layout.state.unlink(missing_ok=True)
                return True
            await asyncio.sleep(POLL_S)
    raise SetupError(f"the control plane in {layout.root}, process {info.owner_pid}, does not end")


async def status(directory: Path | None = None) -> Status | None:
    """Look at a standing control plane; None if none runs."""
    info = attach(directory)
    if info is None:
        return None
    async with Probe(info.ca_file, Pair(info.admin_certificate, info.admin_key)) as probe:
        is_ready = await probe.is_ok(f"{info.url}/readyz")
    components = {name: start_ticks(info.pids.get(name, 0)) is not None for name in info.ports}
    return Status(info, is_ready, components)


def attach(directory: Path | None = None) -> ControlPlaneInfo | None:
    """Find the standing control plane: in `directory`, or the one that was brought up last.

    What its file says counts only in a directory of this user's, and while its writer holds that.
    """
    layout = Layout(_directory(directory))
    if not is_own(layout.root):
        return None
    try:
        info = from_json(ControlPlaneInfo, layout.state.read_text())
    except (OSError, ValueError):
        return None
    return info if is_held(layout) else None


# ---- places ----


def default_directory() -> Path:
    """Name the directory of a control plane that got none."""
    return state_home() / "controlplane"


def _pointer() -> Path:
    return state_home() / "controlplane.path"


def _directory(directory: Path | None) -> Path:
    if directory is not None:
        return directory.expanduser().absolute()
    try:
        return Path(_pointer().read_text().strip() or default_directory())
    except OSError:
        return default_directory()


def _absolute(options: ControlPlaneOptions, directory: Path) -> ControlPlaneOptions:
    """Return options that mean the same in any working directory."""
    keep = options.directory is not None if options.keep is None else options.keep
    paths = {
        name: path.expanduser().absolute()
        for name in ("binaries", "kubeconfig_out", "audit_log")
        if (path := getattr(options, name)) is not None
    }
    return dataclasses.replace(options, directory=directory, keep=keep, **paths)


# ---- the supervisor ----


async def _start_supervisor(options: ControlPlaneOptions, progress: Progress) -> ControlPlaneInfo:
    """Start the supervisor, show what it reports, and let it go once it is ready.

    The process started here is its parent, which ends at once.
    """
    assert options.directory is not None
    layout = Layout(options.directory)
    try:
        claim_directory(options.directory)
        layout.logs.mkdir(exist_ok=True)
        log = layout.supervisor_log.open("ab")
    except OSError as error:
        raise SetupError(f"{error.filename}: {error.strerror}") from error
    with (
        log,
        subprocess.Popen(  # noqa: ASYNC220, S603 - it only forks, this very program
            (sys.executable, "-P", "-c", SUPERVISOR, to_json(options)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=without_secrets(os.environ),
            start_new_session=True,  # the terminal's Ctrl-C and hang-up are not for it
        ) as process,
    ):
        assert process.stdout is not None
        return await _outcome(process.stdout, layout, progress)


async def _outcome(lines: IO[bytes], layout: Layout, progress: Progress) -> ControlPlaneInfo:
    """Show what the supervisor reports, up to its last word. If cancelled, end it."""
    pid = 0
    try:
        while line := await asyncio.to_thread(lines.readline):
            message = json.loads(line)
            if "pid" in message:
                pid = message["pid"]
            elif "progress" in message:
                progress(message["progress"])
            elif "ready" in message:
                return from_json(ControlPlaneInfo, message["ready"])
            else:
                raise (UsageError if message["is_usage"] else SetupError)(message["error"])
    except asyncio.CancelledError:
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        await asyncio.to_thread(lines.read)  # ends with the supervisor
        raise
    log = layout.supervisor_log
    raise SetupError(f"the supervisor ended without a word; its log is {log}")


def supervisor() -> None:
    """Run a standing control plane until SIGTERM: the program of its own process.

    It is nobody's child, reports to its starter on stdout, then lets go of the pipe. Its log is
    stderr.
    """
    if os.fork() != 0:  # there is no thread yet
        os._exit(0)  # the starter needs not wait for us, and we never are its zombie
    _report(pid=os.getpid())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    sys.exit(run_loop(_supervise(from_json(ControlPlaneOptions, sys.argv[1]))))


async def _supervise(options: ControlPlaneOptions) -> int:
    """Run a control plane until SIGTERM; return the exit code."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    main_task = asyncio.current_task()
    assert main_task is not None
    assert options.directory is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, main_task.cancel)
    control_plane = ControlPlane(options, progress=lambda line: _report(progress=line))
    try:
        info = await control_plane.start()
    except asyncio.CancelledError:
        return 0
    except FleetError as error:
        _report(error=str(error), is_usage=isinstance(error, UsageError))
        return error.exit_code
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    state = Layout(options.directory).state
    write_private(state, to_json(info).encode())
    _report(ready=to_json(info))
    _let_go_of_starter()
    await ended.wait()
    state.unlink(missing_ok=True)
    await control_plane.stop()
    return 0


def _report(**message: object) -> None:
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except OSError:  # the starter is gone; what was asked of us still stands
        _let_go_of_starter()


def _let_go_of_starter() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
