"""The objects that scenes are made of."""

from oracle.normalisation import Json

PAUSE = "registry.k8s.io/pause:3.10.1"
SHELL = "registry.k8s.io/e2e-test-images/busybox:1.36"
ALWAYS = {"restartPolicy": "Always"}


def container(name: str = "c", script: str = "", image: str = "", **fields: object) -> Json:
    """Return a container that runs a script, or for ever."""
    made: Json = {"name": name, "image": image or (SHELL if script else PAUSE), **fields}
    if script:
        made["command"] = ["sh", "-c", script]
    return made


def pod(name: str, *containers: Json, notes: dict[str, str] | None = None, **spec: object) -> Json:
    """Return a pod; `notes` are fleet's annotations, which the simulated runtime reads."""
    notes = {f"fleet.emulator/{key}": value for key, value in (notes or {}).items()}
    metadata: Json = {"name": name}
    if notes:
        metadata["annotations"] = notes
    body: Json = {"containers": [*containers] or [container()]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"terminationGracePeriodSeconds": 3, **body, **spec},
    }


def config_map(name: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def secret(name: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}


def job(name: str, script: str, **spec: object) -> Json:
    """Return a Job of one pod that runs a script."""
    body: Json = {"containers": [container(script=script)], "restartPolicy": "Never"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": {"spec": body}, **spec},
    }


def probe(handler: Json, **fields: int) -> Json:
    return {"periodSeconds": 1, **handler, **fields}


def exec_probe(script: str, **fields: int) -> Json:
    return probe({"exec": {"command": ["sh", "-c", script]}}, **fields)


def http_probe(port: int = 8080, path: str = "/healthz", **fields: int) -> Json:
    return probe({"httpGet": {"port": port, "path": path}}, **fields)


def tcp_probe(port: int = 8080, **fields: int) -> Json:
    return probe({"tcpSocket": {"port": port}}, **fields)


def grpc_probe(port: int = 9090, **fields: int) -> Json:
    return probe({"grpc": {"port": port}}, **fields)


def resources(cpu: str = "", memory: str = "") -> Json:
    amounts = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value}
    return {"requests": amounts, "limits": amounts}
