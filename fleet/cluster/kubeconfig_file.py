"""Kubeconfig files of users: one context of several.

Source: k8s.io/client-go/tools/clientcmd/loader.go, ClientConfigLoadingRules.Load and
ResolveLocalPaths: of a name that several files have the first counts, and relative paths are
relative to the file that has them.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fleet.profile.yaml_text import read_document

Entry = dict[str, Any]

FILE_KEYS = {
    "cluster": ("certificate-authority",),
    "user": ("client-certificate", "client-key", "tokenFile"),
}


def current_context(paths: Sequence[Path]) -> str:
    """Return the context that is chosen when nobody names one. Raises KeyError if none is."""
    for path in paths:
        content = _content(path)
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


def _find(paths: Sequence[Path], kind: str, name: str) -> Entry:
    for path, entry in _entries(paths, f"{kind}s"):
        if entry.get("name") == name:
            return {"name": name, kind: _resolved(entry.get(kind) or {}, kind, path.parent)}
    raise KeyError(name)


def _entries(paths: Sequence[Path], key: str) -> Iterator[tuple[Path, Entry]]:
    for path in paths:
        content = _content(path)
        for entry in content.get(key) or ():
            yield path, entry


def _content(path: Path) -> Entry:
    content = read_document(path.read_bytes())
    return content if isinstance(content, dict) else {}


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
