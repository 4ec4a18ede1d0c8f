"""fleet without what only Linux has: everything loads, and a run is planned and found."""

import subprocess
import sys

HIDE = """
import os, pathlib, select, socket, sys
for module, names in {
    os: "O_PATH memfd_create pidfd_open sched_getaffinity MFD_CLOEXEC",
    select: "epoll EPOLLIN EPOLLOUT EPOLLONESHOT",
    socket: "SO_BINDTODEVICE TCP_USER_TIMEOUT",
}.items():
    for name in names.split():
        delattr(module, name) if hasattr(module, name) else None
import fleet.controlplane.process as process
process.PROC = pathlib.Path("/no/such")
process.BOOT_ID = process.PROC / "boot_id"
import fleet.run.control_socket as control
"""


def without_linux(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-c", HIDE + code, *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def test_a_run_is_planned() -> None:
    code = "from fleet.cli import main; main()"
    done = without_linux(code, "spawn", "--dry-run", "--nodes=9", "--serve=off")
    assert done.returncode == 0, done.stderr
    assert "fleet-00008" in done.stdout
    from_outside = without_linux(code, "spawn", "--dry-run", "--context=x", "--nodes=9")
    assert from_outside.returncode == 0, from_outside.stderr


def test_a_process_is_known_and_its_socket_is_found() -> None:
    done = without_linux("""
import tempfile, uvloop
from fleet.controlplane.process import start_ticks
assert start_ticks(os.getpid()) == start_ticks(os.getpid()) > 0
assert start_ticks(2**22 + 1) is None
assert control.process_mark(os.getpid())
async def answer(order):
    return {"told": order["do"]}
async def body():
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        async with control.open_socket(directory, answer):
            assert await control.ask(directory, {"do": "list"}) == {"told": "list"}
uvloop.run(body())
""")
    assert done.returncode == 0, done.stderr


def test_a_program_starts_although_nothing_ends_it_with_its_parent() -> None:
    done = without_linux("""
import ctypes
class Library:
    pass
ctypes.CDLL = lambda *_, **__: Library()
from fleet.controlplane import launcher
launcher.main([str(os.getppid()), "/bin/echo", "started"])
""")
    assert (done.returncode, done.stdout) == (0, "started\n")
    assert "cannot end the program if fleet is killed" in done.stderr
