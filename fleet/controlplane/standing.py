"""A control plane that stands on its own: `fleet controlplane up`, `down` and `status`.

`up` starts a supervisor (supervisor.py) that outlives the command; the components die with it, also
by SIGKILL. The supervisor holds the directory's lock as long as it lives and writes there, once all
is ready, what `attach` reads. A pointer in the user's state directory names the directory that was
brought up last, so that `fleet spawn` finds one that was started with `--dir`.
"""

import asyncio
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from fleet.controlplane.bootstrap import Probe
from fleet.controlplane.build import provide_binaries
from fleet.controlplane.directory import Layout, Pair, claim_directory, is_held, is_own
from fleet.controlplane.flags import check_extra_flags, fixed_ports
from fleet.controlplane.kubeconfig import check_kubeconfig_out, write_kubeconfig_out
from fleet.controlplane.options import (
    ControlPlaneInfo,
    ControlPlaneOptions,
    Progress,
    no_progress,
)
from fleet.controlplane.process import boot_id, signal_known, start_ticks
from fleet.errors import SetupError, UsageError
from fleet.profile.secret_variables import without_secrets

DOWN_TIMEOUT_S = 20.0  # meanwhile its supervisor ends the components, etcd with GRACE_S
KILL_TIMEOUT_S = 5.0
POLL_S = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Status:
    """What a look at a standing control plane shows."""

    info: ControlPlaneInfo
    is_ready: bool
    """Whether the API server says so now."""
    components: Mapping[str, bool]
    """Which components run."""


async def up(
    options: ControlPlaneOptions | None = None, *, progress: Progress = no_progress
) -> ControlPlaneInfo:
    """Bring a control plane up that outlives this process; return the running one if there is one.

    Without `options.directory` it lives in the user's state directory, and `down` removes all of
    it. Raises UsageError and SetupError as `ControlPlane.start` does.
    """
    options = options or ControlPlaneOptions()
    directory = (options.directory or default_directory()).expanduser().absolute()
    running = attach(directory)
    if running is not None:
        progress(f"a control plane is running in {directory} already")
        _write_pointer(directory)
        if options.kubeconfig_out is not None:
            write_kubeconfig_out(options.kubeconfig_out, running.kubeconfig.read_bytes())
        return running
    check_extra_flags(options.extra_flags)
    fixed_ports(options.extra_flags)
    if options.kubeconfig_out is not None:
        check_kubeconfig_out(options.kubeconfig_out)
    await provide_binaries(options.binaries, progress)  # in the foreground: it may take minutes
    absolute = dataclasses.replace(
        options,
        directory=directory,
        keep=options.directory is not None if options.keep is None else options.keep,
        binaries=_absolute(options.binaries),
        kubeconfig_out=_absolute(options.kubeconfig_out),
        audit_log=_absolute(options.audit_log),
    )
    info = await _start_supervisor(absolute, progress)
    _write_pointer(directory)
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
        signal_known(info.owner_pid, info.starts[info.owner_pid], number)
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
    components = {name: _is_known(info, info.pids.get(name, 0)) for name in info.ports}
    return Status(info, is_ready, components)


def attach(directory: Path | None = None) -> ControlPlaneInfo | None:
    """Find the standing control plane: in `directory`, or the one that was brought up last.

    What its file says counts only in a directory of this user's, of this boot, and as long as the
    process that wrote it runs: the lock may be held by one that has just begun.
    """
    layout = Layout(_directory(directory))
    if not is_own(layout.root):
        return None
    try:
        info = ControlPlaneInfo.from_json(layout.state.read_text())
    except (OSError, ValueError, TypeError, KeyError):
        return None
    is_there = info.boot_id == boot_id() and _is_known(info, info.owner_pid)
    return info if is_there and is_held(layout) else None


def default_directory() -> Path:
    """Name the directory of a control plane that got none."""
    return state_home() / "controlplane"


async def _start_supervisor(options: ControlPlaneOptions, progress: Progress) -> ControlPlaneInfo:
    """Start the supervisor, show what it tells, and let it go once it is ready.

    It writes lines of JSON: its `pid`, `progress`, and at last `ready` or `error`. Its end of the
    pipe is not waited for: uvloop keeps a copy of it there. The process started here is its
    parent, which ends at once.
    """
    assert options.directory is not None
    layout = Layout(options.directory)
    try:
        claim_directory(options.directory)
        layout.logs.mkdir(exist_ok=True)
        log = layout.supervisor_log.open("ab")
    except OSError as error:
        raise SetupError(f"{error.filename}: {error.strerror}") from error
    ours, theirs = os.pipe()
    words = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(words), os.fdopen(ours, "rb", 0)
    )
    try:
        with log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "fleet.controlplane.supervisor", options.to_json()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=theirs,
                stderr=log,
                env=without_secrets(os.environ),
                start_new_session=True,  # the terminal's Ctrl-C and hang-up are not for it
            )
    except BaseException:
        transport.close()
        raise
    finally:
        os.close(theirs)
    try:
        return await _outcome(process, words, layout, progress)
    finally:
        transport.close()


async def _outcome(
    process: asyncio.subprocess.Process,
    words: asyncio.StreamReader,
    layout: Layout,
    progress: Progress,
) -> ControlPlaneInfo:
    """Show what the supervisor tells, up to its last word."""
    pid, ticks = 0, 0
    outcome: ControlPlaneInfo | Exception = SetupError(
        f"the supervisor ended without a word; its log is {layout.supervisor_log}"
    )
    try:
        async for line in words:
            message = json.loads(line)
            if "pid" in message:
                pid, ticks = message["pid"], start_ticks(message["pid"]) or 0
            elif "progress" in message:
                progress(message["progress"])
            elif "ready" in message:
                outcome = ControlPlaneInfo.from_json(message["ready"])
                break
            elif "error" in message:
                kind = UsageError if message["is_usage"] else SetupError
                outcome = kind(message["error"])
                break
        await process.wait()
    except asyncio.CancelledError:
        if pid:
            signal_known(pid, ticks, signal.SIGTERM)
        await words.read()  # ends with the supervisor
        await process.wait()
        raise
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _directory(directory: Path | None) -> Path:
    if directory is not None:
        return directory.expanduser().absolute()
    try:
        return Path(_pointer().read_text().strip() or default_directory())
    except OSError:
        return default_directory()


def _write_pointer(directory: Path) -> None:
    _pointer().parent.mkdir(parents=True, exist_ok=True)
    _pointer().write_text(f"{directory}\n")


def _pointer() -> Path:
    return state_home() / "controlplane.path"


def state_home() -> Path:
    """Name fleet's place among the user's state."""
    base = os.environ.get("XDG_STATE_HOME")
    home = Path(base) if base and Path(base).is_absolute() else Path.home() / ".local" / "state"
    return home / "fleet"


def _absolute(path: Path | None) -> Path | None:
    return path.expanduser().absolute() if path is not None else None


def _is_known(info: ControlPlaneInfo, pid: int) -> bool:
    """Whether a process that the file names runs, and is still the same one."""
    return pid in info.starts and start_ticks(pid) == info.starts[pid]
