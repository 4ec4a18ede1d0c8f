"""Kubeconfig files: one context of several, and where fleet may write one.

A file that the user names is written only where nothing is, or over what fleet has written there
before, which its first line tells. What a run needs for itself is a temporary file.

Source: k8s.io/client-go/tools/clientcmd/loader.go, ClientConfigLoadingRules.Load and
ResolveLocalPaths: of a name that several files have the first counts, and relative paths are
relative to the file that has them.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from fleet.errors import UsageError

Entry = dict[str, Any]

MARK = b"# Written by fleet, which overwrites it; a credential: keep it to yourself.\n"
"""The first line of a `--kubeconfig-out`; kubectl drops it when it changes the file."""

FILE_KEYS = {
    "cluster": ("certificate-authority",),
    "user": ("client-certificate", "client-key", "tokenFile"),
}


def current_context(paths: Sequence[Path]) -> str:
    """Return the context that is chosen when nobody names one. Raises KeyError if none is."""
    for path in paths:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        if content.get("current-context"):
            return str(content["current-context"])
    raise KeyError("current-context")


def only_context(paths: Sequence[Path], context: str) -> Entry:
    """Return a kubeconfig that has a context, its cluster and its user, and nothing else.

    Raises KeyError for a context that is in none of the files.
    """
    chosen = _find(paths, "context", context)
    described = chosen["context"]
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "contexts": [chosen],
        "clusters": [_find(paths, "cluster", described["cluster"])],
        "users": [_find(paths, "user", described["user"])] if described.get("user") else [],
    }


def check_kubeconfig_out(path: Path, inputs: Sequence[Path] = ()) -> None:
    """Raise UsageError unless the file can be written and nothing but fleet's is lost by it.

    `inputs` are kubeconfigs that the run itself reads: those stay, whoever wrote them.
    """
    flag = f"--kubeconfig-out {path}"
    try:
        if any(each.exists() and path.exists() and each.samefile(path) for each in inputs):
            raise UsageError(f"{flag}: not overwritten, this run reads its credentials there")
        if path.exists() and not _is_ours(path):
            raise UsageError(f"{flag}: not overwritten, fleet did not write this file")
        with tempfile.NamedTemporaryFile(dir=path.parent):
            pass  # there is no surer way to know whether one can
    except OSError as error:
        raise _unwritable(path, error) from error


def write_kubeconfig_out(path: Path, content: bytes, inputs: Sequence[Path] = ()) -> None:
    """Write the kubeconfig where the user asked for it, whole or not at all, for its owner only.

    Raises UsageError as `check_kubeconfig_out` does.
    """
    check_kubeconfig_out(path, inputs)
    try:
        with private_file(MARK + content, path.parent) as written:
            written.replace(path)  # not written over: an older file may have a wider mode
    except OSError as error:
        raise _unwritable(path, error) from error


@contextlib.contextmanager
def private_file(content: bytes, directory: Path | None = None) -> Iterator[Path]:
    """Yield a file that only its owner may read, from its first byte on, and remove it."""
    descriptor, name = tempfile.mkstemp(prefix="fleet-", suffix=".kubeconfig", dir=directory)
    path = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        yield path
    finally:
        path.unlink(missing_ok=True)


def _is_ours(path: Path) -> bool:
    """Whether fleet wrote a file; an empty one is nobody's."""
    if not path.is_file():
        return False  # a directory, a pipe: nothing to read from
    with path.open("rb") as file:
        return file.read(len(MARK)) in {MARK, b""}


def _unwritable(path: Path, error: OSError) -> UsageError:
    reason = error.strerror if path.parent.is_dir() else f"there is no folder {path.parent}"
    return UsageError(f"--kubeconfig-out {path}: {reason}")


def _find(paths: Sequence[Path], kind: str, name: str) -> Entry:
    for path, entry in _entries(paths, f"{kind}s"):
        if entry.get("name") == name:
            return {"name": name, kind: _resolved(entry.get(kind) or {}, kind, path.parent)}
    raise KeyError(name)


def _entries(paths: Sequence[Path], key: str) -> Iterator[tuple[Path, Entry]]:
    for path in paths:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        for entry in content.get(key) or ():
            yield path, entry


def _resolved(described: Entry, kind: str, base: Path) -> Entry:
    """Make the paths of an entry absolute."""
    resolved = dict(described)
    for key in FILE_KEYS.get(kind, ()):
        if resolved.get(key):
            resolved[key] = str((base / resolved[key]).absolute())
    plugin = resolved.get("exec")
    if plugin and "/" in plugin.get("command", ""):
        resolved["exec"] = {**plugin, "command": str((base / plugin["command"]).absolute())}
    return resolved
