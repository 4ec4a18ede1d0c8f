"""When credentials are renewed, and what it means if they cannot be.

    about to run out --renewed--> fresh
                     --it fails--> tried again later and later; the old ones serve until they end
    run out, or refused with a 401 --it fails--> requests fail, with the reason

Source: client-go/plugin/pkg/client/auth/exec/exec.go: one plugin at a time (getCreds), a 401 runs
it again unless somebody has (maybeRefreshCreds), a failure is told to whoever asks.
Differs: it begins five minutes before the end (the library's EXPIRY_SKEW_PREVENTION_DELAY), where
client-go waits for the end; a plugin that is throttled has time then, and waits between its tries.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from fleet.cluster.credentials import Credentials
from fleet.errors import FleetError, SetupError

LOOK_EVERY_S = 30.0  # reading a kubeconfig's token file costs more than sending a request
BACKOFF_FIRST_S = 2.0
BACKOFF_MAX_S = 60.0  # some eight tries in the five minutes before the end
PATIENCE_S = 1.0
"""A request waits so long for a renewal that it could do without; a plugin may ask a person."""
PLUGIN_S_MAX = 60.0
"""And so long for one that it needs."""

log = logging.getLogger(__name__)


class Renewal:
    """Keeps one cluster's credentials fresh, for whoever calls `renew` before they are used."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        now_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._credentials = credentials
        self._now_s = now_s
        self._wall_s = wall_s
        self._due_s = 0.0
        self._failures = 0
        self._reason = ""  # of the last attempt, if it failed
        self._attempt: asyncio.Task[None] | None = None
        self.has_failed = False
        """Somebody needed new credentials and there were none."""

    async def renew(self, *, refused: tuple[object, ...] = ()) -> None:
        """Renew what is about to run out; wait for it only if nothing else may work.

        `refused` are the secrets that were answered with a 401. Raises SetupError when there are no
        credentials that may work.
        """
        if refused and self._credentials.secrets() != refused:
            return  # somebody has renewed them meanwhile
        is_needed = bool(refused) or self._has_run_out()
        is_due = self._now_s() >= self._due_s or (is_needed and not self._failures)
        if self._attempt is None and is_due:
            self._attempt = asyncio.create_task(self._try(force=bool(refused)))
        if self._attempt is not None:
            limit_s = PLUGIN_S_MAX if is_needed else PATIENCE_S
            await asyncio.wait({self._attempt}, timeout=limit_s)
        if not is_needed or (self._attempt is None and not self._reason):
            return
        self.has_failed = True
        raise SetupError(
            f"the credentials of context {self._credentials.context} "
            f"{'are refused' if refused else 'have run out'} and cannot be renewed: "
            f"{self._reason or f'no answer within {PLUGIN_S_MAX:.0f} s'}"
        )

    async def _try(self, *, force: bool) -> None:
        try:
            await self._credentials.refresh(force=force)
        except FleetError as error:
            self._reason = str(error)
            wait_s = min(BACKOFF_FIRST_S * 2.0**self._failures, BACKOFF_MAX_S)
            self._failures += 1
            rest = self._rest()
            log.warning("credentials: %s; tried again in %.0f s%s", error, wait_s, rest)
        else:
            if self._failures:
                log.warning("credentials: renewed, after %d failures", self._failures)
            self._reason, self._failures, wait_s = "", 0, LOOK_EVERY_S
        finally:
            self._attempt = None
        self._due_s = self._now_s() + wait_s

    def _has_run_out(self) -> bool:
        expires_s = self._credentials.expires_s
        return expires_s is not None and self._wall_s() >= expires_s

    def _rest(self) -> str:
        """Say how long requests can go on."""
        expires_s = self._credentials.expires_s
        if expires_s is None:
            return ""
        rest_s = expires_s - self._wall_s()
        if rest_s > 0:
            return f", the present ones last {rest_s:.0f} s more"
        return "; the present ones have run out, and requests fail"
