"""A node without a kubelet: runs the pods that are bound to it as processes of this machine.

What counts to a program in a pod is real: its command, arguments and environment with references
resolved, a ServiceAccount token that the API server issued for the pod, its volumes at their
paths, a root file system that is read-only, SIGTERM with the pod's grace period, restarts, and
probes. A private mount namespace (unshare) makes that possible without a container engine. All
pods share the network, so an address of 127.0.0.0/8 stands for a pod's own, also where it listens
on any; names of Services are in /etc/hosts.
"""

import base64
import contextlib
import datetime as dt
import json
import os
import re
import shlex
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple, Self

import yaml
from support.guard import MARK, XDIST_WORKER

Json = dict[str, Any]
POLL_S = 0.2
NETWORK = f"127.{77 + int(os.environ.get(XDIST_WORKER, 'gw0')[2:])}"
"""Of the pods: those of another worker's node listen on the same ports."""
HEARTBEAT_S = 8.0
RESTART_S = 0.5
PROBE_TIMEOUT_S = 2.0
ANY_ADDRESS = "0.0.0.0"
BIN = Path(sys.executable).parent


class Server:
    """The API server, as the kubelet of this node would speak to it."""

    def __init__(self, kubeconfig: Path) -> None:
        document = yaml.safe_load(kubeconfig.read_text())
        cluster = document["clusters"][0]["cluster"]
        self.url: str = cluster["server"]
        self.ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._token = document["users"][0]["user"]["token"]
        self._context = ssl.create_default_context(cadata=self.ca)

    def ask(self, method: str, path: str, body: object = None) -> Json:
        """Send one request; a PATCH is a merge patch. Raises urllib's HTTPError."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, context=self._context, timeout=120) as answer:
            found: Json = json.load(answer)
            return found


class Mount(NamedTuple):
    source: Path
    target: str
    is_writable: bool


class Volumes:
    """The volumes of one pod, as directories."""

    def __init__(self, server: Server, pod: Json, root: Path) -> None:
        self._server = server
        self._pod = pod
        self._root = root
        self._places: dict[str, Path] = {}
        for volume in pod["spec"].get("volumes") or ():
            self._places[volume["name"]] = place = root / "volumes" / volume["name"]
            place.mkdir(parents=True)
            self._fill(volume, place)

    def mounts(self, container: Json) -> list[Mount]:
        listed = container.get("volumeMounts") or ()
        return [
            Mount(self._places[each["name"]], each["mountPath"], not each.get("readOnly"))
            for each in listed
        ]

    def secret(self, name: str) -> dict[str, str]:
        """Return the keys of a Secret, their values in base64."""
        data: dict[str, str] = self._of_namespace("secrets", name)["data"]
        return data

    def _fill(self, volume: Json, place: Path) -> None:
        if "configMap" in volume:
            self._write_config_map(volume["configMap"], place)
        elif "secret" in volume:
            for key, value in self.secret(volume["secret"]["secretName"]).items():
                (place / key).write_bytes(base64.b64decode(value))
        elif "projected" in volume:
            for source in volume["projected"]["sources"]:
                if "serviceAccountToken" in source:
                    asked = source["serviceAccountToken"]
                    (place / asked["path"]).write_text(self._token(asked["expirationSeconds"]))
                if "configMap" in source:
                    self._write_config_map(source["configMap"], place)
                for item in source.get("downwardAPI", {}).get("items", ()):
                    value = field(self._pod, item["fieldRef"]["fieldPath"])
                    (place / item["path"]).write_text(value)
        else:
            assert "emptyDir" in volume, volume

    def _write_config_map(self, wanted: Json, place: Path) -> None:
        data = self._of_namespace("configmaps", wanted["name"]).get("data") or {}
        items = wanted.get("items") or [{"key": key, "path": key} for key in data]
        for item in items:
            (place / item["path"]).write_text(data[item["key"]])

    def _of_namespace(self, kind: str, name: str) -> Json:
        namespace = self._pod["metadata"]["namespace"]
        return self._server.ask("GET", f"/api/v1/namespaces/{namespace}/{kind}/{name}")

    def _token(self, seconds: int) -> str:
        metadata = self._pod["metadata"]
        reference = {"kind": "Pod", "apiVersion": "v1"}
        reference |= {"name": metadata["name"], "uid": metadata["uid"]}
        accounts = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts"
        path = f"{accounts}/{self._pod['spec']['serviceAccountName']}/token"
        asked = {"spec": {"expirationSeconds": seconds, "boundObjectRef": reference}}
        return str(self._server.ask("POST", path, asked)["status"]["token"])


def field(pod: Json, path: str) -> str:
    """Return what a fieldRef means."""
    keyed = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if keyed:
        return str(pod["metadata"][keyed[1]][keyed[2]])
    value: Any = pod
    for part in path.split("."):
        value = value[part]
    return str(value)


def sandbox(mounts: list[Mount], scratch: Path, command: list[str], directory: str) -> list[str]:
    """Return a command that sees the volumes at their paths and may write nowhere else."""
    steps = ["set -e", f"mkdir -p {scratch}", f"mount -t tmpfs none {scratch}"]
    covered: set[Path] = set()
    for mount in sorted(mounts, key=lambda each: each.target):
        target = Path(os.path.realpath(mount.target))
        parent = next(each for each in target.parents if each.is_dir())
        if parent not in covered and not target.exists():
            covered.add(parent)
            name = f"{scratch}/{len(covered)}"
            layers = f"lowerdir={parent},upperdir={name}/up,workdir={name}/work"
            steps.append(f"mkdir -p {name}/up {name}/work")
            steps.append(f"mount -t overlay overlay -o {layers} {parent}")
        if mount.source.is_dir():
            steps.append(f"mkdir -p {target}")
        steps.append(f"mount --bind {mount.source} {target}")
        if not mount.is_writable:
            steps.append(f"mount -o remount,bind,ro {target}")
    steps += [f"mount -o remount,ro {parent}" for parent in sorted(covered)]
    steps += ["mount -o remount,bind,ro /", f"cd {shlex.quote(directory)}"]
    steps.append(f"exec {shlex.join(command)}")
    alone = ("unshare", "--mount", "--propagation=private")
    as_user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    return [*alone, *as_user, "sh", "-c", "\n".join(steps)]


class PlayedPod:
    """One pod, of one container, on the node."""

    def __init__(self, server: Server, pod: Json, address: str, root: Path, hosts: Path) -> None:
        self.pod = pod
        self.address = address
        self.log = root / "log"
        self.restarts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.is_over = False
        self.code: int | None = None
        """What its program ended with, once it `is_over`."""
        self.root = root
        self._server = server
        self._hosts = hosts
        self._volumes = Volumes(server, pod, root)
        self._started = self._now()
        self._killed_at = 0.0
        self._restart_at = 0.0
        self._reported = ""
        self._is_ready = False
        [self._container] = pod["spec"]["containers"]

    @property
    def is_ready(self) -> bool:
        return self._is_ready and not self.is_over

    def endpoint(self, port: str | int) -> str:
        """Return address and number of a port of the container."""
        ports = {each["name"]: each["containerPort"] for each in self._container["ports"]}
        return f"{self.address}:{ports.get(port, port)}"

    @property
    def path(self) -> str:
        metadata = self.pod["metadata"]
        return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"

    def start(self) -> None:
        container = self._container
        environment = self._environment()

        def expanded(text: str) -> str:
            found = re.sub(r"\$\((\w+)\)", lambda name: environment[name[1]], text)
            return found.replace(ANY_ADDRESS, self.address)

        command = [expanded(each) for each in (*container["command"], *container.get("args", ()))]
        command[0] = str(BIN / command[0])
        mounts = [
            *self._volumes.mounts(container),
            Mount(self._hosts, "/etc/hosts", is_writable=False),
        ]
        directory = container.get("workingDir", "/")
        sandboxed = sandbox(mounts, self.root / "scratch", command, directory)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                sandboxed,
                env={**environment, **kept_environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def step(self, pod: Json) -> None:
        """Do what is due: start, probe, restart, end; then report."""
        self.pod = pod
        now = time.monotonic()
        if pod["metadata"].get("deletionTimestamp"):
            self._end(now)
            return
        if self.is_over:
            return
        if self.process is None:
            if now >= self._restart_at:
                self.start()
        elif (code := self.process.poll()) is not None:
            self.process = None
            if pod["spec"]["restartPolicy"] != "Always":
                self.is_over, self.code = True, code
                self._report("Succeeded" if code == 0 else "Failed", code)
                return
            self.restarts += 1
            self._restart_at = now + RESTART_S
        self._is_ready = self.process is not None and self._probe()
        self._report("Running")

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _end(self, now: float) -> None:
        running = self.process is not None and self.process.poll() is None
        if running and not self._killed_at:
            assert self.process is not None
            self._killed_at = now + self.pod["metadata"]["deletionGracePeriodSeconds"]
            self.process.send_signal(signal.SIGTERM)
        elif not running or now > self._killed_at:
            self.kill()
            with contextlib.suppress(urllib.error.HTTPError):
                self._server.ask("DELETE", self.path, {"gracePeriodSeconds": 0})

    def _environment(self) -> dict[str, str]:
        host, _, port = self._server.url.removeprefix("https://").rpartition(":")
        found = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        for each in self._container.get("env") or ():
            found[each["name"]] = each.get("value") or self._value(each["valueFrom"])
        return found

    def _value(self, source: Json) -> str:
        """Return what an environment variable takes from elsewhere."""
        if "fieldRef" in source:
            return field(self.pod, source["fieldRef"]["fieldPath"])
        wanted = source["secretKeyRef"]
        secret = self._volumes.secret(wanted["name"])
        return base64.b64decode(secret[wanted["key"]]).decode()

    def _probe(self) -> bool:
        probe = self._container.get("readinessProbe")
        if probe is None:
            return True
        action = probe["httpGet"]
        url = f"http://{self.endpoint(action['port'])}{action['path']}"
        try:
            with urllib.request.urlopen(url, timeout=PROBE_TIMEOUT_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _report(self, phase: str, code: int = 0) -> None:
        state: Json = {"running": {"startedAt": self._started}}
        if phase != "Running":
            state = {"terminated": {"exitCode": code, "finishedAt": self._now()}}
        elif self.process is None:
            state = {"waiting": {"reason": "CrashLoopBackOff"}}
        image = self._container["image"]
        ready = "True" if self._is_ready and phase == "Running" else "False"
        kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        settled = kinds[:2]
        status = {
            "phase": phase,
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "startTime": self._started,
            "conditions": [
                {"type": kind, "status": "True" if kind in settled else ready} for kind in kinds
            ],
            "containerStatuses": [
                {
                    "name": self._container["name"],
                    "image": image,
                    "imageID": image,
                    "ready": ready == "True",
                    "restartCount": self.restarts,
                    "state": state,
                }
            ],
        }
        shown = json.dumps(status)
        if shown != self._reported:
            with contextlib.suppress(urllib.error.HTTPError):  # it is gone meanwhile
                self._server.ask("PATCH", f"{self.path}/status", {"status": status})
            self._reported = shown

    @staticmethod
    def _now() -> str:
        return f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}"


def kept_environment() -> dict[str, str]:
    """Return what a process needs of ours: the mark of the test session, and a PATH."""
    return {name: os.environ[name] for name in ("PATH", MARK)}


class PlayedNode:
    """The node, while it is entered. Its heart beats, and it runs what is bound to it."""

    def __init__(self, kubeconfig: Path, root: Path, name: str = "real-0") -> None:
        self.name = name
        self.pods: dict[str, PlayedPod] = {}
        """By UID; the node's thread adds to it."""
        self.failure: BaseException | None = None
        self._server = Server(kubeconfig)
        self._root = root
        self._hosts = root / "hosts"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._beat_at = 0.0
        self._addresses = 1

    def __enter__(self) -> Self:
        self._root.mkdir(parents=True, exist_ok=True)
        self._hosts.write_text("127.0.0.1 localhost\n")
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}}
        self._server.ask("POST", "/api/v1/nodes", node)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()
        for pod in self.pods.values():
            pod.kill()
        self._server.ask("DELETE", f"/api/v1/nodes/{self.name}")

    def named(self, name: str) -> PlayedPod:
        """Return the pod that is there under a name."""
        return [pod for pod in list(self.pods.values()) if pod.pod["metadata"]["name"] == name][-1]

    def endpoints(self, service: Json, port: str) -> list[str]:
        """Return what kube-proxy would choose from: the Ready pods behind a port of a Service."""
        [wanted] = [each for each in service["spec"]["ports"] if each["name"] == port]
        return [
            pod.endpoint(wanted["targetPort"])
            for pod in list(self.pods.values())
            if pod.is_ready
            and service["spec"]["selector"].items() <= pod.pod["metadata"]["labels"].items()
        ]

    def logs(self) -> str:
        return "\n".join(
            f"--- {pod.pod['metadata']['name']}\n{pod.log.read_text()}"
            for pod in list(self.pods.values())
            if pod.log.exists()
        )

    def _run(self) -> None:
        try:
            while not self._stop.wait(POLL_S):
                self._beat()
                self._turn()
        except BaseException as error:
            self.failure = error
            raise

    def _turn(self) -> None:
        listed = self._server.ask("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={self.name}")
        bound = {pod["metadata"]["uid"]: pod for pod in listed["items"]}
        for uid, pod in bound.items():
            if uid not in self.pods:
                self._addresses += 1
                place = self._root / uid
                place.mkdir()
                address = f"{NETWORK}.{self._addresses // 250}.{self._addresses % 250 + 1}"
                self.pods[uid] = PlayedPod(self._server, pod, address, place, self._hosts)
                self._name_services()
            self.pods[uid].step(pod)
        for uid in self.pods.keys() - bound.keys():
            self.pods[uid].kill()  # deleted by force

    def _name_services(self) -> None:
        """Write names of Services whose pods are here, in place: the file is mounted."""
        lines = ["127.0.0.1 localhost"]
        for service in self._server.ask("GET", "/api/v1/services")["items"]:
            wanted = (service["spec"].get("selector") or {}).items()
            lines += [
                f"{pod.address} {service['metadata']['name']}"
                for pod in self.pods.values()
                if wanted and wanted <= pod.pod["metadata"]["labels"].items()
            ]
        self._hosts.write_text("\n".join(lines) + "\n")

    def _beat(self) -> None:
        now = time.monotonic()
        if now < self._beat_at:
            return
        self._beat_at = now + HEARTBEAT_S
        stamp = PlayedPod._now()
        capacity = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "Played", "message": ""}
        status = {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{**ready, "lastHeartbeatTime": stamp}],
        }
        self._server.ask("PATCH", f"/api/v1/nodes/{self.name}/status", {"status": status})
