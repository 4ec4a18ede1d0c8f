"""The storage of a run: its drivers must not be in the cluster already; their controllers.

A driver is known by its name alone. Where a machine of the cluster runs one of the same name, its
volumes would be taken for simulated ones: such a run does not begin.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable

from fleet import __version__
from fleet.background import Background
from fleet.clock import Draws
from fleet.cluster.api_client import Api, Cluster
from fleet.cluster.cleanup import CSI_NODES, PATIENCE_S
from fleet.errors import SetupError
from fleet.profile.node_model import NodeModel
from fleet.profile.settings import Fidelity, Settings
from fleet.profile.volume_behavior import CSIDriver
from fleet.storage.csi_controller import CSIController

USER_AGENT = f"fleet-csi-controller/{__version__}"
PURPOSE = "csi-controller"
RELEASE_MAX_S = PATIENCE_S + 15.0


def drivers_of(models: Iterable[NodeModel]) -> dict[str, CSIDriver]:
    """Return the CSI drivers of a run by name."""
    return {driver.name: driver for model in models for driver in model.csi_drivers}


def controlled(drivers: dict[str, CSIDriver], fidelity: Fidelity) -> dict[str, CSIDriver]:
    """Return drivers as their controller sees them: light nodes expand nothing."""
    if fidelity is Fidelity.KUBELET:
        return drivers
    change = {"node_expansion": False}
    return {name: each.model_copy(update=change) for name, each in drivers.items()}


async def check_drivers(api: Api, models: Iterable[NodeModel], machines: Collection[str]) -> None:
    """Raise SetupError if a node that no fleet is the kubelet of has a driver of the run."""
    drivers = drivers_of(models)
    if not drivers or not machines:
        return
    async for page in api.pages(CSI_NODES, "CSINodes"):
        for item in page:
            name = item["metadata"]["name"]
            theirs = {each["name"] for each in item["spec"].get("drivers") or ()}
            shared = sorted(theirs.intersection(drivers))
            if name in machines and shared:
                raise SetupError(
                    f"CSI driver {shared[0]} is installed in this cluster (on node {name}): fleet "
                    "would act on its volumes; give the simulated driver of the profile another "
                    "name"
                )


async def simulate_csi(
    cluster: Cluster,
    models: Iterable[NodeModel],
    settings: Settings,
    background: Background,
    run: str,
    attach_problem: Callable[[str], str],
) -> None:
    """Be the controller of all CSI drivers of a run until cancelled; one shard is, for all.

    `attach_problem` says of a node by its name why nothing can be attached there, "" if it can.
    At the end our finalizers are taken off: nothing may wait for us on a cluster that stays.
    """
    drivers = controlled(drivers_of(models), settings.fidelity)
    if not drivers or settings.shard:
        return
    api = cluster.api(PURPOSE, USER_AGENT)
    patient = cluster.api(PURPOSE, USER_AGENT, PATIENCE_S)
    controller = CSIController(
        api, drivers.values(), Draws(settings.seed), background, run, attach_problem
    )
    try:
        await background.persist(PURPOSE, controller.run)
    finally:
        with contextlib.suppress(SetupError, TimeoutError):
            async with asyncio.timeout(RELEASE_MAX_S):
                await controller.release(patient)
