"""Programs that work on files: touch, mkdir, rm, ls, cp, mv, tar, chmod.

Each takes the shell and its arguments, and returns its exit code.
Source: POSIX.1-2024, Shell & Utilities, Utilities; the output is that of busybox.
Differs: a file has no owner, mode or time of its own: `ls -l` shows those of a new file of root.
"""

import io
import posixpath
import tarfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fleet.clock import NS_PER_S

from .budget import COPIED_SHIFT
from .surroundings import DIRECTORY
from .syntax import UnknownScriptError

if TYPE_CHECKING:
    from .builtins import Program
    from .shell import Shell

DEPTH_MAX = 16
_MEMBER_UNITS = 1000
"""What the header of a file in an archive costs, about 25 us."""
_LS_OPTIONS = frozenset("1aAlRdh")
_MISSING = "No such file or directory"
READ_ONLY = "Read-only file system"
NOT_WRITTEN = {
    "mkdir": "can't create directory '%s'",
    "rm": "can't remove '%s'",
    "cp": "can't create '%s'",
    "mv": "can't create '%s'",
    "tar": "can't open '%s'",
}
"""What programs say of a file that they cannot write, before why."""


def _touch(shell: "Shell", args: list[str]) -> int:
    for path in args:
        if path.startswith("-"):
            raise UnknownScriptError("touch")
        if shell.read(path) is None:
            shell.write(path, "")
    return 0


def _mkdir(shell: "Shell", args: list[str]) -> int:
    paths = [arg for arg in args if arg != "-p"]
    found = [path for path in paths if shell.read(path) is not None]
    for path in paths:
        if path not in found:
            shell.write(path, DIRECTORY)
    failed = found if "-p" not in args else []
    for path in failed:
        shell.complain(f"mkdir: can't create directory '{path}': File exists\n")
    return int(bool(failed))


def _rm(shell: "Shell", args: list[str]) -> int:
    options = "".join(arg for arg in args if arg.startswith("-"))
    paths = [arg for arg in args if not arg.startswith("-")]
    missing = [path for path in paths if shell.read(path) is None]
    for path in paths:
        shell.write(path, None)
    if "f" in options:
        return 0
    for path in missing:
        shell.complain(f"rm: can't remove '{path}': {_MISSING}\n")
    return int(bool(missing))


def _ls(shell: "Shell", args: list[str]) -> int:
    options = {letter for arg in args if arg.startswith("-") for letter in arg[1:]}
    paths = [arg for arg in args if not arg.startswith("-")] or ["."]
    if options - _LS_OPTIONS or (paths == ["."] and not shell.is_whole):
        raise UnknownScriptError("ls")
    code = 0
    for path in paths:
        text = shell.read(path)
        if text is None:
            shell.complain(f"ls: {path}: {_MISSING}\n")
            code = 1
        elif text != DIRECTORY or "d" in options:
            shell.print(_entry(shell, path, path, is_long="l" in options))
        else:
            if len(paths) > 1:
                shell.print(f"{path}:\n")
            _list(shell, path, options)
    return code


def _list(shell: "Shell", path: str, options: set[str]) -> None:
    names = [n for n in shell.names(path) if options & {"a", "A"} or not n.startswith(".")]
    is_long = "l" in options
    if is_long:
        shell.print("total 0\n")
    for name in [*([".", ".."] if "a" in options else []), *names]:
        shell.print(_entry(shell, posixpath.join(path, name), name, is_long=is_long))
    if "R" in options:
        for name in names:
            inner = posixpath.join(path, name)
            if inner.count("/") < DEPTH_MAX and shell.read(inner) == DIRECTORY:
                shell.print(f"\n{inner}:\n")
                _list(shell, inner, options)


def _entry(shell: "Shell", path: str, name: str, *, is_long: bool) -> str:
    if not is_long:
        return f"{name}\n"
    text = shell.read(path)
    size = 4096 if text == DIRECTORY else len(_bytes(text or ""))
    mode = "drwxr-xr-x    2" if text == DIRECTORY else "-rw-r--r--    1"
    return f"{mode} root     root     {size:>9} Jan  1 00:00 {name}\n"


def _cp(shell: "Shell", args: list[str]) -> int:
    return _copy(shell, "cp", args, removes=False)


def _mv(shell: "Shell", args: list[str]) -> int:
    return _copy(shell, "mv", args, removes=True)


def _copy(shell: "Shell", name: str, args: list[str], *, removes: bool) -> int:
    paths = [arg for arg in args if not arg.startswith("-")]
    if len(paths) != 2:
        raise UnknownScriptError(name)
    source, target = paths
    renamed = "renamed " if removes else ""
    if shell.read(source) is None:
        shell.complain(f"{name}: can't stat '{source}': {_MISSING}\n")
        return 1
    if shell.read(target) == DIRECTORY:
        target = posixpath.join(target, posixpath.basename(source))
    for path, text in list(_walk(shell, source)):
        shell.write(target + path[len(source) :], text)
    if removes:
        shell.write(source, None)
    if any("v" in arg for arg in args if arg.startswith("-")):
        shell.print(f"{renamed}'{source}' -> '{target}'\n")
    return 0


def _walk(shell: "Shell", path: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield a file, or a directory and all that is in it, with their texts."""
    text = shell.read(path)
    if text is None:
        return
    yield path, text
    if text == DIRECTORY and depth < DEPTH_MAX:
        for name in shell.names(path):
            yield from _walk(shell, posixpath.join(path, name), depth + 1)


def _tar(shell: "Shell", args: list[str]) -> int:
    """Pack to stdout, or unpack from stdin, as `kubectl cp` asks for."""
    options, directory, paths = "", "", []
    rest = iter(args)
    for at, arg in enumerate(rest):
        if arg == "-C":
            directory = next(rest, "")
        elif arg.startswith("-") and len(arg) > 1:
            options += "" if arg.startswith("--") else arg[1:]
        elif at == 0:
            options += arg
        elif arg != "-" or "f" not in options:
            paths.append(arg)
    if set(options) - set("cxmfvpo") or ("c" in options) == ("x" in options):
        raise UnknownScriptError("tar")
    if "c" in options:
        return _pack(shell, directory, paths)
    return _unpack(shell, directory)


def _pack(shell: "Shell", directory: str, paths: list[str]) -> int:
    made = io.BytesIO()
    code, is_told = 0, False
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in paths:
            inside = posixpath.join(directory, path) if directory else path
            if shell.read(inside) is None:
                shell.complain(f"tar: {path}: {_MISSING}\n")
                code = 1
            elif path.startswith("/") and not is_told:
                is_told = True
                shell.complain("tar: removing leading '/' from member names\n")
            for found, text in _walk(shell, inside):
                name = (path + found[len(inside) :]).lstrip("/") or "."
                info = tarfile.TarInfo(name)
                info.mtime = shell.wall_ns // NS_PER_S
                if text == DIRECTORY:
                    info.type, info.mode = tarfile.DIRTYPE, 0o755
                    archive.addfile(info)
                else:
                    data = _bytes(text)
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
    shell.print(made.getvalue().decode("utf-8", "surrogateescape"))
    if code:
        shell.complain("tar: error exit delayed from previous errors\n")
    return code


def _unpack(shell: "Shell", directory: str) -> int:
    given = _bytes(shell.piped or "")
    root = directory or shell.cwd
    if shell.read(root) != DIRECTORY:
        shell.complain(f"tar: can't change directory to '{root}': {_MISSING}\n")
        return 1
    try:
        with tarfile.open(fileobj=io.BytesIO(given), mode="r:") as archive:
            for member in archive:
                shell.budget.spend(_MEMBER_UNITS + (max(member.size, 0) >> COPIED_SHIFT))
                if member.issparse():
                    raise tarfile.ReadError("a sparse file")  # busybox has no such type
                target = posixpath.normpath(posixpath.join(root, member.name.lstrip("/")))
                if not f"{target}/".startswith(f"{root.rstrip('/')}/"):
                    shell.complain(f"tar: name with '..' skipped: '{member.name}'\n")
                elif member.isdir():
                    if shell.read(target) is None:
                        shell.write(target, DIRECTORY)
                elif member.isfile() and (inner := archive.extractfile(member)) is not None:
                    shell.write(target, inner.read().decode("utf-8", "surrogateescape"))
    except (tarfile.TarError, EOFError, ValueError, ArithmeticError, LookupError, RecursionError):
        # All but the first are of tarfile itself: of numbers, and of headers that announce headers.
        shell.complain("tar: invalid tar magic\n" if given else "tar: short read\n")
        return 1
    return 0


def _bytes(text: str) -> bytes:
    """Return the bytes of a file. What is no UTF-8 is kept in surrogates."""
    return text.encode("utf-8", "surrogateescape")


def _mode(shell: "Shell", args: list[str]) -> int:
    """Change what no program shows: the mode or the owner of files that are there."""
    if not shell.is_whole:
        raise UnknownScriptError("chmod")
    paths = [arg for arg in args if not arg.startswith("-")][1:]
    missing = [path for path in paths if shell.read(path) is None]
    for path in missing:
        shell.complain(f"chmod: {path}: {_MISSING}\n")
    return int(bool(missing))


FILE_PROGRAMS: Mapping[str, "Program"] = {
    "touch": _touch,
    "mkdir": _mkdir,
    "rm": _rm,
    "ls": _ls,
    "cp": _cp,
    "mv": _mv,
    "tar": _tar,
    "chmod": _mode,
    "chown": _mode,
}
