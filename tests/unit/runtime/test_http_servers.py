"""agnhost's liveness server, as httpGet probes find it."""

from urllib.parse import quote

import pytest
from world.pod_world import container

from fleet.clock import NS_PER_S
from fleet.profile.container_behavior import ALWAYS_GOOD, ProbeAnswer
from fleet.runtime.http_servers import behavior_of_server

IMAGE = "registry.k8s.io/e2e-test-images/agnhost:2.59"
LIVENESS = container("c", image=IMAGE, args=("liveness",))


def answers(path: str, host: str = "", port: int = 8080) -> list[tuple[ProbeAnswer, int]]:
    """Return what is found 9 and 11 seconds after the start."""
    behavior = behavior_of_server(LIVENESS, host, port, path)
    phases = [behavior.at(age_s * NS_PER_S)[0] for age_s in (9, 11)]
    return [(each.answer, each.status_code) for each in phases]


GOOD = (ProbeAnswer.SUCCESS, 0)


@pytest.mark.parametrize(
    "path", ["/healthz", f"/redirect?loc={quote('/healthz', safe='')}", "/redirect?loc=/healthz"]
)
def test_after_ten_seconds_it_is_no_longer_alive(path: str) -> None:
    assert answers(path) == [GOOD, (ProbeAnswer.FAILURE, 500)]


def test_other_pages() -> None:
    assert answers("/started") == [GOOD, GOOD]
    assert answers("/") == [(ProbeAnswer.FAILURE, 404)] * 2
    assert answers("/healthz", port=80) == [(ProbeAnswer.REFUSED, 0)] * 2


def test_a_redirect_to_elsewhere_is_not_followed() -> None:
    path = f"/redirect?loc={quote('http://0.0.0.0/', safe='')}"
    behavior = behavior_of_server(LIVENESS, "", 8080, path)
    [phase] = behavior.phases
    assert phase.answer is ProbeAnswer.WARNING
    assert phase.output == '<a href="http://0.0.0.0/">Found</a>.\n\n'


@pytest.mark.parametrize(
    "spec",
    [
        container("c", image=IMAGE, args=("netexec",)),
        container("c", image="nginx:1", args=("liveness",)),
        container("c", "liveness", image=IMAGE),
    ],
)
def test_any_other_server_is_always_alive(spec: object) -> None:
    assert behavior_of_server(spec, "", 8080, "/healthz") is ALWAYS_GOOD  # type: ignore[arg-type]


def test_its_command_may_be_given() -> None:
    spec = container("c", "/agnhost", "liveness", image=IMAGE)
    assert behavior_of_server(spec, "", 8080, "/healthz") is not ALWAYS_GOOD
