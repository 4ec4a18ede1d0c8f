"""One probe and what comes out of it, in the words of the real probers.

Source: pkg/kubelet/prober/prober.go, probe, runProbeWithRetries; pkg/probe/exec, http, tcp, grpc;
k8s.io/cri-client remote_runtime.go, execSyncV1; Go's net and net/http for the texts of errors.
Differs: nothing is connected to: the behaviour of the pod says how an attempt ends.
"""

import re
from urllib.parse import quote, unquote_to_bytes

from fleet.clock import NS_PER_S
from fleet.k8s.addresses import host_port
from fleet.k8s.pods import ContainerSpec, Pod, ProbeSpec
from fleet.kubelet.events import Reason
from fleet.profile.container_behavior import (
    ALWAYS_GOOD,
    ProbeAnswer,
    ProbeAttempt,
    ProbeBehavior,
    ProbeKind,
    ProbePhase,
    attempt,
)
from fleet.profile.pod_behavior import ContainerBehavior
from fleet.profile.release import Release
from fleet.quantity import format_duration
from fleet.runtime.programs import probe_of, program_of

KIND_TEXTS = ("Startup", "Readiness", "Liveness")
STATUS_CODE = 503
EXEC_ERROR = (
    "rpc error: code = Unknown desc = failed to exec in container: "
    "container is in CONTAINER_EXITED state"
)
_NOT_SERVING = 'service unhealthy (responded with "NOT_SERVING")'
_CLIENT_TIMEOUT = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
_ESCAPED = re.compile(r"(?:[\w\-.~!$&'()*+,/:;=@\[\]#]|%[0-9A-Fa-f]{2})*", re.ASCII)
_CANCELLED = "rpc error: code = Canceled desc = context canceled"
CANCELLED = ProbeBehavior((ProbePhase(answer=ProbeAnswer.ERROR, output=_CANCELLED),))
"""What the commands of a pod that ends come to."""


def behavior_of(
    pod: Pod, spec: ContainerSpec, probe: ProbeSpec, kind: ProbeKind, chosen: ContainerBehavior
) -> ProbeBehavior:
    """Return what a probe finds: as declared, else as the container's program says.

    Of what nobody knows it finds what it asks for, whatever the port.
    """
    declared = chosen.probes.of(kind)
    if declared is not ALWAYS_GOOD:
        return declared
    return probe_of(pod, spec, probe, program_of(pod, spec), chosen)


def run_probe(
    probe: ProbeSpec, behavior: ProbeBehavior, age_ns: int, failure: float, latency: float
) -> ProbeAttempt:
    """Return how one attempt ends at an age of the container; the two draws are of [0, 1)."""
    phase = behavior.at(age_ns)[0]
    if probe.error or probe.lost_port:
        return ProbeAttempt(ProbeAnswer.ERROR, 0, phase)
    timeout_ns = probe.timeout_s * NS_PER_S
    found = attempt(phase, timeout_ns, failure, latency)
    if found.answer is ProbeAnswer.REFUSED and probe.handler == "grpc":
        return found._replace(took_ns=timeout_ns)  # its client dials until the time is over
    return found


def probe_event(
    kind: ProbeKind, probe: ProbeSpec, found: ProbeAttempt, pod_ip: str, release: Release
) -> tuple[Reason, str] | None:
    """Return the reason and message of the event that an attempt leaves, None for a success."""
    text = KIND_TEXTS[kind]
    answer = found.answer
    if answer is ProbeAnswer.SUCCESS or (
        answer is ProbeAnswer.WARNING and probe.handler != "httpGet"
    ):
        return None
    if answer is ProbeAnswer.WARNING:
        output = f"Probe terminated redirects, Response body: {found.phase.output}"
        return Reason.PROBE_WARNING, f"{text} probe warning: {output}"
    if answer is ProbeAnswer.ERROR:
        lost = release.lost_port_text.format(probe.lost_port) if probe.lost_port else ""
        error = probe.error or lost or found.phase.output or EXEC_ERROR
        return Reason.UNHEALTHY, f"{text} probe errored and resulted in unknown state: {error}"
    return Reason.UNHEALTHY, f"{text} probe failed: {_output(probe, found, pod_ip)}"


def _output(probe: ProbeSpec, found: ProbeAttempt, pod_ip: str) -> str:
    """Return what a handler says of a failed attempt."""
    timed_out = found.answer is ProbeAnswer.TIMEOUT
    within = format_duration(probe.timeout_s * NS_PER_S)
    if probe.handler == "exec":
        command = " ".join(probe.command)
        timeout = f'command timed out: "{command}" timed out after {within}'
        return timeout if timed_out else found.phase.output
    address = host_port(probe.host or pod_ip, probe.port)
    if probe.handler == "grpc":
        return _grpc_output(found, address, within)
    refused = f"dial tcp {address}: connect: connection refused"
    if probe.handler == "tcpSocket":
        return f"dial tcp {address}: i/o timeout" if timed_out else refused
    if found.answer is ProbeAnswer.FAILURE:
        return f"HTTP probe failed with statuscode: {found.phase.status_code or STATUS_CODE}"
    path, mark, query = probe.path.partition("?")
    if not _ESCAPED.fullmatch(path):  # net/url, EscapedPath: as it is, or with each part escaped
        path = quote(unquote_to_bytes(path), safe="$&+,/:;=@#")
    url = f"{probe.scheme}://{address}/{path.removeprefix('/')}{mark}{query}"
    return f'Get "{url}": {_CLIENT_TIMEOUT if timed_out else refused}'


def _grpc_output(found: ProbeAttempt, address: str, within: str) -> str:
    if found.answer is ProbeAnswer.TIMEOUT:
        return f"timeout: health rpc did not complete within {within}"
    if found.answer is ProbeAnswer.FAILURE:
        return _NOT_SERVING
    error = "context deadline exceeded"
    return f'timeout: failed to connect service "{address}" within {within}: {error}'
