"""What agnhost's servers answer to probes of the network, over their lives.

Source: test/images/agnhost/liveness/server.go, test-webserver/test-webserver.go,
grpc-health-checking/grpc-health-checking.go; pkg/probe/http/http.go, RedirectChecker.
Differs: any other server passes every probe.
"""

from functools import lru_cache
from urllib.parse import parse_qs, urlsplit

from fleet.clock import NS_PER_S
from fleet.k8s.pods import ContainerSpec, ProbeSpec
from fleet.profile.container_behavior import ALWAYS_GOOD, ProbeAnswer, ProbeBehavior, ProbePhase

from .images import is_agnhost_image

PORTS = {"liveness": 8080, "test-webserver": 80, "grpc-health-checking": 5000}
"""The one port on which each of these listens."""
_ALIVE_NS = 10 * NS_PER_S
_TURNS_BAD = (
    ProbePhase(),
    ProbePhase(_ALIVE_NS, answer=ProbeAnswer.FAILURE, status_code=500),
)
_NOT_FOUND = (ProbePhase(answer=ProbeAnswer.FAILURE, status_code=404),)
_REFUSED = (ProbePhase(answer=ProbeAnswer.REFUSED),)


def behavior_of_server(spec: ContainerSpec, probe: ProbeSpec) -> ProbeBehavior:
    """Return what a probe finds while a container runs."""
    words = spec.command + spec.args
    program = words[0] if words and not spec.command else words[1] if len(words) > 1 else ""
    if program not in PORTS or not is_agnhost_image(spec.image):
        return ALWAYS_GOOD
    if probe.port != PORTS[program]:
        return ProbeBehavior(_REFUSED)
    is_liveness = program == "liveness" and probe.handler == "httpGet"
    return _liveness(probe.host, probe.path) if is_liveness else ALWAYS_GOOD


@lru_cache(maxsize=1024)
def _liveness(host: str, path: str) -> ProbeBehavior:
    asked = urlsplit(path)
    if asked.path == "/started":
        return ALWAYS_GOOD
    if asked.path == "/healthz":
        return ProbeBehavior(_TURNS_BAD)
    if asked.path != "/redirect":
        return ProbeBehavior(_NOT_FOUND)
    target = parse_qs(asked.query).get("loc", [""])[0]
    where = urlsplit(target)
    if where.hostname not in {None, host}:
        body = f'<a href="{target}">Found</a>.\n\n'
        return ProbeBehavior((ProbePhase(answer=ProbeAnswer.WARNING, output=body),))
    return _liveness(host, target) if where.path != asked.path else ProbeBehavior(_NOT_FOUND)
