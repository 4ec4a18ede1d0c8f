"""What the web servers of known images answer to an httpGet probe, over their lives.

Source: test/images/agnhost/liveness/server.go; pkg/probe/http/http.go, RedirectChecker.
Differs: any other server answers 200 to everything.
"""

from functools import lru_cache
from urllib.parse import parse_qs, urlsplit

from fleet.clock import NS_PER_S
from fleet.k8s.pods import ContainerSpec
from fleet.profile.container_behavior import ALWAYS_GOOD, ProbeAnswer, ProbeBehavior, ProbePhase

from .images import is_agnhost_image

LIVENESS_PORT = 8080
_ALIVE_NS = 10 * NS_PER_S
_TURNS_BAD = (
    ProbePhase(),
    ProbePhase(_ALIVE_NS, answer=ProbeAnswer.FAILURE, status_code=500),
)
_NOT_FOUND = (ProbePhase(answer=ProbeAnswer.FAILURE, status_code=404),)
_REFUSED = (ProbePhase(answer=ProbeAnswer.REFUSED),)


def behavior_of_server(spec: ContainerSpec, host: str, port: int, path: str) -> ProbeBehavior:
    """Return what an httpGet of a path finds while a container runs; `host` is the probe's."""
    words = spec.command + spec.args
    program = words[0] if words and not spec.command else words[1] if len(words) > 1 else ""
    if program != "liveness" or not is_agnhost_image(spec.image):
        return ALWAYS_GOOD
    return _liveness(host, path) if port == LIVENESS_PORT else ProbeBehavior(_REFUSED)


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
