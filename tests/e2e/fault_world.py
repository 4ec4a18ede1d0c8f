"""What tests of faults share: nodes that are quick to speak, their names, orders to a run."""

import asyncio

import yaml

from e2e.e2e_world import Json, Running, World
from fleet.profile.loader import show_profile
from fleet.run.control_socket import ask


def lively(world: World, name: str = "lively", **spec: object) -> str:
    """Name a profile whose kubelets speak every 2 s, and for whom a pressure is over in 5.

    `spec` is what else it says; such a profile has a name of its own.
    """
    profile = yaml.safe_load(show_profile("default"))
    profile["spec"]["kubeletConfiguration"] |= {
        "nodeLeaseDurationSeconds": 8,
        "nodeStatusUpdateFrequency": "4s",
        "evictionPressureTransitionPeriod": "5s",
    }
    profile["metadata"]["name"] = name
    profile["spec"] |= spec
    path = world.root / f"{name}.yaml"
    path.write_text(yaml.safe_dump(profile))
    return f"--profile={path}"


def order(run: Running, **order: object) -> Json:
    """Give an order as `fleet inject` does, without the start of a program."""
    return asyncio.run(ask(run.directory, order))
