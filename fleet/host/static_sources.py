"""Where static pods come from: a directory and a URL per profile, read once for all its nodes.

    look -> what is there differs -> Environment.static -> each node looks within its own period

Source: pkg/kubelet/config/file.go, listConfig, extractFromDir; http.go, extractFromURL.
Differs: a real kubelet also gets inotify events; here every node sees a change at its own next
look, as the nodes of a fleet do whose files are written one after the other. A profile is data,
perhaps of somebody else: only files below its own directory are read, and a URL does not lead to
another server than the one that was confirmed.
"""

import asyncio
import http.client
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from fleet.clock import NS_PER_S
from fleet.host.static_manifest import MANIFEST_BYTES_MAX, ManifestError, parse_manifests
from fleet.k8s.static_pods import FILE, HTTP, StaticManifest
from fleet.kubelet.environment import Environment
from fleet.profile.loader import below
from fleet.profile.node_model import NodeModel

LOOK_S = 1.0
"""How often the process looks; a node acts on it at its own period."""
HTTP_TIMEOUT_S = 10.0
TOO_LONG = f"contents exceed the limit of {MANIFEST_BYTES_MAX >> 20} MiB"

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
        for path in self._manifest_paths():
            try:
                data = _read(path, model.directory)
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
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = str(error)
            if isinstance(error, urllib.error.HTTPError):
                reason = f"HTTP {error.code}"
            elif isinstance(error, http.client.HTTPException):  # its text is the server's
                reason = type(error).__name__
            self._complain(f"failed to read pods from URL {model.kubelet.static_pod_url}: {reason}")
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

    def _manifest_paths(self) -> list[Path]:
        """Return the manifests of a directory, sorted; hidden files and directories are none."""
        model = self._env.model
        try:
            path = below(model.directory, model.kubelet.static_pod_path)
            if path.is_dir():
                found = (each for each in path.iterdir() if not each.name.startswith("."))
                return sorted(each for each in found if each.is_file())
            return [path] if path.is_file() else []
        except (OSError, ValueError) as error:
            self._complain(f"could not read staticPodPath: {error}")
            return []

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


def _read(path: Path, directory: Path | None) -> bytes:
    """Return a file that is below a directory, also where its links lead. Raises OSError."""
    if directory is None or not path.resolve().is_relative_to(directory.resolve()):
        raise OSError("is a link that leads out of the profile's directory")
    descriptor = os.open(path.resolve(), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
        data = file.read(MANIFEST_BYTES_MAX + 1)
    if len(data) > MANIFEST_BYTES_MAX:
        raise OSError(TOO_LONG)
    return data


class _SameServer(urllib.request.HTTPRedirectHandler):
    """Follows redirects within one server: another one was never confirmed."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Return the next request, or raise ValueError."""
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if (before.scheme, before.netloc) != (after.scheme, after.netloc):
            raise ValueError("it redirects to another server")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetch(model: NodeModel) -> bytes:
    kubelet = model.kubelet
    request = urllib.request.Request(  # noqa: S310 - the profile's check allows http and https only
        kubelet.static_pod_url,
        headers={
            name: values[-1] for name, values in kubelet.static_pod_url_header.items() if values
        },
    )
    opener = urllib.request.build_opener(_SameServer)
    with opener.open(request, timeout=HTTP_TIMEOUT_S) as answer:
        data: bytes = answer.read(MANIFEST_BYTES_MAX + 1)
    if len(data) > MANIFEST_BYTES_MAX:
        raise ValueError(TOO_LONG)
    return data
