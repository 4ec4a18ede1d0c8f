"""Where static pods come from: a directory and a URL per profile, read once for all its nodes.

    look -> what is there differs -> Environment.static -> each node looks within its own period

Source: pkg/kubelet/config/file.go, listConfig, extractFromDir; http.go, extractFromURL.
Differs: a real kubelet also gets inotify events; here every node sees a change at its own next
look, as the nodes of a fleet do whose files are written one after the other.
"""

import asyncio
import logging
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from fleet.clock import NS_PER_S
from fleet.host.static_manifest import MANIFEST_BYTES_MAX, ManifestError, parse_manifests
from fleet.kubelet.environment import Environment
from fleet.objects.static_pods import FILE, HTTP, StaticManifest
from fleet.profile.node_model import NodeModel

LOOK_S = 1.0
"""How often the process looks; a node acts on it at its own period."""
HTTP_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


class StaticSource:
    """The file and the URL of one profile."""

    def __init__(self, env: Environment, on_change: Callable[[Environment], None]) -> None:
        self._env = env
        self._on_change = on_change
        self._files: dict[Path, tuple[bytes, StaticManifest | None]] = {}
        self._url_data = b""
        self._url_due_s = 0.0
        self._complaints: set[str] = set()

    def read_file(self) -> None:
        """Look at the directory or file. One that does not exist has no pods."""
        model = self._env.model
        if not model.kubelet.static_pod_path:
            return
        found: dict[Path, tuple[bytes, StaticManifest | None]] = {}
        for path in _manifest_paths(Path(model.kubelet.static_pod_path)):
            try:
                data = _read(path)
            except OSError as error:
                self._complain(f"could not process manifest file {path}: {error}")
                continue
            known = self._files.get(path)
            found[path] = known if known and known[0] == data else (data, self._parse(data, path))
        self._files = found
        manifests = tuple(each for _, each in found.values() if each is not None)
        if manifests != self._env.static.file:
            self._env.static = self._env.static._replace(file=manifests)
            self._on_change(self._env)

    async def read_url(self, now_s: float) -> None:
        """Ask the URL, if it is time to; what cannot be read changes nothing."""
        model = self._env.model
        if not model.kubelet.static_pod_url or now_s < self._url_due_s:
            return
        self._url_due_s = now_s + model.kubelet.http_check_frequency_ns / NS_PER_S
        try:
            data = await asyncio.to_thread(_fetch, model)
        except (OSError, ValueError) as error:
            self._complain(f"failed to read pods from URL {model.kubelet.static_pod_url}: {error}")
            return
        if data and data == self._url_data:
            return
        manifests: tuple[StaticManifest, ...] = ()
        if data:
            self._url_data = data
            try:
                manifests = parse_manifests(data, HTTP, model.kubelet.static_pod_url)
            except ManifestError as error:
                self._complain(f"failed to read pods from URL: {error}")
                return
        if manifests != self._env.static.http:
            self._env.static = self._env.static._replace(http=manifests)
            self._on_change(self._env)

    def _parse(self, data: bytes, path: Path) -> StaticManifest | None:
        try:
            return parse_manifests(data, FILE, str(path))[0]
        except ManifestError as error:
            self._complain(f"could not process manifest file {path}: {error}")
            return None

    def _complain(self, text: str) -> None:
        """Log each complaint once."""
        if text not in self._complaints:
            self._complaints.add(text)
            log.warning("%s", text)


async def run_static_sources(sources: list[StaticSource]) -> None:
    """Look at all sources again and again, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(LOOK_S)
        for source in sources:
            source.read_file()
            await source.read_url(loop.time())


def _manifest_paths(path: Path) -> list[Path]:
    """Return the manifests of a directory, sorted; hidden files and directories are none."""
    if path.is_dir():
        return sorted(
            each for each in path.iterdir() if not each.name.startswith(".") and each.is_file()
        )
    return [path] if path.is_file() else []


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MANIFEST_BYTES_MAX + 1)
    if len(data) > MANIFEST_BYTES_MAX:
        raise OSError("contents exceed the limit of 10 MiB")
    return data


def _fetch(model: NodeModel) -> bytes:
    kubelet = model.kubelet
    request = urllib.request.Request(  # noqa: S310 - the user named the URL
        kubelet.static_pod_url,
        headers={
            name: values[-1] for name, values in kubelet.static_pod_url_header.items() if values
        },
    )
    with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S) as answer:  # noqa: S310
        data: bytes = answer.read(MANIFEST_BYTES_MAX + 1)
    return data
