"""What each endpoint of a kubelet answers, but for streams: health, pods, stats, metrics, logs.

Source: pkg/kubelet/server/server.go; apiserver/pkg/server/healthz/healthz.go.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from aiohttp import web

from fleet.host.certificate_store import CertificateStore
from fleet.k8s.effects import NodeId
from fleet.k8s.pods import Pod
from fleet.k8s.streams import LogOptions, Refusal
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.profile.kubelet_configuration import KubeletConfiguration
from fleet.server.counts import HttpCounts
from fleet.server.exposition import Rows
from fleet.server.host import Host, LogReader
from fleet.server.http import json, text
from fleet.server.log_query import log_options
from fleet.server.node_metrics import (
    cadvisor_metrics,
    certificate_rows,
    kubelet_metrics,
    probe_metrics,
    resource_metrics,
    sli_metrics,
)
from fleet.server.pod_lists import all_pods, find_pod, running_pods
from fleet.server.questions import Questions
from fleet.server.routes import Endpoint
from fleet.server.seats import LOGS_MAX, Seats
from fleet.server.summary import stats_summary

CHUNK_BYTES = 64 << 10
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
LOGS = "logs that are read"
POD_MISSING = "pod does not exist"


class Asked(NamedTuple):
    """One request, after everything was found out about it."""

    request: web.BaseRequest
    node: NodeId
    node_name: str
    configuration: KubeletConfiguration
    parameters: dict[str, str]


Answers = dict[Endpoint, Callable[[Asked], Awaitable[web.StreamResponse]]]


class Endpoints:
    """Answers for all nodes of a process."""

    def __init__(
        self,
        questions: Questions,
        host: Host,
        counts: HttpCounts,
        client: Callable[[NodeId], Rows],
        store: CertificateStore | None = None,
    ) -> None:
        self._questions = questions
        self._counts = counts
        self._client = client  # what a node's own requests show, on the reactor's loop
        self._store = store  # of nodes with certificates of their own
        self._host = host
        self.logs = Seats(LOGS_MAX, partial(questions.hit_limit, LOGS))
        self.answers: Answers = {
            Endpoint.HEALTHZ: self._healthz,
            Endpoint.PODS: partial(self._json, act=all_pods),
            Endpoint.RUNNING_PODS: partial(self._json, act=running_pods),
            Endpoint.STATS: self._stats,
            Endpoint.METRICS: self._own_metrics,
            Endpoint.METRICS_CADVISOR: partial(self._metrics, act=cadvisor_metrics),
            Endpoint.METRICS_RESOURCE: partial(self._metrics, act=resource_metrics),
            Endpoint.METRICS_PROBES: partial(self._metrics, act=probe_metrics),
            Endpoint.METRICS_SLIS: partial(self._metrics, act=sli_metrics),
            Endpoint.CONTAINER_LOGS: self._container_logs,
        }

    async def _json(
        self, asked: Asked, act: Callable[[VirtualKubelet, int], bytes]
    ) -> web.StreamResponse:
        return json(await self._questions.ask(asked.node, act))

    async def _metrics(
        self, asked: Asked, act: Callable[[VirtualKubelet, int], bytes]
    ) -> web.StreamResponse:
        return text(200, await self._questions.ask(asked.node, act), METRICS_TYPE)

    async def _own_metrics(self, asked: Asked) -> web.StreamResponse:
        served = self._counts.rows(asked.node)
        if self._store is not None:
            name, configuration = asked.node_name, asked.configuration
            rows = certificate_rows(self._store, name, configuration, time.time())
            served = {**served, **rows}

        def act(kubelet: VirtualKubelet, now_ns: int) -> bytes:
            return kubelet_metrics(kubelet, now_ns, {**served, **self._client(asked.node)})

        return await self._metrics(asked, act)

    async def _stats(self, asked: Asked) -> web.StreamResponse:
        """Source: pkg/kubelet/server/stats/handler.go, handleSummary."""
        only = asked.request.query.getall("only_cpu_and_memory", []) == ["true"]

        def act(kubelet: VirtualKubelet, now_ns: int) -> bytes:
            return stats_summary(kubelet, now_ns, only_cpu_and_memory=only)

        return json(await self._questions.ask(asked.node, act))

    # ---- health ----

    async def _healthz(self, asked: Asked) -> web.StreamResponse:
        """Source: healthz.go, handleRootHealth, adaptCheckToHandler.

        The question itself is the check of the sync loop: it is answered in its turn.
        """
        await self._questions.ask(asked.node, lambda _kubelet, _now_ns: None)
        checks = ("ping", "log", "syncloop")
        query = asked.request.query
        shown = "ok"
        if asked.request.path == "/healthz" and ("verbose" in query or "exclude" in query):
            excluded = set(query.getall("exclude", []))
            lines = [
                f"[+]{name} excluded: ok" if name in excluded else f"[+]{name} ok"
                for name in checks
            ]
            if unknown := sorted(excluded - set(checks)):
                listed = ", ".join(f'"{name}"' for name in unknown)
                lines.append(
                    f"warn: some health checks cannot be excluded: no matches for {listed}"
                )
            if "verbose" in query:
                shown = "\n".join([*lines, "healthz check passed", ""])
        answer = text(200, shown)
        answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer

    # ---- logs ----

    async def _container_logs(self, asked: Asked) -> web.StreamResponse:
        """Send a log if there is room for one more reader."""
        with self.logs.one() as has_seat:
            return await self._send_log(asked) if has_seat else text(429, "too many readers\n")

    async def _send_log(self, asked: Asked) -> web.StreamResponse:
        """Send a log as it is computed; a reader that does not read holds one chunk."""
        query = {key: asked.request.query.getall(key) for key in asked.request.query}
        gates = asked.configuration.feature_gates
        options = log_options(
            query, time.time_ns(), splits_streams=gates.get("PodLogsQuerySplitStreams", False)
        )
        if isinstance(options, Refusal):
            return text(*options)
        reader = await self._questions.ask(
            asked.node, partial(self._open_log, asked.parameters, options)
        )
        if isinstance(reader, Refusal):
            return text(*reader)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(asked.request)

        with contextlib.suppress(ConnectionError):
            while True:
                chunk = await self._questions.ask(
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
        self,
        parameters: dict[str, str],
        options: LogOptions,
        kubelet: VirtualKubelet,
        now_ns: int,
    ) -> LogReader | Refusal:
        """Find a container and open its log, in the reactor's thread."""
        name, container = parameters["podID"], parameters["containerName"]
        pod = find_pod(kubelet, parameters["podNamespace"], name)
        if pod is None:
            return Refusal(404, f'pod "{name}" does not exist')
        if pod.find(container) is None:
            return Refusal(404, f'container "{container}" not found in pod "{name}"')
        return self._host.container_logs(kubelet, pod, container, options, now_ns)


def found_pod(kubelet: VirtualKubelet, parameters: dict[str, str]) -> Pod | Refusal:
    """Return the pod that a path names. Source: getExec, getPortForward."""
    pod = find_pod(kubelet, parameters["podNamespace"], parameters["podID"])
    if pod is None:
        return Refusal(404, POD_MISSING)
    uid = parameters.get("uid")
    if uid and pod.uid != uid:
        return Refusal(404, "pod not found")
    return pod
