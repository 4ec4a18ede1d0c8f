"""Redis as fleet plays it: it loads for 3 s, answers `redis-cli ping`, and saves before it ends."""

from fleet.clock import NS_PER_S
from fleet.k8s.pods import ContainerSpec, Pod, ProbeSpec
from fleet.profile.container_behavior import LogBehavior, ProbeAnswer, ProbeBehavior, ProbePhase
from fleet.runtime.program import Process, Program, Run, says

LOADING = ProbePhase(answer=ProbeAnswer.FAILURE, output="LOADING Redis is loading\n")


class Redis(Program):
    """A server: what is not said here is as its role asks."""

    is_server = True

    def exec(self, process: Process, words: tuple[str, ...]) -> Run | None:
        return says("PONG\n") if words[:2] == ("redis-cli", "ping") else None

    def probe(self, pod: Pod, spec: ContainerSpec, probe: ProbeSpec) -> ProbeBehavior | None:
        return ProbeBehavior((LOADING, ProbePhase(3 * NS_PER_S)))

    def log(self, process: Process, term_ns: int | None = None) -> LogBehavior:
        return LogBehavior(template="Ready to accept connections tcp", max_lines=1)


def program_of(pod: Pod, spec: ContainerSpec) -> Program | None:
    """Return the program of containers whose image is Redis."""
    return Redis() if "/redis:" in f"/{spec.image}:" else None
