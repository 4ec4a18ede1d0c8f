"""Plain Locust workers beside the fleet: API users from locustfiles."""

import os
from collections.abc import Sequence
from pathlib import Path

from fleet.controlplane.flags import LOOPBACK
from fleet.controlplane.process import Component
from fleet.dashboard.load_credentials import KUBECONFIG, NAMESPACE, RUN
from fleet.dashboard.locust_master import locust_with
from fleet.errors import SetupError, UsageError
from fleet.profile.loader import shipped_directory
from fleet.profile.secret_variables import without_secrets

END_S_MAX = 10.0


def find_loads(names: Sequence[Path]) -> tuple[Path, ...]:
    """Return the locustfiles that were named, shipped ones by their bare name. UsageError."""
    found = []
    for name in names:
        shipped = shipped_directory() / "loads" / f"{name}.py"
        path = name if name.is_file() else shipped
        if not path.is_file():
            known = ", ".join(sorted(each.stem for each in shipped.parent.glob("*.py")))
            raise UsageError(
                f"--load {name}: no such file, and no shipped load; there are: {known}"
            )
        found.append(path.absolute())
    return tuple(found)


class LoadWorker:
    """One plain Locust worker process."""

    def __init__(
        self, loads: Sequence[Path], kubeconfig: Path, directory: Path, run: str, namespace: str
    ) -> None:
        self._loads = loads
        self._told = {KUBECONFIG: str(kubeconfig), RUN: run, NAMESPACE: namespace}
        self._log = directory / "locust-users.log"

    async def serve(self, port: int) -> None:
        """Run it for the master on a port of loopback. Raises SetupError if it ends by itself."""
        command = [
            *locust_with(self._loads),
            *("--worker", "--master-host", LOOPBACK, "--master-port", str(port)),
        ]
        # A locustfile of others has no business with the dashboard's token, nor with the nodes'.
        environment = {**without_secrets(os.environ), **self._told}
        process = Component("API users", command, self._log, environment=environment)
        await process.start()
        try:
            death = await process.wait()
        finally:
            await process.stop(END_S_MAX)
        raise SetupError(str(death))
