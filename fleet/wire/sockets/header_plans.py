"""What the requests of each pool repeat: one plan for all pools with the same user agent."""

from collections.abc import Callable

from fleet.wire.http2.hpack import HeaderPlan

EXPIRED = b"Bearer expired"
"""What no server takes: it answers 401, as to a token that is over."""
UserAgent = bytes | Callable[[int], bytes]
"""Of all pools, or of each by its number."""


class HeaderPlans:
    """Makes the plan of a pool, and makes all anew once the token has rotated."""

    __slots__ = (
        "_accept",
        "_authority",
        "_group",
        "_over",
        "_plans",
        "_user_agent",
        "authorization",
    )

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
        self.authorization = authorization
        self._accept = accept
        self._group = group
        self._plans: dict[tuple[bytes, bool], HeaderPlan] = {}  # by user agent; with a bad token
        self._over: set[int] = set()  # pools whose token is over

    def of(self, pool: int) -> HeaderPlan:
        """Return the plan of a pool."""
        agent = self._user_agent if isinstance(self._user_agent, bytes) else self._user_agent(pool)
        key = (agent, pool in self._over)
        plan = self._plans.get(key)
        if plan is None:
            authorization = EXPIRED if key[1] else self.authorization
            plan = HeaderPlan(self._authority, authorization, agent, self._accept, self._group)
            self._plans[key] = plan
        return plan

    def rotate(self, authorization: bytes | None, group: bytes | None) -> None:
        """Let plans that are made from now on carry another token, and another group if given."""
        if group is not None:
            self._group = group
        self.authorization = authorization
        self._plans.clear()

    def expire(self, pool: int, *, is_over: bool) -> None:
        """Let the plan of a pool carry a token that is over, or again the one of all."""
        if is_over:
            self._over.add(pool)
        else:
            self._over.discard(pool)
