"""Start a program that the kernel kills when its parent dies, also when the parent got SIGKILL.

Run as a script: `python -I -S launcher.py PARENT_PID PROGRAM [ARGUMENT...]`. It asks for a signal
at the parent's death and then becomes the program: the request survives execve, costs no process
and works for programs that are not ours. A preexec_fn could do the same, but runs Python between
fork and exec, which may deadlock in a parent with threads.

The kernel means the parent's *thread*: start programs from a thread that lives as long as they may.
Source: Linux, kernel/exit.c, reparent_leader and forget_original_parent.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # Linux, include/uapi/linux/prctl.h; Python has no name for it


def main(arguments: list[str]) -> None:
    """Bind this process's life to the parent's, then become the program."""
    parent, program = int(arguments[0]), arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "prctl"):  # macOS: the program outlives a parent that is killed
        sys.stderr.write("fleet: this system cannot end the program if fleet is killed\n")
    elif libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # it died before the request: no signal would come any more
        sys.exit("the parent is gone")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would hand that on
    try:
        os.execv(program[0], program)  # noqa: S606  # no shell is wanted
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
