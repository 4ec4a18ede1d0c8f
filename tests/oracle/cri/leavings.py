"""What a container leaves when it ends: its last words, and its log.

Source: containerd's log format (stamp, stream, tag, line); the kubelet reads both files.
"""

import contextlib
from datetime import UTC, datetime
from pathlib import Path

from fleet.clock import NS_PER_S
from fleet.runtime.program import Process
from fleet.runtime.programs import program_of
from oracle.cri.records import CriContainer

MESSAGE_PATH_ANNOTATION = "io.kubernetes.container.terminationMessagePath"


def begin_log(found: CriContainer) -> None:
    """Make the log of a container that starts: a kubelet looks after its size."""
    if found.log_path:
        with contextlib.suppress(OSError):  # the pod's directory may be gone
            Path(found.log_path).parent.mkdir(parents=True, exist_ok=True)
            Path(found.log_path).touch()


def write_leavings(found: CriContainer) -> None:
    """Write what an exited container wrote while it ran."""
    container = found.container
    assert container is not None, found.id
    run = program_of(found.pod, found.spec).run(Process(found.pod, found.spec))
    ran_ns = max(found.finished_wall_ns - found.started_wall_ns, 0)
    message_path = found.config.annotations.get(MESSAGE_PATH_ANNOTATION, "")
    words = found.declared.life.termination_message or run.text(message_path, ran_ns)
    place = next(
        (each.host_path for each in found.config.mounts if each.container_path == message_path), ""
    )
    with contextlib.suppress(OSError):  # the pod's directory may be gone
        if words and place:
            Path(place).write_text(words)
        if found.log_path:
            output = run.text("", ran_ns).splitlines()
            log = Path(found.log_path)
            stamp = datetime.fromtimestamp(found.finished_wall_ns / NS_PER_S, UTC)
            head = f"{stamp:%Y-%m-%dT%H:%M:%S.%f}000Z stdout F "
            log.write_text("".join(f"{head}{line}\n" for line in output))
