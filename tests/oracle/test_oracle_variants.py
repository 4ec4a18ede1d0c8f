"""More of `make oracle`: nodes that are configured otherwise.

`bare` has no cluster DNS, CPUs for pods alone, and a runtime that can do less; `asked` has clients
that its kubelet asks the API server about, and a file with many name servers and search domains;
`plugins` has devices, and `drivers` volumes of CSI drivers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.listed_differences import read_listed, too_often

from oracle import scenes_plugins, scenes_variants
from oracle.both_nodes import Told
from oracle.halves import TOLD, judged, marks, played
from oracle.judge import Body, Recording
from oracle.oracle_limits import LIMITS, PAGE

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = marks(900)

LISTED = read_listed(PAGE)


@dataclass(frozen=True, slots=True)
class Variant:
    """What both nodes are told, and the scenes that are played on them."""

    told: Told
    TOGETHER: tuple[Body, ...]
    ALONE: tuple[Body, ...]


BARE = Variant(
    replace(
        TOLD,
        name="bare",
        can=False,
        kubelet={
            "clusterDNS": [],
            "cpuManagerPolicy": "static",
            "kubeReserved": {"cpu": "500m"},
        },
    ),
    (scenes_variants.no_cluster_dns, scenes_variants.lacking_runtime),
    (scenes_variants.lone_cpus,),
)
ASKED = Variant(
    replace(
        TOLD,
        name="asked",
        serves=True,
        kubelet={
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": True}},
            "authorization": {"mode": "Webhook"},
        },
        resolver={
            "nameservers": [f"2001:db8::{number}" for number in range(1, 6)],
            "searches": [f"d{number}.example" for number in range(31)],
        },
    ),
    (scenes_variants.resolver,),
    (scenes_variants.asked,),
)
PLUGINS = Variant(
    replace(
        TOLD,
        name="plugins",
        kubelet={"syncFrequency": "10s"},  # what could not be prepared is tried again then
        plugins={
            "devices": [
                {
                    "resource": scenes_plugins.WIDGET,
                    "ids": ["w0", "w1", "w2"],
                    "registrationDelay": "1s",
                }
            ],
            "dynamicResources": [
                {
                    "driver": scenes_plugins.DRIVER,
                    "count": 2,
                    "registrationDelay": "1s",
                    "health": [{"after": "0s", "devices": [1], "message": "too hot"}],
                },
                {
                    "driver": scenes_plugins.BROKEN,
                    "count": 1,
                    "registrationDelay": "1s",
                    "prepareError": "no room",
                    "health": [],
                },
            ],
        },
    ),
    (scenes_plugins.dynamic_resources,),
    (
        scenes_plugins.devices,
        scenes_plugins.devices_in_turn,
        scenes_plugins.devices_after_a_restart,
    ),
)
DRIVERS = Variant(
    replace(
        TOLD,
        name="drivers",
        # The controller attaches what a node says that it has in use: soon, on both of them.
        kubelet={"nodeStatusUpdateFrequency": "1s", "nodeStatusReportFrequency": "5m"},
        plugins={
            "csiDrivers": [
                {"name": scenes_plugins.ATTACHED, "nodeExpansion": True},
                {"name": scenes_plugins.PLAIN},
            ]
        },
    ),
    (scenes_plugins.csi_volumes, scenes_plugins.lone_volumes, scenes_plugins.grown_volumes),
    (scenes_plugins.stuck_unmounts,),
)
VARIANTS = (BARE, ASKED, PLUGINS, DRIVERS)
UNRECORDED = (
    scenes_variants.asked,
    scenes_plugins.csi_volumes,
    scenes_plugins.lone_volumes,
    scenes_plugins.grown_volumes,
    scenes_plugins.stuck_unmounts,
)
"""In virtual time no node has a server, and nobody attaches volumes. Scenes of drivers are not
recorded by parts: their nodes are not, either.
"""


@pytest.fixture(scope="module", params=VARIANTS, ids=[each.told.name for each in VARIANTS])
def recording(request: pytest.FixtureRequest, environment: Path) -> Recording:
    """Play the scenes of a configuration, once for all tests."""
    variant: Variant = request.param
    return played(
        environment / variant.told.name,  # short: paths of sockets have a limit
        LISTED,
        variant.TOGETHER,
        variant.ALONE,
        told=variant.told,
        unrecorded=UNRECORDED,
    )


def test_every_difference_is_listed(
    recording: Recording, record_property: Callable[[str, object], None]
) -> None:
    """The rows of the list are those of the other scenes, too: not each is needed here."""
    said, found = judged(recording, LISTED, needs_all=False)
    record_property("compared", f"variant: {said}")
    assert not found, "\n".join(found)


def test_scenes_are_seldom_played_again(recording: Recording) -> None:
    assert not too_often(recording.replays, LIMITS)
