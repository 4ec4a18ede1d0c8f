"""Programs of agnhost, the image that tests of Kubernetes look with: mounttest, pause, ...

Its other programs serve, or wait: they run for ever.
Source: test/images/agnhost/mounttest/mt.go, mt_utils.go; entrypoint-tester/entrypoint.go.
Differs: a file that a shell wrote has the mode 0644 and its volume's owner.
"""

import re
import stat
from collections.abc import Iterator, Sequence

from fleet.clock import NS_PER_S
from fleet.k8s.times import rfc3339_micro

from .shell import Shell
from .surroundings import DIRECTORY, Look, ReadOnlyFileSystemError
from .syntax import EndlessScriptError, UnknownScriptError

_METHODS = ("GET", "POST", "PUT")
_NAMESPACES = ("kube-system", "default", "ns")
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_DURATION = re.compile(r"([0-9]{1,6}(?:\.[0-9]+)?)(ms|s|m|h)")
_DURATIONS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
SETUID_PROGRAM = ("nnp",)
"""Of root, and run as such, in the image nonewprivs. Source: test/images/nonewprivs/Dockerfile."""
_RESOLV = "/etc/resolv.conf"
_NAMES = frozenset(("agnhost", "agnhost-2"))
_FILES = {"etc-hosts": "/etc/hosts", "dns-suffix": _RESOLV, "dns-server-list": _RESOLV}
_PROGRAMS = frozenset(
    ("entrypoint-tester", "logs-generator", "mounttest", "nonewprivs", "pause", *_FILES)
)
_CREATED = {
    "new_file_0644": 0o644,
    "new_file_0666": 0o666,
    "new_file_0660": 0o660,
    "new_file_0777": 0o777,
}
_CONTENT = "mount-tester new file\n"
_PERIOD_NS = 2 * NS_PER_S
_RETRY_S = 180
_DIGITS_MAX = 9
_TMPFS, _EXT4 = "tmpfs", "61267"
_NO_FILE = "no such file or directory"


def is_agnhost(words: Sequence[str]) -> bool:
    """Return whether a command line is a program of agnhost that is known."""
    if tuple(words) == SETUID_PROGRAM:
        return True
    return len(words) > 1 and words[0].rpartition("/")[2] in _NAMES and words[1] in _PROGRAMS


def steps(shell: Shell, words: Sequence[str]) -> Iterator[None]:
    """Run one of its programs. Raises UnknownScriptError."""
    if tuple(words) == SETUID_PROGRAM or words[1] == "nonewprivs":
        is_raised = len(words) == 1 and not shell.no_new_privs
        shell.print(f"Effective uid: {0 if is_raised else shell.user[0]}\n")
        shell.status = 0
        return
    if words[1] == "entrypoint-tester":
        shell.print(f"[{' '.join(words)}]\n")
        shell.status = 0
        return
    if words[1] in _FILES:
        _print_file(shell, words[1])
        return
    if words[1] == "logs-generator":
        yield from _generate_logs(shell, words[2:])
        return
    if words[1] == "pause":
        shell.print("Paused\n")
        yield
        raise EndlessScriptError("it waits for a signal")
    yield from _MountTest(shell, words[2:]).steps()


def _print_file(shell: Shell, name: str) -> None:
    """Print /etc/hosts, or what is searched and asked. Source: dns/common.go, dns_unix.go."""
    text = shell.read(_FILES[name]) or ""
    wanted = {"dns-suffix": "search", "dns-server-list": "nameserver"}.get(name)
    if wanted is not None:
        rows = [line.split() for line in text.splitlines() if line.startswith(wanted)]
        text = ",".join(word for row in rows for word in row[1:])
    shell.print(f"{text}\n")
    shell.status = 0


def _generate_logs(shell: Shell, args: Sequence[str]) -> Iterator[None]:
    """Print lines as an API server's, evenly. Source: logs-generator/logs_generator.go."""
    flags = dict(zip(args[::2], args[1::2], strict=False))
    lines = flags.get("--log-lines-total", flags.get("-t", ""))
    found = _DURATION.fullmatch(flags.get("--run-duration", flags.get("-d", "")))
    is_number = lines.isdecimal() and len(lines) <= _DIGITS_MAX
    if not is_number or not int(lines) or found is None:
        raise UnknownScriptError("logs-generator")
    delay_ns = int(float(found[1]) * _DURATIONS[found[2]] * NS_PER_S) // int(lines)
    for number in range(int(lines)):
        method, namespace = (each[shell.draw() % 3] for each in (_METHODS, _NAMESPACES))
        name = "".join(_LETTERS[shell.draw() % len(_LETTERS)] for _ in range(3 + number % 2))
        url = f"/api/v1/namespaces/{namespace}/pods/{name}"
        text = f"{number} {method} {url} {200 + shell.draw() % 400}"
        shell.complain(f"{klog_header(shell.wall_ns, 'logs_generator.go:76')} {text}\n")
        shell.clock_ns += delay_ns
        yield
    shell.status = 0


def klog_header(wall_ns: int, where: str) -> str:
    """Return what klog writes before a message. Source: klog.go, formatHeader."""
    stamp = rfc3339_micro(wall_ns).decode()
    return f"I{stamp[5:7]}{stamp[8:10]} {stamp[11:26]}       1 {where}]"


class _MountTest:
    """One run: what its flags ask for, in the order of its source."""

    def __init__(self, shell: Shell, args: Sequence[str]) -> None:
        self._shell = shell
        self._made: dict[str, int] = {}  # modes of files, by path
        self._flags: dict[str, str] = {}
        rest = list(args)
        while rest:
            name, is_set, value = rest.pop(0).lstrip("-").partition("=")
            if not is_set and name != "break_on_expected_content" and rest:
                value = rest.pop(0)
            self._flags[name] = value

    def steps(self) -> Iterator[None]:
        flags = self._flags
        is_good = self._type(flags.get("fs_type", ""))
        for flag, mode in _CREATED.items():
            is_good &= self._create(flags.get(flag, ""), mode)
        is_good &= self._mode(flags.get("file_mode", ""))
        is_good &= self._permissions(flags.get("file_perm", ""))
        is_good &= self._owner(flags.get("file_owner", ""))
        is_good &= self._content(flags.get("file_content", ""))
        path = flags.get("file_content_in_loop", "")
        if path:
            retry = flags.get("retry_time", str(_RETRY_S))
            if not retry.isdecimal() or len(retry) > _DIGITS_MAX:
                raise UnknownScriptError("mounttest")
            end_ns = self._shell.clock_ns + int(retry) * NS_PER_S
            is_read = False
            while self._shell.clock_ns < end_ns:
                text = self._text(path)
                is_read = text is not None
                if text is None:
                    said = f"open {path}: {_NO_FILE}"
                    self._say(f"Error reading file {path}: {said}, retrying")
                else:
                    self._say(f"content of file {_quoted(path)}: {text}")
                    if flags.get("break_on_expected_content", "true") != "false":
                        if text == _CONTENT:
                            break
                        self._say(f"Unexpected content. Expected: {_CONTENT}. Retrying")
                self._shell.clock_ns += _PERIOD_NS
                yield
            is_good &= is_read
        self._shell.status = int(not is_good)

    def _say(self, text: str) -> None:
        self._shell.print(f"{text}\n")

    def _text(self, path: str) -> str | None:
        text = self._shell.read(path)
        return None if text == DIRECTORY else text

    def _look(self, path: str) -> Look | None:
        found = self._shell.look(path)
        if found is None or path not in self._made:
            return found
        uid, gid = self._shell.user
        return found._replace(mode=stat.S_IFREG | self._made[path], uid=uid, gid=found.gid or gid)

    def _type(self, path: str) -> bool:
        if not path:
            return True
        found = self._look(path)
        if found is None:
            self._say(f"error from statfs({_quoted(path)}): {_NO_FILE}")
            return False
        self._say(f"mount type of {_quoted(path)}: {_TMPFS if found.in_memory else _EXT4}")
        return True

    def _create(self, path: str, mode: int) -> bool:
        if not path:
            return True
        is_new = self._shell.read(path) is None
        try:
            self._shell.write(path, _CONTENT)
        except ReadOnlyFileSystemError:
            said = f"open {path}: read-only file system"
            self._say(f"error writing new file {_quoted(path)}: {said}")
            return False
        if is_new:
            self._made[path] = mode
        return self._content(path)

    def _content(self, path: str) -> bool:
        if not path:
            return True
        text = self._text(path)
        if text is None:
            said = f"open {path}: {_NO_FILE}"
            self._say(f"error reading file content for {_quoted(path)}: {said}")
            return False
        self._say(f"content of file {_quoted(path)}: {text}")
        return True

    def _mode(self, path: str) -> bool:
        found = self._stat(path)
        if found is not None:
            self._say(f"mode of file {_quoted(path)}: {go_mode(found.mode)}")
        return not path or found is not None

    def _permissions(self, path: str) -> bool:
        found = self._stat(path)
        if found is not None:
            self._say(f"perms of file {_quoted(path)}: {go_mode(found.mode & 0o777)}")
        return not path or found is not None

    def _stat(self, path: str) -> Look | None:
        found = self._look(path) if path else None
        if path and found is None:
            self._say(f"error from Stat({_quoted(path)}): stat {path}: {_NO_FILE}")
        return found

    def _owner(self, path: str) -> bool:
        if not path:
            return True
        found = self._look(path)
        if found is None:
            self._say(f"error from stat({_quoted(path)}): {_NO_FILE}")
            return False
        self._say(f"owner UID of {_quoted(path)}: {found.uid}")
        self._say(f"owner GID of {_quoted(path)}: {found.gid}")
        return True


def _quoted(path: str) -> str:
    return f'"{path}"'


def go_mode(mode: int) -> str:
    """Return a mode as Go prints it. Source: io/fs, FileMode.String."""
    kinds = "d" if stat.S_ISDIR(mode) else ""
    kinds += "u" if mode & stat.S_ISUID else ""
    kinds += "g" if mode & stat.S_ISGID else ""
    kinds += "t" if mode & stat.S_ISVTX else ""
    bits = "".join(letter if mode & 1 << 8 - at else "-" for at, letter in enumerate("rwxrwxrwx"))
    return (kinds or "-") + bits
