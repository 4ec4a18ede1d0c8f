"""Everyday workloads, in the shapes of public charts, and what a real cluster makes of them."""

from collections.abc import Iterator
from typing import Any

import yaml

PROBES = """
apiVersion: v1
kind: Pod
metadata: {name: mesh-sidecar}
spec:
  containers:
  - {name: app, image: nginx, ports: [{containerPort: 8080}]}
  - name: proxy
    image: registry.example.net/mesh/proxy:1
    ports: [{containerPort: 15090, name: metrics}]
    readinessProbe: {httpGet: {path: /healthz/ready, port: 15021}, periodSeconds: 2}
---
apiVersion: v1
kind: Pod
metadata: {name: dns}
spec:
  containers:
  - name: dns
    image: registry.k8s.io/coredns/coredns:v1.12.0
    ports: [{containerPort: 53, protocol: UDP}, {containerPort: 9153, name: metrics}]
    livenessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 2, failureThreshold: 3}
    readinessProbe: {httpGet: {path: /ready, port: 8181}, periodSeconds: 2}
---
apiVersion: v1
kind: Pod
metadata: {name: grpc}
spec:
  containers:
  - name: app
    image: registry.example.net/api:3
    ports: [{containerPort: 8443}]
    readinessProbe: {grpc: {port: 50051}, periodSeconds: 2}
---
apiVersion: v1
kind: Pod
metadata: {name: replica}
spec:
  containers:
  - name: db
    image: registry.example.net/db:5
    command: [sh, -c, "prepare --data /data && exec db --port 5432"]
    ports: [{containerPort: 9187}]
    startupProbe: {tcpSocket: {port: 5432}, periodSeconds: 2}
    readinessProbe: {exec: {command: [sh, -c, "db-ready -h 127.0.0.1 || exit 1"]}, periodSeconds: 2}
---
apiVersion: v1
kind: Pod
metadata: {name: starts}
spec:
  containers:
  - name: server
    image: registry.example.net/server:2
    command: [/bin/bash, -c, "/opt/setup.sh; /opt/server --config /etc/server.conf"]
    readinessProbe: {httpGet: {port: 9999}, periodSeconds: 2}
"""

INIT_CONTAINERS = """
apiVersion: v1
kind: Pod
metadata: {name: migrates}
spec:
  initContainers:
  - {name: wait-for-db, image: registry.example.net/wait-for:2, args: ["db:5432", "--timeout=60"]}
  - {name: migrate, image: registry.example.net/shop:7, command: [python, manage.py, migrate]}
  containers: [{name: web, image: registry.example.net/shop:7}]
---
apiVersion: v1
kind: Pod
metadata: {name: chowns}
spec:
  volumes: [{name: data, emptyDir: {}}]
  initContainers:
  - name: chown
    image: alpine:3
    command: [sh, -c, "chown -R 1000:1000 /data && sysctl -w vm.max_map_count=262144"]
    volumeMounts: [{name: data, mountPath: /data}]
  containers:
  - {name: db, image: registry.example.net/db:5, volumeMounts: [{name: data, mountPath: /data}]}
---
apiVersion: v1
kind: Pod
metadata: {name: waits}
spec:
  initContainers:
  - {name: dns, image: busybox, command: [sh, -c, "until nslookup db; do echo wait; sleep 2; done"]}
  - name: http
    image: registry.example.net/curl:8
    command: [sh, -c, 'while [ "$(curl -s -o /dev/null http://api/)" != "200" ]; do sleep 2; done']
  - {name: script, image: registry.example.net/tools:1, command: [/bin/sh, /scripts/init.sh]}
  - {name: proxy, image: registry.example.net/mesh/proxy:1, restartPolicy: Always}
  containers: [{name: web, image: registry.example.net/shop:7}]
"""

BATCH_COMMANDS = """
apiVersion: batch/v1
kind: Job
metadata: {name: computes}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: c, image: "perl:5.34.0", command: [perl, "-Mbignum=bpi", -wle, "print bpi(2000)"]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: hook}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: OnFailure
      containers: [{name: c, image: "registry.k8s.io/kubectl:v1.33.0", args: [version]}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: strict-shell}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: c
        image: bash
        command: [bash, -euo, pipefail, -c, "echo start; sleep 2; echo done"]
---
apiVersion: batch/v1
kind: Job
metadata: {name: meshed}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      initContainers:
      - {name: proxy, image: registry.example.net/mesh/proxy:1, restartPolicy: Always}
      containers:
      - name: c
        image: registry.example.net/backup:1
        command: [sh, -c, "dump | gzip > /b; put /b"]
"""

JOB_DISRUPTION = """
apiVersion: batch/v1
kind: Job
metadata: {name: trains}
spec:
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 5
      containers: [{name: c, image: busybox, command: [sleep, "3600"]}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: replaces}
spec:
  completions: 2
  parallelism: 2
  backoffLimit: 0
  podReplacementPolicy: Failed
  podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget}]}]}
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 5
      containers: [{name: c, image: registry.example.net/train:1, command: [train]}]
"""

PRESTOP = """
apiVersion: v1
kind: Pod
metadata: {name: drains}
spec:
  terminationGracePeriodSeconds: 30
  containers:
  - name: c
    image: nginx
    lifecycle: {preStop: {exec: {command: [sh, -c, "nginx -s quit; sleep 10"]}}}
"""

STUBBORN = """
apiVersion: v1
kind: Pod
metadata: {name: stubborn}
spec:
  terminationGracePeriodSeconds: 8
  restartPolicy: Never
  containers:
  - {name: c, image: busybox, command: [sh, -c, "trap '' TERM; while true; do sleep 1; done"]}
"""


def objects_of(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file."""
    yield from yaml.safe_load_all(text)


def pod_of(obj: dict[str, Any], uid: str) -> dict[str, Any]:
    """Return a pod, or the one that a controller would make of an object."""
    meta = {"name": obj["metadata"]["name"], "namespace": "default", "uid": uid}
    if obj["kind"] == "Pod":
        return {"metadata": meta, "spec": obj["spec"]}
    owner = {"kind": obj["kind"], "name": meta["name"], "uid": "owner", "controller": True}
    return {
        "metadata": {**meta, "ownerReferences": [owner]},
        "spec": obj["spec"]["template"]["spec"],
    }
