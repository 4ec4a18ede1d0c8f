"""What each endpoint of a kubelet answers, but for streams.

Health, pods, stats, metrics, logs and /configz.
Source: pkg/kubelet/server/server.go, getContainerLogs; apiserver/pkg/server/healthz/healthz.go;
apimachinery/pkg/runtime/conversion.go and pkg/apis/core/validation, ValidatePodLogOptions, for the
query of a log.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from aiohttp import web

from fleet.clock import NS_PER_S
from fleet.k8s.effects import NodeId
from fleet.k8s.pods import Pod
from fleet.k8s.streams import LogOptions, Refusal
from fleet.k8s.times import parse_rfc3339_nano
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.profile.kubelet_configuration import KubeletConfiguration
from fleet.reactor.process import Entry
from fleet.runtime.container_log import LogReader
from fleet.server.configz import configz
from fleet.server.host_interface import container_logs
from fleet.server.http import json, text
from fleet.server.node_metrics import (
    cadvisor_metrics,
    kubelet_metrics,
    probe_metrics,
    resource_metrics,
    sli_metrics,
)
from fleet.server.pod_lists import all_pods, find_pod
from fleet.server.reactor_thread import ReactorThread
from fleet.server.routes import CHECKS, Endpoint
from fleet.server.summary import stats_summary

SESSIONS_MAX = 2_000
"""exec, attach and port-forward; each may hold 1 MB for a client that does not read."""
LOGS_MAX = 2_000  # logs that are being read; one that is followed stays until its client goes
FORWARDED_MAX = 10_000  # connections to ports of pods, of all clients that forward


class ConcurrencyLimit:
    """How many of a kind may go on at once; `on_full` learns of each that is refused."""

    def __init__(self, most: int, on_full: Callable[[], object] = lambda: None) -> None:
        self._on_full = on_full
        self.most = most
        self.in_use = 0

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Count one more while the block runs, unless the limit is reached; yields whether it is.

        It is entered before anything begins, so that what is refused has cost one request.
        """
        if self.in_use >= self.most:
            self._on_full()
            yield False
            return
        self.in_use += 1
        try:
            yield True
        finally:
            self.in_use -= 1


UNREADABLE = Refusal(400, '{"message": "Unable to decode query."}')
INVALID = Refusal(422, '{"message": "Invalid request."}')
STREAMS = ("All", "Stdout", "Stderr")
INT64_MAX = 2**63
T = TypeVar("T")


def log_options(
    query: Mapping[str, Sequence[str]], wall_ns: int, *, splits_streams: bool
) -> LogOptions | Refusal:
    """Read the parameters; of each the first counts."""
    given = {key: values[0] for key, values in query.items() if values}
    tail = given.pop("tail", "")  # of old clients
    if tail == "all":
        given.pop("tailLines", None)
    elif tail:
        given["tailLines"] = tail
    try:
        tail_lines = _read(given, "tailLines", _int64)
        limit_bytes = _read(given, "limitBytes", _int64)
        since_s = _read(given, "sinceSeconds", _int64)
        since_time_ns = _read(given, "sinceTime", _time)
    except ValueError:
        return UNREADABLE
    stream = given.get("stream", "All")
    if (
        (tail_lines is not None and tail_lines < 0)
        or (limit_bytes is not None and limit_bytes < 1)
        or (since_s is not None and (since_s < 1 or since_time_ns is not None))
        or stream not in STREAMS
        or (stream != "All" and tail_lines is not None)
    ):
        return INVALID
    if not splits_streams and stream != "All":
        return Refusal(
            400,
            f'unable to return the given log stream: "{stream}". Please enable '
            "PodLogsQuerySplitStreams feature gate in kubelet",
        )
    since_ns = 0
    if since_s is not None:
        since_ns = max(wall_ns - since_s * NS_PER_S, 0)
    elif since_time_ns is not None:
        since_ns = since_time_ns
    return LogOptions(
        follow=_flag(given, "follow"),
        previous=_flag(given, "previous"),
        timestamps=_flag(given, "timestamps"),
        since_ns=since_ns,
        tail_lines=tail_lines,
        limit_bytes=limit_bytes,
        stream=stream,
    )


def _read(given: Mapping[str, str], name: str, parse: Callable[[str], T]) -> T | None:
    return parse(given[name]) if name in given else None


def _flag(given: Mapping[str, str], name: str) -> bool:
    """Source: Convert_Slice_string_To_bool: whatever is not false is true."""
    return name in given and given[name].lower() not in {"false", "0"}


def _int64(text: str) -> int:
    value = int(text)
    if not -INT64_MAX <= value < INT64_MAX:
        raise ValueError(text)
    return value


def _time(text: str) -> int:
    """Read an instant in nanoseconds; the API server writes it in its own zone.

    Source: apimachinery/pkg/apis/meta/v1/time.go, UnmarshalQueryParameter: none is no limit.
    """
    return 0 if text in {"", "null"} else parse_rfc3339_nano(text)


CHUNK_BYTES = 64 << 10
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
LOGS = "logs that are read"


class Asked(NamedTuple):
    """One request, after everything was found out about it."""

    request: web.BaseRequest
    node: NodeId
    configuration: KubeletConfiguration
    parameters: dict[str, str]


Answers = dict[Endpoint, Callable[[Asked], Awaitable[web.StreamResponse]]]


class Endpoints:
    """Answers for all nodes of a process."""

    def __init__(self, reactor_thread: ReactorThread, entries: list[Entry]) -> None:
        self._reactor_thread = reactor_thread
        self._entries = entries
        self.logs = ConcurrencyLimit(LOGS_MAX, partial(reactor_thread.hit_limit, LOGS))
        self.answers: Answers = {
            Endpoint.HEALTHZ: self._healthz,
            Endpoint.PODS: self._pods,
            Endpoint.STATS: self._stats,
            Endpoint.METRICS: partial(self._metrics, act=kubelet_metrics),
            Endpoint.METRICS_CADVISOR: partial(self._metrics, act=cadvisor_metrics),
            Endpoint.METRICS_RESOURCE: partial(self._metrics, act=resource_metrics),
            Endpoint.METRICS_PROBES: partial(self._metrics, act=probe_metrics),
            Endpoint.METRICS_SLIS: partial(self._metrics, act=sli_metrics),
            Endpoint.CONTAINER_LOGS: self._container_logs,
            Endpoint.CONFIGZ: self._configz,
        }

    async def _configz(self, asked: Asked) -> web.StreamResponse:
        return json(configz(self._entries[asked.node].caller.template.model))

    async def _pods(self, asked: Asked) -> web.StreamResponse:
        return json(await self._reactor_thread.call(asked.node, all_pods))

    async def _metrics(
        self, asked: Asked, act: Callable[[VirtualKubelet, int], bytes]
    ) -> web.StreamResponse:
        return text(200, await self._reactor_thread.call(asked.node, act), METRICS_TYPE)

    async def _stats(self, asked: Asked) -> web.StreamResponse:
        """Source: pkg/kubelet/server/stats/handler.go, handleSummary."""
        only = asked.request.query.getall("only_cpu_and_memory", []) == ["true"]

        def act(kubelet: VirtualKubelet, now_ns: int) -> bytes:
            return stats_summary(kubelet, now_ns, only_cpu_and_memory=only)

        return json(await self._reactor_thread.call(asked.node, act))

    # ---- health ----

    async def _healthz(self, asked: Asked) -> web.StreamResponse:
        """Answer when the sync loop gets to it: that is the check of the loop."""
        await self._reactor_thread.call(asked.node, lambda _kubelet, _now_ns: None)
        query = asked.request.query
        is_verbose = "verbose" in query and asked.request.path == "/healthz"
        answer = text(200, health(query.getall("exclude", [])) if is_verbose else "ok")
        answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer

    # ---- logs ----

    async def _container_logs(self, asked: Asked) -> web.StreamResponse:
        """Send a log if there is room for one more reader."""
        with self.logs.held() as is_admitted:
            return await self._send_log(asked) if is_admitted else text(429, "too many readers\n")

    async def _send_log(self, asked: Asked) -> web.StreamResponse:
        """Send a log as it is computed; a reader that does not read holds one chunk."""
        query = {key: asked.request.query.getall(key) for key in asked.request.query}
        gates = asked.configuration.feature_gates
        options = log_options(
            query, time.time_ns(), splits_streams=gates.get("PodLogsQuerySplitStreams", False)
        )
        if isinstance(options, Refusal):
            return text(*options)
        reader = await self._reactor_thread.call(
            asked.node, partial(self._open_log, asked.parameters, options)
        )
        if isinstance(reader, Refusal):
            return text(*reader)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(asked.request)

        with contextlib.suppress(ConnectionError):
            while True:
                chunk = await self._reactor_thread.call(
                    asked.node, lambda _kubelet, now_ns: reader.read(CHUNK_BYTES, now_ns)
                )
                if chunk.data:
                    await response.write(chunk.data)
                if chunk.is_over:
                    break
                if chunk.wake_ns is not None:
                    await asyncio.sleep(max(chunk.wake_ns - time.monotonic_ns(), 0) / 1e9)
            await response.write_eof()
        return response

    def _open_log(
        self, parameters: dict[str, str], options: LogOptions, kubelet: VirtualKubelet, now_ns: int
    ) -> LogReader | Refusal:
        """Find a container and open its log, in the reactor's thread."""
        name, container = parameters["podID"], parameters["containerName"]
        pod = find_pod(kubelet, parameters["podNamespace"], name)
        if pod is None:
            return Refusal(404, f'pod "{name}" does not exist')
        if pod.find(container) is None:
            return Refusal(404, f'container "{container}" not found in pod "{name}"')
        return container_logs(kubelet, pod, container, options, now_ns)


def health(excluded: Sequence[str]) -> str:
    """Return what /healthz?verbose says. Source: healthz.go, handleRootHealth."""
    lines = [f"[+]{each}{' excluded:' * (each in excluded)} ok\n" for each in CHECKS]
    unknown = ",".join(f'"{each}"' for each in sorted({*excluded} - {*CHECKS}))
    if unknown:
        lines.append(f"warn: some health checks cannot be excluded: no matches for {unknown}\n")
    return "".join((*lines, "healthz check passed\n"))


def found_pod(kubelet: VirtualKubelet, parameters: dict[str, str]) -> Pod | Refusal:
    """Return the pod that a path names, whatever UID it gives. Source: getExec."""
    pod = find_pod(kubelet, parameters["podNamespace"], parameters["podID"])
    return Refusal(404, "pod does not exist") if pod is None else pod


def forwarded_pod(asked: Asked, kubelet: VirtualKubelet, _now_ns: int) -> Pod | Refusal:
    """Return the pod that a path names if the runtime has it. Source: getPortForward."""
    pod, pods = found_pod(kubelet, asked.parameters), kubelet.pods
    if isinstance(pod, Refusal) or pods is None:
        return pod
    if asked.parameters.get("uid", pod.uid) != pod.uid:
        return Refusal(404, "pod not found")
    sandbox = pods.runtime.sandbox(pod.uid)
    if sandbox is None or not (sandbox.ready or sandbox.is_running()):
        return Refusal(500, f'pod not found ("{pod.full_name}")')
    return pod
