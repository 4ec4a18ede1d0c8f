"""The command behind `--`: run once, ended when the run shall stop."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from fleet.cluster.ownership import RUN_LABEL
from fleet.errors import SetupError
from fleet.profile.secret_variables import without_secrets
from fleet.run.target import Target

TERMINATE_S = 10.0


NODE_SELECTOR = "FLEET_NODE_SELECTOR"


def environment_of(target: Target, run_directory: Path, run_id: str) -> dict[str, str]:
    """Return what the command finds: ours, the run's directory and cluster, and kubectl, last.

    With a `run_id` also which nodes are the run's.
    """
    environment = {**without_secrets(os.environ), "FLEET_RUN_DIR": str(run_directory.absolute())}
    if run_id:
        environment[NODE_SELECTOR] = f"{RUN_LABEL}={run_id}"
    if target.kubeconfig is not None:
        environment["KUBECONFIG"] = str(target.kubeconfig)
    if target.local is not None and target.local.kubectl:
        tools = str(Path(target.local.kubectl[0]).parent)
        environment["PATH"] = f"{environment.get('PATH', os.defpath)}{os.pathsep}{tools}"
    return environment


def check_command(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise SetupError unless there is such a program, so that no node is made for nothing."""
    if command and shutil.which(command[0], path=environment.get("PATH", os.defpath)) is None:
        what = "is not an executable file" if os.sep in command[0] else "is not on the PATH"
        raise SetupError(f"cannot run {command[0]!r}: it {what}")


async def run_command(
    command: Sequence[str], environment: Mapping[str, str], stop: asyncio.Event
) -> int:
    """Run the command; return its exit code, 128 + N if a signal N ended it.

    Raises SetupError if it cannot be started.
    """
    try:
        process = await asyncio.create_subprocess_exec(*command, env=environment)
    except OSError as error:
        raise SetupError(f"cannot run {command[0]!r}: {error.strerror}") from error
    finished = asyncio.ensure_future(process.wait())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait((finished, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not finished.done():
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(finished), TERMINATE_S)
        if not finished.done():
            process.kill()
    code = await finished
    return code if code >= 0 else 128 - code
