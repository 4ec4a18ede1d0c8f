"""What a run asks of a control plane, of the simulated one: to be killed, and to create objects."""

import asyncio
from collections.abc import Callable, Mapping
from signal import SIGSTOP, Signals

from fleet.clock import Draws
from fleet.cluster.api_client import JSON, Answer
from fleet.errors import SetupError
from fleet.simulation.components import (
    APISERVER,
    CONTROLLER_MANAGER,
    ETCD,
    SCHEDULER,
    Components,
)
from fleet.simulation.strategic_merge import Object
from fleet.simulation.user_requests import UserRequests

REVIVED_S = 2.0
"""A component that is started again is ready after so long."""
WAITS_S = (0.3, 0.9, 2.7, 5.0, 5.0)
"""Between tries of a request of fleet's own, as in cluster/api_client.py."""
LATENCY_S = 0.002
_STREAM_API = 0xA91


class SimulatedPlane:
    """The components as faults know them."""

    def __init__(self, components: Components) -> None:
        self._components = components

    @property
    def pids(self) -> dict[str, int]:
        """Its components; there are no processes."""
        return dict.fromkeys((ETCD, APISERVER, SCHEDULER, CONTROLLER_MANAGER), 0)

    async def kill(self, component: str) -> None:
        """End a component."""
        self._components.fail(component, is_killed=True)

    async def revive(self, component: str) -> None:
        """Start a component that was killed."""
        await asyncio.sleep(REVIVED_S)
        self._components.mend(component)

    def signal(self, component: str, number: Signals) -> None:
        """Have a component stand still, or go on."""
        if number == SIGSTOP:
            self._components.fail(component, is_killed=False)
        else:
            self._components.mend(component)


class SimulatedApi:
    """The requests of fleet itself. Each takes some milliseconds, as the draws say."""

    def __init__(
        self,
        requests: UserRequests,
        components: Components,
        draws: Draws,
        record: Callable[[str, str, int], None],
    ) -> None:
        self._requests = requests
        self._components = components
        self._draws = draws
        self._record = record
        self._count = 0

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: object = None,
        content_type: str = JSON,
    ) -> Answer:
        """Ask. Raises SetupError when there is no answer at all."""
        del content_type  # of a PATCH it is a merge patch
        await self._pass_time()
        for wait_s in (*WAITS_S, 0.0):
            if self._components.works(APISERVER):
                break
            if not wait_s:
                raise SetupError(f"{method} {path}: the API server does not answer")
            await asyncio.sleep(wait_s)
        asked = {key: str(value) for key, value in (query or {}).items()}
        document: Object = body if isinstance(body, dict) else {}
        code, found = self._requests.handle(method, path, asked, document)
        self._record(method, path, code)
        await self._pass_time()
        return Answer(code, found)

    async def _pass_time(self) -> None:
        self._count += 1
        share = self._draws.uniform(0, _STREAM_API, self._count)
        await asyncio.sleep(LATENCY_S * (0.5 + share))
