"""The judge's world and fleet's are one: what a probe finds in a container over CRI, and here."""

from dataclasses import dataclass

import pytest

from fleet.clock import NS_PER_S
from fleet.kubelet.containers.prober import behavior_of, run_probe
from fleet.profile.container_behavior import FOREVER, ProbeAnswer, ProbeKind
from oracle.cri.applications import EXEC, TCP, application
from oracle.cri.errors import CriError
from oracle.cri.exec_sync import Done, _plan, probe_behavior, try_probe
from oracle.cri.images import Images
from oracle.cri.machine import Machine
from oracle.cri.messages import message_class
from oracle.cri.pods import Pods
from oracle.cri.ports import Door, Ports, State
from oracle.cri.records import CriContainer
from oracle.cri_client import IMAGE, MACHINE, pod
from oracle.normalisation import Json
from oracle.objects_of_scenes import SHELL, exec_probe, grpc_probe, http_probe, tcp_probe

AGES_S = (0, 3, 7, 12, 30)
AGNHOST = "registry.k8s.io/e2e-test-images/agnhost:2.59"
NOTED = "Refused, Success after 5s, Failure after 10s, Timeout after 20s"
PORTS = {"ports": [{"name": "web", "containerPort": 8080}, {"containerPort": 9090}]}
SCRIPT = {"image": SHELL, "command": ["sh", "-c", "sleep 5; touch /tmp/ok; sleep 900"]}
CONTAINERS: dict[str, Json] = {
    "unknown": {"image": IMAGE},
    "unknown, with ports": {"image": IMAGE, **PORTS},
    "script": SCRIPT,
    "script, with ports": {**SCRIPT, **PORTS},
    "agnhost liveness": {"image": AGNHOST, "args": ["liveness"]},
    "agnhost netexec": {"image": AGNHOST, "args": ["netexec"], **PORTS},
    "agnhost pause": {"image": AGNHOST, "args": ["pause"], **PORTS},
    "agnhost netexec elsewhere": {"image": AGNHOST, "args": ["netexec", "--http-port=8081"]},
}
PROBES: dict[str, Json] = {
    "http": http_probe(),
    "http by name": {"httpGet": {"port": "web", "path": "/healthz"}},
    "http elsewhere": http_probe(port=7777, path="/started"),
    "tcp": tcp_probe(),
    "tcp elsewhere": tcp_probe(port=7777),
    "grpc": grpc_probe(),
    "exec": exec_probe("cat /tmp/ok"),
    "exec that fails": exec_probe("exit 3"),
}


@dataclass(frozen=True, slots=True)
class Still(Machine):
    """A machine whose time stands still."""

    at_ns: int = 0

    def now_ns(self) -> int:
        return self.at_ns


def container(made: Json, age_s: int) -> tuple[CriContainer, Still]:
    """Return a container of a pod as CRI has it when it has run for so long."""
    still = Still(MACHINE.model, MACHINE.draws, at_ns=age_s * NS_PER_S, wall_offset_ns=0)
    found = application(made, "c")
    assert found is not None
    empty = message_class("ContainerConfig")(metadata={"name": "c"})
    behavior = still.model.behavior_of(found.pod)
    one = CriContainer(
        *("id", "sandbox", empty, found.pod, found.spec, found, behavior),
        *("", "", "", 0, empty.linux.resources),
    )
    return one, still


def over_cri(made: Json, kind: ProbeKind, age_s: int) -> ProbeAnswer:
    """Return what a real kubelet's probe finds: at the door of its port, or from its command."""
    one, machine = container(made, age_s)
    assert one.application is not None
    [asked] = [each for each in one.application.asked if each.kind is kind]
    if asked.handler == EXEC:
        return of_command(*_plan(machine, one, asked.command))
    ports = Ports(machine, Pods(machine, Images(machine, _nobody), _nobody))
    state, _ = ports._state(one, Door("127.0.0.9", asked.port, (asked,)))
    if state is not State.OPEN:
        return ProbeAnswer.REFUSED if state is State.CLOSED else ProbeAnswer.TIMEOUT
    if asked.handler == TCP:
        return ProbeAnswer.SUCCESS
    return try_probe(machine, one, probe_behavior(one, [asked])).answer


def of_command(takes_ns: int, done: Done | CriError) -> ProbeAnswer:
    if isinstance(done, CriError):
        return ProbeAnswer.ERROR
    if takes_ns >= FOREVER:
        return ProbeAnswer.TIMEOUT
    return ProbeAnswer.FAILURE if done.exit_code else ProbeAnswer.SUCCESS


async def _nobody(_uid: str) -> Json | None:
    return None


def in_fleet(made: Json, kind: ProbeKind, age_s: int) -> ProbeAnswer:
    """Return what the probe of a virtual kubelet finds."""
    found = application(made, "c")
    assert found is not None
    spec = found.spec
    probe = (spec.startup_probe, spec.readiness_probe, spec.liveness_probe)[kind]
    assert probe is not None
    chosen = MACHINE.model.behavior_of(found.pod).container("c")
    behavior = behavior_of(found.pod, spec, probe, kind, chosen)
    answer = run_probe(probe, behavior, age_s * NS_PER_S, 0.5, 0.5).answer
    if probe.handler == TCP and answer is ProbeAnswer.FAILURE:
        return ProbeAnswer.SUCCESS  # it asks for a connection, and for nothing that is said on it
    if probe.handler == EXEC and answer is ProbeAnswer.REFUSED:
        return ProbeAnswer.FAILURE  # a command fails in one way
    return answer


CASES = [
    (name, probe)
    for name in CONTAINERS
    for probe in PROBES
    if "by name" not in probe or "ports" in CONTAINERS[name]
]
"""A port that has no number is asked by nobody."""


@pytest.mark.parametrize("note", ["", NOTED], ids=["undeclared", "declared"])
@pytest.mark.parametrize(("name", "probe"), CASES)
def test_a_probe_finds_the_same_in_both_worlds(name: str, probe: str, note: str) -> None:
    notes = {"fleet.emulator/readiness-probe": note} if note else {}
    made = pod(notes, **{**CONTAINERS[name], "readinessProbe": PROBES[probe]})
    kind = ProbeKind.READINESS
    found = {age_s: over_cri(made, kind, age_s) for age_s in AGES_S}
    assert found == {age_s: in_fleet(made, kind, age_s) for age_s in AGES_S}
