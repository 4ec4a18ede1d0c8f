"""What the suite's plug-in says of probes of agnhost's servers."""

import pytest
from programs.liveness import behavior_of_server
from world.pod_world import container

from fleet.k8s.pods import ProbeSpec
from fleet.profile.container_behavior import ProbeAnswer

AGNHOST = "registry.k8s.io/e2e-test-images/agnhost:2.60"


@pytest.mark.parametrize(
    ("handler", "program", "port", "answer"),
    [
        ("httpGet", "test-webserver", 80, ProbeAnswer.SUCCESS),
        ("httpGet", "test-webserver", 81, ProbeAnswer.REFUSED),
        ("tcpSocket", "liveness", 8080, ProbeAnswer.SUCCESS),
        ("tcpSocket", "liveness", 8081, ProbeAnswer.REFUSED),
        ("grpc", "grpc-health-checking", 5000, ProbeAnswer.SUCCESS),
        ("grpc", "grpc-health-checking", 2333, ProbeAnswer.REFUSED),
        ("httpGet", "netexec", 81, ProbeAnswer.SUCCESS),
    ],
)
def test_a_server_answers_on_its_own_port(
    handler: str, program: str, port: int, answer: ProbeAnswer
) -> None:
    spec = container(image=AGNHOST)._replace(command=(), args=(program,))
    path = "/healthz" if handler == "httpGet" else ""
    found = behavior_of_server(spec, ProbeSpec(handler, port=port, path=path))
    assert found.at(0)[0].answer is answer
