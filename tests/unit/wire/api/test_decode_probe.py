import pytest

from fleet.k8s.pod_template import decode_probe
from fleet.k8s.pods import ProbeSpec

PORTS = [{"name": "web", "containerPort": 8080}]
ENV = [{"name": "A", "value": "x"}, {"name": "B", "valueFrom": {"fieldRef": {}}}]


def decoded(probe: dict[str, object]) -> ProbeSpec:
    found = decode_probe({"ports": PORTS, "env": ENV, "livenessProbe": probe}, "livenessProbe")
    assert found is not None
    return found


def test_a_container_without_the_probe() -> None:
    assert decode_probe({"livenessProbe": {}}, "readinessProbe") is None


def test_what_is_not_given_has_the_defaults_of_the_api() -> None:
    assert decoded({"grpc": {"port": 9, "service": "s"}}) == ProbeSpec(
        "grpc",
        port=9,
        initial_delay_s=0,
        timeout_s=1,
        period_s=10,
        success_threshold=1,
        failure_threshold=3,
        termination_grace_s=None,
    )


def test_every_field() -> None:
    probe = {
        "httpGet": {"path": "/healthz", "port": "web", "scheme": "HTTPS", "host": "h"},
        "initialDelaySeconds": 1,
        "timeoutSeconds": 2,
        "periodSeconds": 3,
        "successThreshold": 4,
        "failureThreshold": 5,
        "terminationGracePeriodSeconds": 0,
    }
    assert decoded(probe) == ProbeSpec(
        "httpGet", "https", "h", 8080, "/healthz", (), "", 1, 2, 3, 4, 5, 0
    )
    words = ["cat", "/f g", "$(A)$(B)", "$$(A)", "$(C)"]
    assert decoded({"exec": {"command": words}}).command == ("cat", "/f g", "x", "$(A)", "$(C)")


@pytest.mark.parametrize(
    ("port", "number", "error"),
    [
        (80, 80, ""),
        ("web", 8080, ""),
        ("81", 81, ""),
        ("other", 0, ""),
        ("0", 0, "invalid port number: 0"),
        (65536, 0, "invalid port number: 65536"),
    ],
)
def test_ports(port: object, number: int, error: str) -> None:
    probe = decoded({"tcpSocket": {"port": port}})
    assert (probe.port, probe.error) == (number, error)
    assert probe.lost_port == ("other" if port == "other" else "")


def test_a_probe_without_a_handler_cannot_be_run() -> None:
    assert decoded({"periodSeconds": 3}).error == "missing probe handler"
