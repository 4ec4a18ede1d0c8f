"""What the requests of each pool repeat: one plan for all pools with the same user agent."""

from collections.abc import Callable

from fleet.wire.http2.hpack import HeaderPlan

UserAgent = bytes | Callable[[int], bytes]
"""Of all pools, or of each by its number."""


class HeaderPlans:
    """Makes the plan of a pool, and makes all anew once the token has rotated."""

    __slots__ = ("_accept", "_authority", "_authorization", "_group", "_plans", "_user_agent")

    def __init__(
        self,
        authority: bytes,
        user_agent: UserAgent,
        authorization: bytes | None,
        accept: bytes,
        group: bytes,
    ) -> None:
        self._authority = authority
        self._user_agent = user_agent
        self._authorization = authorization
        self._accept = accept
        self._group = group
        self._plans: dict[bytes, HeaderPlan] = {}  # by user agent

    def of(self, pool: int) -> HeaderPlan:
        """Return the plan of a pool."""
        agent = self._user_agent if isinstance(self._user_agent, bytes) else self._user_agent(pool)
        plan = self._plans.get(agent)
        if plan is None:
            plan = HeaderPlan(
                self._authority, self._authorization, agent, self._accept, self._group
            )
            self._plans[agent] = plan
        return plan

    def rotate(self, authorization: bytes | None, group: bytes | None) -> None:
        """Let plans that are made from now on carry another token, and another group if given."""
        if group is not None:
            self._group = group
        self._authorization = authorization
        self._plans.clear()
