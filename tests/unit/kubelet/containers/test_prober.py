"""How attempts end, in the words of the real probers."""

import pytest
from world.pod_world import container, make_pod

from fleet.k8s.pods import ProbeSpec
from fleet.kubelet.containers.prober import EXEC_ERROR, behavior_of, probe_event, run_probe
from fleet.kubelet.events import Reason
from fleet.profile.container_behavior import (
    ProbeAnswer,
    ProbeBehavior,
    ProbeKind,
    ProbePhase,
    Probes,
)
from fleet.profile.pod_behavior import DEFAULT_CONTAINER, ContainerBehavior
from fleet.profile.release import release_of

S = 1_000_000_000
HTTP = ProbeSpec("httpGet", "http", port=8080, path="/healthz", timeout_s=1)
TCP = ProbeSpec("tcpSocket", port=8080, timeout_s=1)
GRPC = ProbeSpec("grpc", port=9090, timeout_s=2)
EXEC = ProbeSpec("exec", command=("cat", "/tmp/healthy"), timeout_s=90)
CLIENT = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"


def event(
    probe: ProbeSpec, answer: str, version: str = "1.36", **phase: object
) -> tuple[Reason, str] | None:
    found = ProbePhase(answer=ProbeAnswer(answer))._replace(**phase)  # type: ignore[arg-type]
    attempt = run_probe(probe, ProbeBehavior((found,)), 0, 0.0, 0.0)
    return probe_event(ProbeKind.LIVENESS, probe, attempt, "10.0.0.9", release_of(version))


@pytest.mark.parametrize(
    ("probe", "answer", "output"),
    [
        (HTTP, "Failure", "HTTP probe failed with statuscode: 503"),
        (
            HTTP._replace(path="/a (b)?c d"),
            "Refused",
            (
                'Get "http://10.0.0.9:8080/a%20%28b%29?c d": dial tcp 10.0.0.9:8080: '
                "connect: connection refused"
            ),
        ),
        (HTTP, "Timeout", f'Get "http://10.0.0.9:8080/healthz": {CLIENT}'),
        (TCP, "Failure", "dial tcp 10.0.0.9:8080: connect: connection refused"),
        (TCP, "Refused", "dial tcp 10.0.0.9:8080: connect: connection refused"),
        (TCP, "Timeout", "dial tcp 10.0.0.9:8080: i/o timeout"),
        (GRPC, "Failure", 'service unhealthy (responded with "NOT_SERVING")'),
        (
            GRPC,
            "Refused",
            (
                'timeout: failed to connect service "10.0.0.9:9090" within 2s: '
                "context deadline exceeded"
            ),
        ),
        (GRPC, "Timeout", "timeout: health rpc did not complete within 2s"),
        (EXEC, "Timeout", 'command timed out: "cat /tmp/healthy" timed out after 1m30s'),
        (EXEC, "Failure", ""),
        (EXEC, "Refused", ""),
    ],
)
def test_what_a_failed_attempt_says(probe: ProbeSpec, answer: str, output: str) -> None:
    assert event(probe, answer) == (Reason.UNHEALTHY, f"Liveness probe failed: {output}")


def test_what_is_declared_is_said() -> None:
    found = event(HTTP, "Failure", status_code=500)
    assert found == (
        Reason.UNHEALTHY,
        "Liveness probe failed: HTTP probe failed with statuscode: 500",
    )
    found = event(EXEC, "Failure", output="cat: /tmp/healthy: No such file or directory\n")
    assert found is not None
    assert found[1].endswith("failed: cat: /tmp/healthy: No such file or directory\n")


def test_a_redirect_is_a_warning_for_http_only() -> None:
    assert event(HTTP, "Warning", output="moved") == (
        Reason.PROBE_WARNING,
        "Liveness probe warning: Probe terminated redirects, Response body: moved",
    )
    assert event(TCP, "Warning") is None
    assert event(HTTP, "Success") is None


def test_errors() -> None:
    text = "Liveness probe errored and resulted in unknown state: "
    assert event(EXEC, "Error") == (Reason.UNHEALTHY, text + EXEC_ERROR)
    assert event(EXEC, "Error", output="boom") == (Reason.UNHEALTHY, f"{text}boom")
    assert event(HTTP._replace(error="no port"), "Success") == (Reason.UNHEALTHY, f"{text}no port")
    for version, why in (
        ("1.36", 'strconv.Atoi: parsing "web": invalid syntax'),
        ("1.37", 'port "web" not found'),
    ):
        found = event(HTTP._replace(lost_port="web"), "Success", version)
        assert found == (Reason.UNHEALTHY, text + why)


def test_hosts_and_paths() -> None:
    probe = HTTP._replace(scheme="https", host="::1", path="x?y=1")
    found = event(probe, "Refused")
    assert found is not None
    assert 'Get "https://[::1]:8080/x?y=1": dial tcp [::1]:8080:' in found[1]


def test_a_grpc_client_dials_until_its_time_is_over() -> None:
    phases = ProbeBehavior((ProbePhase(answer=ProbeAnswer.REFUSED),))
    assert run_probe(GRPC, phases, 0, 0.0, 0.0).took_ns == 2 * S
    assert run_probe(HTTP, phases, 0, 0.0, 0.0).took_ns == 0


@pytest.mark.parametrize(
    ("command", "answer", "took_s", "output"),
    [
        (("false",), "Failure", 0, ""),
        (("true",), "Success", 0, ""),
        (("sh", "-c", "echo no; exit 3"), "Failure", 0, "no\n"),
        (("sh", "-c", "sleep 1; exit 1"), "Failure", 1, ""),
        (("sleep", "91"), "Timeout", 90, ""),
        (("cat", "/tmp/healthy"), "Success", 0, ""),
        (("pg_isready",), "Success", 0, ""),
    ],
)
def test_a_command_that_is_understood_decides(
    command: tuple[str, ...], answer: str, took_s: int, output: str
) -> None:
    probe = EXEC._replace(command=command)
    spec = container("c")
    usual = behavior_of(make_pod(spec), spec, probe, ProbeKind.LIVENESS, DEFAULT_CONTAINER)
    found = run_probe(probe, usual, 0, 0.0, 0.0)
    assert (found.answer.value, found.took_ns, found.phase.output) == (answer, took_s * S, output)
    passing = ProbeBehavior((ProbePhase(),))
    told = ContainerBehavior(probes=Probes(liveness=passing))
    declared = behavior_of(make_pod(spec), spec, probe, ProbeKind.LIVENESS, told)
    assert declared is passing


def test_durations_are_printed_as_go_does() -> None:
    for seconds, text in ((1, "1s"), (60, "1m0s"), (3600, "1h0m0s")):
        found = event(EXEC._replace(timeout_s=seconds), "Timeout")
        assert found is not None
        assert found[1].endswith(f" after {text}")
