"""What can go wrong between kubelets and the API server: `inject` and `heal`, as in a real run.

A fault that is an instant (a lost connection, a compaction) heals by doing nothing. What a
connection suffers can be that of some nodes only; faults may overlap, and each heals by itself.
"""

import contextlib
import random
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import orjson
from support.mutate import misshapen, mutated

from fleet.clock import NS_PER_S
from world.api_server import Answer, refusal
from world.transport import Pools, SimTransport

CODES = (0, 100, 200, 201, 204, 301, 400, 401, 403, 404, 409, 410, 422, 429, 500, 503, 504, 999)
OTHERS_MAX = 40


class Fault(Protocol):
    def inject(self, transport: SimTransport) -> None: ...
    def heal(self, transport: SimTransport) -> None: ...


class ApiServerAnswers(NamedTuple):
    """Every request is answered with an error; open watches go on."""

    code: int
    retry_after_s: int = -1
    pools: Pools = None

    def _of(self, transport: SimTransport) -> tuple[Pools, Answer]:
        answer = refusal(self.code, "ServiceUnavailable")._replace(retry_after_s=self.retry_after_s)
        return self.pools, transport.server.encoded(answer)

    def inject(self, transport: SimTransport) -> None:
        transport.refusals.append(self._of(transport))

    def heal(self, transport: SimTransport) -> None:
        transport.refusals.remove(self._of(transport))


class ConnectionsRefused(NamedTuple):
    """The API server is down: what is open is lost, nothing new connects."""

    pools: Pools = None

    def inject(self, transport: SimTransport) -> None:
        transport.refusing.append(self.pools)
        transport.drop(self.pools)

    def heal(self, transport: SimTransport) -> None:
        transport.refusing.remove(self.pools)


class ConnectionsDropped(NamedTuple):
    """Every connection breaks once; what was on its way to the server still gets there."""

    pools: Pools = None

    def inject(self, transport: SimTransport) -> None:
        transport.drop(self.pools)

    def heal(self, transport: SimTransport) -> None:
        del transport


class RequestsVanish(NamedTuple):
    """Nothing is answered, and nothing fails before its time-out."""

    pools: Pools = None

    def inject(self, transport: SimTransport) -> None:
        transport.silent.append(self.pools)

    def heal(self, transport: SimTransport) -> None:
        transport.silent.remove(self.pools)


class AnswersSlow(NamedTuple):
    """Every request takes longer by so many seconds."""

    by_s: float
    pools: Pools = None

    def inject(self, transport: SimTransport) -> None:
        transport.slow.append((self.pools, int(self.by_s * NS_PER_S)))

    def heal(self, transport: SimTransport) -> None:
        transport.slow.remove((self.pools, int(self.by_s * NS_PER_S)))


class EventsLate(NamedTuple):
    """Every event of a watch comes later by so many seconds; answers do not."""

    by_s: float

    def inject(self, transport: SimTransport) -> None:
        transport.events_late_ns += int(self.by_s * NS_PER_S)

    def heal(self, transport: SimTransport) -> None:
        transport.events_late_ns -= int(self.by_s * NS_PER_S)


class ClockSteps(NamedTuple):
    """The wall clock of the fleet's machine is set forward by so many seconds, and right again."""

    by_s: float

    def inject(self, transport: SimTransport) -> None:
        transport.clock.stepped_ns = int(self.by_s * NS_PER_S)

    def heal(self, transport: SimTransport) -> None:
        transport.clock.stepped_ns = 0


class VersionsExpired(NamedTuple):
    """History is compacted and watches end: a client that goes on from a version gets 410."""

    def inject(self, transport: SimTransport) -> None:
        transport.server.compact()
        transport.server.end_watches()

    def heal(self, transport: SimTransport) -> None:
        del transport


class WatchesEnded(NamedTuple):
    """The server ends all watches in good order."""

    def inject(self, transport: SimTransport) -> None:
        transport.server.end_watches()

    def heal(self, transport: SimTransport) -> None:
        del transport


class AnswersMangled:
    """A share of all answers and pieces of streams is changed, doubled, put off or lost.

    What comes is other bytes of the same, a code of another answer, or JSON of another shape.
    """

    def __init__(self, seed: int, share: float) -> None:
        self._random = random.Random(seed)
        self._share = share
        self._others: list[bytes] = [b"{}"]
        self._late: list[bytes] = []
        self.count = 0

    def inject(self, transport: SimTransport) -> None:
        transport.mangle = self._mangle
        transport.server.expects_nonsense = True

    def heal(self, transport: SimTransport) -> None:
        transport.mangle = None

    def _mangle(self, what: bytes | Answer) -> Sequence[bytes | Answer]:
        draws = self._random
        data = what if isinstance(what, bytes) else what.body
        if len(self._others) < OTHERS_MAX or not draws.randrange(OTHERS_MAX):
            self._others = [*self._others[-OTHERS_MAX:], data]
        if draws.random() >= self._share:
            late, self._late = self._late, []
            return (what, *late)
        self.count += 1
        if isinstance(what, Answer):
            return (self._answer(what),)
        how = draws.randrange(5)
        if how == 0:
            return (what, what)
        if how == 1:
            self._late.append(what)
            return ()
        return (self._changed(what),)

    def _answer(self, answer: Answer) -> Answer:
        how = self._random.randrange(4)
        if how == 0:
            return answer._replace(code=self._random.choice(CODES))
        if how == 1:
            return answer._replace(body=self._random.choice(self._others))
        return answer._replace(body=self._changed(answer.body))

    def _changed(self, data: bytes) -> bytes:
        if data.startswith(b"{") and self._random.randrange(2):
            with contextlib.suppress(orjson.JSONDecodeError, IndexError):
                return misshapen(data, self._random)
        return mutated(data, self._random, self._others)


class Throttled(NamedTuple):
    """So many requests of one verb are answered with 429 and Retry-After: 1."""

    verb: str
    times: int

    def inject(self, transport: SimTransport) -> None:
        transport.server.throttles[self.verb] = self.times

    def heal(self, transport: SimTransport) -> None:
        transport.server.throttles.pop(self.verb, None)
