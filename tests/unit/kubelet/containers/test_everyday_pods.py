"""Everyday pods on a virtual kubelet, in virtual time: they come up, they end, they are stopped."""

from dataclasses import replace
from typing import Any

import pytest
import yaml
from world.everyday_pods import objects_of, pod_of
from world.pod_world import SCHEDULED, World, container, make_pod

from fleet.clock import NS_PER_S
from fleet.k8s.effects import EventObject
from fleet.k8s.pods import ContainerStatus, TerminatedState
from fleet.wire.api.decode_pod import decode_pod

UID = "4b2f10c5-2d5e-4d5e-9b8e-000000000001"
SERVERS = [*objects_of("probes"), *objects_of("init-containers")]
JOBS = list(objects_of("batch-commands"))


def named(obj: dict[str, Any]) -> str:
    return str(obj["metadata"]["name"])


def world_with(obj: dict[str, Any], seconds: float = 30, **annotations: str) -> World:
    world = World()
    pod = decode_pod(pod_of(obj, UID))
    pod.status = SCHEDULED
    pod.annotations = tuple(
        sorted((f"fleet.emulator/{key}", value) for key, value in annotations.items())
    )
    world.create(pod)
    world.run(seconds)
    return world


def pod(spec: str) -> dict[str, Any]:
    """Return a pod of one container."""
    return {"kind": "Pod", "metadata": {"name": "p"}, "spec": yaml.safe_load(spec)}


@pytest.mark.parametrize("obj", SERVERS, ids=named)
def test_servers_become_ready_and_stay_so(obj: dict[str, Any]) -> None:
    world = world_with(obj, 120)
    status = world.pods[UID].status
    assert (status.phase, world.condition("Ready", UID).status) == ("Running", "True")
    assert all(each.restart_count == 0 for each in (*status.containers, *status.init_containers))


@pytest.mark.parametrize("obj", JOBS, ids=named)
def test_jobs_complete_within_seconds(obj: dict[str, Any]) -> None:
    assert world_with(obj, 12).pods[UID].status.phase == "Succeeded"


def ended(status: ContainerStatus) -> TerminatedState:
    assert isinstance(status.state, TerminatedState), status
    return status.state


@pytest.mark.parametrize(
    ("program", "phase"),
    [
        ("image: x, command: [bash, -l]", "Succeeded"),
        ("image: x, args: [sh]", "Succeeded"),
        ("image: x, args: [sh], stdin: true", "Running"),
    ],
)
def test_a_shell_without_an_input_ends_at_once(program: str, phase: str) -> None:
    spec = "{restartPolicy: Never, containers: [{name: c, %s}]}"
    assert world_with(pod(spec % program), 5).pods[UID].status.phase == phase


@pytest.mark.parametrize(("frequency_s", "least", "most"), [(60, 1, 9), (10, 12, 30)])
def test_a_back_off_is_looked_at_each_sync_period(frequency_s: int, least: int, most: int) -> None:
    world = World()
    kubelet = world.env.model.kubelet.model_copy(
        update={"sync_frequency_ns": frequency_s * NS_PER_S}
    )
    world.env.model = replace(world.env.model, kubelet=kubelet)
    world.create(make_pod(container("c", "false")))
    world.run(300)
    told = [each.payload for each in world.calls if isinstance(each.payload, EventObject)]
    assert least <= max(each.times for each in told if each.reason == "BackOff") <= most


TERM = """
{restartPolicy: %s, containers: [{name: c, image: x, command: %s}]}
"""


@pytest.mark.parametrize(
    ("restarts", "command", "code", "took_s"),
    [
        ("Never", '[sleep, "3600"]', 137, 8),
        ("Always", '[sleep, "3600"]', 137, 8),
        ("Always", "[sh, -c, 'while true; do sleep 1; done']", 137, 8),
        ("Always", "[tail, -f, /dev/null]", 137, 8),
        ("Always", "[sh], stdin: true", 137, 8),
        ("Never", "[sh, -c, \"trap '' TERM; while true; do sleep 1; done\"]", 137, 8),
        ("Never", "[sh, -c, \"trap 'exit 3' TERM; while true; do sleep 1; done\"]", 3, 1),
        ("Never", "[sh, -c, \"trap 'sleep 3; exit 0' TERM; while true; do sleep 1; done\"]", 0, 4),
        ("Never", "[sh, -c, \"trap 'exit 0' TERM; sleep 3600\"]", 137, 8),
        ("Never", "[sh, -c, \"trap 'exit 0' TERM; sleep infinity\"]", 137, 8),
        ("Never", "[sh, -c, \"trap 'exit 0' TERM; tail -f /dev/null\"]", 137, 8),
        ("Never", "[sh, -c, \"trap 'exit 4' TERM; while :; do :; done\"]", 4, 0),
        ("Never", "[sh, -c, \"trap 'exit 5' TERM; serve & wait\"]", 5, 0),
        ("Never", "[sh, -c, \"trap 'exit 0' TERM; exec serve\"]", 143, 0),
        ("Never", "[serve]", 143, 0),
        ("OnFailure", "[serve]", 143, 0),
        ("Always", "[serve]", 0, 0),
        ("Always", "[sh, -c, 'setup; exec serve']", 0, 0),
        ("Always", "[sh, -c, 'sleep 3000; exec serve']", 137, 8),
    ],
)
def test_sigterm_as_pid_1_gets_it(restarts: str, command: str, code: int, took_s: int) -> None:
    world = world_with(pod(TERM % (restarts, command)), 20.5)
    world.delete(UID, 8)
    world.run(2)
    assert (UID in world.pods) is (took_s > 2)
    world.run(10)
    assert UID not in world.pods
    state = ended(world.statuses[-1].containers[0])
    assert state.exit_code == code
    deleted_s = world.env.wall_s(0) + 20
    assert 0 <= state.finished_s - deleted_s - took_s <= 1


@pytest.mark.parametrize("shared", ["shareProcessNamespace", "hostPID"])
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ('[sleep, "3600"]', 143),
        ("[sh, -c, 'while true; do sleep 1; done']", 143),
        ("[sh, -c, \"trap '' TERM; while true; do sleep 1; done\"]", 137),
        ('[sh, -c, "trap S=1 TERM; while true; do sleep 1; done"]', 137),
        ("[sh, -c, \"trap 'exit 3' TERM; while true; do sleep 1; done\"]", 3),
        ("[serve]", 0),
    ],
)
def test_sigterm_where_processes_are_shared(shared: str, command: str, code: int) -> None:
    obj = pod(TERM % ("Always", command))
    obj["spec"][shared] = True
    world = world_with(obj, 20.5)
    world.delete(UID, 8)
    world.run(2)
    assert (UID in world.pods) is (code == 137)
    world.run(10)
    assert ended(world.statuses[-1].containers[0]).exit_code == code


@pytest.mark.parametrize(
    ("pre_stop", "took_s"),
    [
        ("{exec: {command: [sh, -c, 'nginx -s quit; sleep 10']}}", 10),
        ("{exec: {command: [/bin/drain]}}", 0),
        ("{exec: {command: [sh, -c, 'sleep 10 && exec drain']}}", 10),
        ("{exec: {command: [sh, -c, 'sleep 5; drain & wait']}}", 5),
        ("{exec: {command: [sleep, infinity]}}", 30),
        ("{sleep: {seconds: 7}}", 7),
        ("{httpGet: {path: /quit, port: 15020}}", 0),
        ("{httpGet: {path: /quit, port: 80, host: 203.0.113.9}}", 0),
    ],
)
def test_a_hook_takes_as_long_as_it_sleeps(pre_stop: str, took_s: int) -> None:
    ports = "ports: [{containerPort: 8080}]"
    spec = "{containers: [{name: c, image: nginx, %s, lifecycle: {preStop: %s}}]}"
    world = world_with(pod(spec % (ports, pre_stop)))
    world.delete(UID, 30)
    world.run(max(took_s - 1, 0))
    assert UID in world.pods
    world.run(4)
    assert UID not in world.pods
    assert any("FAILED_PRE_STOP_HOOK" in each or "FailedPreStop" in each for each in world.log) is (
        took_s == 30
    )


LIVENESS = """
containers:
- name: c
  image: registry.example.net/app:1
  command: [/bin/sh, -c, %s]
  livenessProbe: {exec: {command: [cat, /tmp/healthy]}, periodSeconds: 5, initialDelaySeconds: 5}
"""


@pytest.mark.parametrize(
    ("script", "restarts"),
    [
        ("touch /tmp/healthy; sleep 30; rm -f /tmp/healthy; sleep 600", True),
        ("touch /tmp/healthy; sleep 600", False),
        ("rm -f /tmp/healthy; exec serve", True),
        ("rm -f /tmp/healthy; setup --healthy-file /tmp/healthy; exec serve", False),
        ("exec serve", False),
    ],
)
def test_a_probe_fails_where_a_script_contradicts(script: str, restarts: bool) -> None:  # noqa: FBT001
    world = world_with(pod(LIVENESS % f'"{script}"'), 100)
    assert (world.container(UID).restart_count > 0) is restarts


def test_what_is_declared_overrides_the_role() -> None:
    job = JOBS[0]
    assert world_with(job, 8, **{"run-time": "1h"}).pods[UID].status.phase == "Running"
    assert world_with(job, 8, **{"run-time": "1s", "exit-code": "3"}).pods[UID].status.phase == (
        "Failed"
    )
    world = world_with(pod(TERM % ("Never", "[serve]")), 3, **{"stop-exit-code": "0"})
    world.delete(UID, 8)
    world.run(3)
    assert world.statuses[-1].phase == "Succeeded"
