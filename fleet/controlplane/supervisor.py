"""The process that runs a standing control plane: `python -m fleet.controlplane.supervisor`.

It is nobody's child, tells its starter on stdout how far it is, in lines of JSON, then lets go of
the pipe and waits for SIGTERM. Its log is stderr.
"""

import asyncio
import json
import logging
import os
import signal
import sys

import uvloop

from fleet.controlplane.controlplane import ControlPlane
from fleet.controlplane.directory import Layout, write_private
from fleet.controlplane.options import ControlPlaneOptions
from fleet.errors import FleetError, UsageError


async def supervise(options: ControlPlaneOptions) -> int:
    """Run a control plane until SIGTERM; return the exit code."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    main_task = asyncio.current_task()
    assert main_task is not None
    assert options.directory is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, main_task.cancel)
    control_plane = ControlPlane(options, progress=lambda line: _tell(progress=line))
    try:
        info = await control_plane.start()
    except asyncio.CancelledError:
        return 0
    except FleetError as error:
        _tell(error=str(error), is_usage=isinstance(error, UsageError))
        return error.exit_code
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    state = Layout(options.directory).state
    write_private(state, info.to_json().encode())
    _tell(ready=info.to_json())
    _let_go_of_starter()
    await ended.wait()
    state.unlink(missing_ok=True)
    await control_plane.stop()
    return 0


def _tell(**message: object) -> None:
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except OSError:  # the starter is gone; what was asked of us still stands
        _let_go_of_starter()


def _let_go_of_starter() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


if __name__ == "__main__":
    if os.fork() != 0:  # there is no thread yet
        os._exit(0)  # the starter needs not wait for us, and we never are its zombie
    _tell(pid=os.getpid())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    sys.exit(uvloop.run(supervise(ControlPlaneOptions.from_json(sys.argv[1]))))
