"""The other endpoints of a kubelet: /configz, /logs, /checkpoint, /debug, /flagz, /statusz.

Source: pkg/kubelet/server/server.go; apiserver/pkg/server/{flagz,statusz}/textserializer.go;
apiserver/pkg/server/routes/flags.go.
Differs: there is no process behind a node, so it has no profile (/debug/pprof: 501), and nothing in
/var/log but the directories of its pods.
"""

import time

from aiohttp import web

from fleet.k8s.effects import NodeId
from fleet.k8s.pods import Pod
from fleet.k8s.streams import Refusal
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.profile.node_model import NodeModel
from fleet.reactor.roster import Entry
from fleet.server.configz import configz
from fleet.server.endpoints import Answers, Asked, found_pod
from fleet.server.http import json, text
from fleet.server.pod_lists import pods_of
from fleet.server.questions import Questions
from fleet.server.routes import DEBUG_HANDLERS, HANDLERS, Endpoint

FLAGS = {
    "bootstrap-kubeconfig": "/etc/kubernetes/bootstrap-kubelet.conf",
    "config": "/var/lib/kubelet/config.yaml",
    "kubeconfig": "/etc/kubernetes/kubelet.conf",
    "v": "0",
}
"""What kubeadm starts a kubelet with. Source: cmd/kubeadm/app/phases/kubelet/flags.go."""
HEADER = (
    "\nkubelet %s\nWarning: This endpoint is not meant to be machine parseable, has no formatting "
    "compatibility guarantees and is for debugging purposes only.\n"
)
GO_VERSION = "go1.26.4"
NO_CHECKPOINT = (
    "rpc error: code = Unimplemented desc = unknown method CheckpointContainer for service "
    "runtime.v1.RuntimeService"
)
LISTING = '<!doctype html>\n<meta name="viewport" content="width=device-width">\n<pre>\n%s</pre>\n'
FLAG_BYTES_MAX = 1 << 10


class Debugging:
    """Answers for all nodes of a process."""

    def __init__(self, questions: Questions, entries: list[Entry]) -> None:
        self._questions = questions
        self._entries = entries
        self.answers: Answers = {
            Endpoint.CONFIGZ: self._configz,
            Endpoint.LOGS: self._logs,
            Endpoint.CHECKPOINT: self._checkpoint,
            Endpoint.DEBUG_FLAGS: self._flags,
            Endpoint.PPROF: self._pprof,
            Endpoint.FLAGZ: self._flagz,
            Endpoint.STATUSZ: self._statusz,
        }

    async def _configz(self, asked: Asked) -> web.StreamResponse:
        return json(configz(self._model(asked.node)))

    async def _logs(self, asked: Asked) -> web.StreamResponse:
        """Source: pkg/kubelet/kubelet_server_journal.go; net/http, FileServer."""
        if not asked.configuration.enable_system_log_handler:
            return text(405, "logs endpoint is disabled.\n")

        def act(kubelet: VirtualKubelet, _now_ns: int) -> list[str]:
            return sorted(f"{pod.namespace}_{pod.name}_{pod.uid}/" for pod in pods_of(kubelet))

        names = {"": ["pods/"], "pods": await self._questions.ask(asked.node, act)}
        found = names.get(asked.parameters.get("*", "").strip("/"))
        if found is None:
            return text(404, "404 page not found\n")
        links = "".join(f'<a href="{name}">{name}</a>\n' for name in found)
        return text(200, LISTING % links, "text/html; charset=utf-8")

    async def _checkpoint(self, asked: Asked) -> web.StreamResponse:
        """Find the container, then fail as a runtime does that cannot checkpoint."""
        parameters = asked.parameters

        def act(kubelet: VirtualKubelet, _now_ns: int) -> Pod | Refusal:
            return found_pod(kubelet, parameters)

        pod = await self._questions.ask(asked.node, act)
        if isinstance(pod, Refusal):
            return text(*pod)
        name = parameters["containerName"]
        if pod.find(name) is None:
            return text(404, f"container {name} does not exist")
        timeouts = asked.request.query.getall("timeout", [])
        if timeouts and not timeouts[-1].lstrip("+-").isdecimal():
            return text(404, "cannot parse value of timeout parameter")
        where = f"{pod.namespace}/{pod.name}/{name}"
        return text(500, f"checkpointing of {where} failed ({NO_CHECKPOINT})")

    async def _flags(self, asked: Asked) -> web.StreamResponse:
        if not asked.configuration.enable_debug_flags_handler:
            return text(405, "flags endpoint is disabled.\n")
        if asked.request.method != "PUT":
            return text(406, "unsupported http method\n", "text/plain")
        level = (await asked.request.content.read(FLAG_BYTES_MAX)).decode("utf-8", "replace")
        if not level.lstrip("+-").isdecimal():
            why = f'strconv.ParseInt: parsing "{level}": invalid syntax'
            return text(400, f"failed set klog.logging.verbosity {level}: {why}\n", "text/plain")
        return text(200, f"successfully set klog.logging.verbosity to {level}\n", "text/plain")

    async def _pprof(self, asked: Asked) -> web.StreamResponse:
        if not asked.configuration.enable_profiling_handler:
            return text(405, "profiling endpoint is disabled.\n")
        if asked.parameters["*"] == "cmdline":
            flags = "\0".join(f"--{name}={value}" for name, value in FLAGS.items())
            return text(200, f"/usr/bin/kubelet\0{flags}")
        return text(501, "a virtual kubelet has no profile\n")

    async def _flagz(self, _asked: Asked) -> web.StreamResponse:
        lines = "".join(f"{name}={value}\n" for name, value in sorted(FLAGS.items()))
        return text(200, HEADER % "flagz" + lines)

    async def _statusz(self, asked: Asked) -> web.StreamResponse:
        def act(kubelet: VirtualKubelet, now_ns: int) -> int:
            return (now_ns - kubelet.facts.started_ns) // 1_000_000_000

        up_s = await self._questions.ask(asked.node, act)
        began = time.strftime("%a %b %e %H:%M:%S UTC %Y", time.gmtime(time.time() - up_s))
        hours, rest = divmod(up_s, 3600)
        version = self._model(asked.node).kubelet_version.removeprefix("v")
        listed = sorted({*HANDLERS, *DEBUG_HANDLERS, "/logs/", "/debug/pprof/"})
        status = (
            f"\nStarted: {began}\nUp: {hours} hr {rest // 60:02d} min {rest % 60:02d} sec\n"
            f"Go version: {GO_VERSION}\nBinary version: {version}\n"
            f"Emulation version: {'.'.join(version.split('.')[:2])}\nPaths: {' '.join(listed)}\n"
        )
        return text(200, HEADER % "statusz" + status)

    def _model(self, node: NodeId) -> NodeModel:
        return self._entries[node].caller.template.model
