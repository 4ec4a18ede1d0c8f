"""A real file system that is full, or a process that may write no more: what is allowed here."""

import contextlib
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

SIZE_KIB = 64
FILLER = "filler"


class FullDisk:
    """A folder whose room the test takes and gives back."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        raise NotImplementedError

    def empty(self) -> None:
        raise NotImplementedError


class SmallFileSystem(FullDisk):
    """A tmpfs of a few pages: every write fails when it is full, of every process."""

    def fill(self) -> None:
        with (
            contextlib.suppress(OSError),
            (self.path / FILLER).open("ab", buffering=0) as file,
        ):
            while file.write(bytes(512)):
                pass

    def empty(self) -> None:
        (self.path / FILLER).unlink(missing_ok=True)


class FileSizeLimit(FullDisk):
    """No file of this process may be larger than a line; what is open may not grow."""

    def fill(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))

    def empty(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@contextlib.contextmanager
def small_file_system(path: Path, size_kib: int = SIZE_KIB) -> Iterator[SmallFileSystem | None]:
    """Mount a tmpfs; None where that is not allowed."""
    path.mkdir()
    command = ("mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", str(path))
    is_mounted = False
    with contextlib.suppress(OSError):
        is_mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield SmallFileSystem(path) if is_mounted else None
    finally:
        if is_mounted:
            subprocess.run(("umount", "--lazy", str(path)), check=True)


@contextlib.contextmanager
def file_size_limit(path: Path) -> Iterator[FileSizeLimit]:
    path.mkdir()
    disk = FileSizeLimit(path)
    try:
        yield disk
    finally:
        disk.empty()
