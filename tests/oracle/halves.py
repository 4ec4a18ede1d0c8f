"""The halves of the live judge: which scenes are played together, and what both nodes are told."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from support.go_program import TESTED
from support.listed_differences import Listed, read_listed

from fleet.profile.release import release_of
from oracle import (
    scenes_admission,
    scenes_changes,
    scenes_claims,
    scenes_lifecycle,
    scenes_mixed,
    scenes_node,
    scenes_objects,
    scenes_plugins,
    scenes_resources,
    scenes_restarts,
    scenes_specs,
    scenes_static,
    scenes_variants,
)
from oracle.both_nodes import HOLD_S, IMAGES, Told
from oracle.exchange import NODE_SCOPE
from oracle.judge import Body
from oracle.objects_of_scenes import SHELL
from oracle.oracle_limits import PAGE

HAS_CGROUP_V2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
OF_V1, OF_OLD = "cgroup v1:", "before 1.36:"
OF_SHORT, OF_LONG, OF_PODS = "short half:", "long half:", "pods:"
OF_RESTARTS, OF_VARIANTS = "after a restart:", "variants:"
"""With these words the reasons of rows begin that not every run needs."""
SCENE = re.compile(r"([a-z_]+): ")
EVERYWHERE = ("all", "node")
SHELL_IMAGE = {
    "names": [SHELL.replace(":1.36", "@sha256:" + "5e" * 32), SHELL],
    "sizeBytes": 4261550,
}

TOLD = Told(images=[*IMAGES, SHELL_IMAGE])
"""What both nodes are told, and a node in virtual time."""


@dataclass(frozen=True, slots=True)
class Half:
    """Scenes that one pair of nodes plays in a row.

    Those of `together` do not heed each other, and those that take longest come first; each of
    `alone` needs both nodes for itself.
    """

    name: str
    """Short, for it is part of the paths of sockets, which have a limit."""
    together: tuple[Body, ...]
    alone: tuple[Body, ...] = ()
    told: Told = TOLD
    hold_s: float = HOLD_S
    own_rows: str = ""
    """How reasons of rows begin that this half alone needs; without, it need not need any row."""
    restarts: bool = False
    """Whether kubelets come back in it."""
    mutated: tuple[str, ...] = ()
    """Scenes whose record, changed in one thing each, must make the comparison red."""

    @property
    def scenes(self) -> tuple[Body, ...]:
        return (*self.together, *self.alone)

    @property
    def node(self) -> str:
        """The name by which the start of its node is recorded."""
        return f"{NODE_SCOPE}-{self.told.name}" if self.told.name else NODE_SCOPE

    def listed(self) -> list[Listed]:
        """Return the rows of differences.md that it may use; of those it must need its own."""
        return [*self._needed()] if self.own_rows else read_listed(PAGE)

    def _needed(self) -> Iterator[Listed]:
        names = {body.__name__ for body in self.scenes}
        others = {OF_SHORT, OF_LONG, OF_PODS, OF_VARIANTS} - {self.own_rows}
        if not self.restarts:
            others.add(OF_RESTARTS)
        if HAS_CGROUP_V2:
            others.add(OF_V1)
        if release_of(TESTED).declares_features:  # as of 1.36
            others.add(OF_OLD)
        for each in read_listed(PAGE):
            scene = SCENE.match(each.match)
            is_played = scene is None or scene[1] in names or scene[1] in EVERYWHERE
            if is_played and not each.reason.startswith(tuple(others)):
                yield each


SHORT = Half(
    "short",
    (
        scenes_objects.failing_pulls,
        scenes_objects.missing_objects,
        scenes_lifecycle.crash_loop,
        scenes_lifecycle.sidecar_crashes,
        scenes_objects.readiness,
        scenes_lifecycle.plain,
        scenes_lifecycle.three_containers,
        scenes_lifecycle.init_containers,
        scenes_lifecycle.failing_init,
        scenes_lifecycle.failed_init_never,
        scenes_lifecycle.sidecars,
        scenes_lifecycle.completes,
        scenes_lifecycle.changed_image,
        scenes_lifecycle.changed_init_image,
        scenes_lifecycle.hooks,
        scenes_lifecycle.failing_hooks,
        scenes_lifecycle.stops,
        scenes_lifecycle.shortened,
        scenes_lifecycle.forced,
        scenes_lifecycle.deadline,
        scenes_lifecycle.start_failures,
        scenes_lifecycle.jobs,
        scenes_lifecycle.ephemeral,
        scenes_lifecycle.restart_rules,
        scenes_objects.pulls,
        scenes_objects.invalid_image,
        scenes_objects.pull_secrets,
        scenes_objects.volumes,
        scenes_objects.http_failures,
        scenes_objects.liveness,
        scenes_objects.startup,
        scenes_admission.refused,
        scenes_admission.evicted,
        # A kubelet pulls one image at a time: the slow pull of this scene would hold up others.
        scenes_lifecycle.deleted_early,
    ),
    own_rows=OF_SHORT,
)
NODES = Half(
    "nodes",
    (
        scenes_static.static,
        scenes_static.static_troubles,
        scenes_claims.claims,
        scenes_claims.unbound_claims,
        scenes_resources.resized,
        scenes_resources.whole_resized,
        scenes_resources.disrupted_job,
        scenes_resources.pod_resources,
        # Scenes of the short half, which plays them half a second held.
        scenes_lifecycle.plain,
        scenes_lifecycle.three_containers,
        scenes_lifecycle.init_containers,
        scenes_lifecycle.completes,
    ),
    (
        scenes_resources.preempted,
        scenes_resources.deferred_resize,
        scenes_resources.critical_resize,
        scenes_node.relabelled,
        scenes_node.cordoned,
        scenes_node.tainted,
    ),
    hold_s=0,  # a kubelet that does not see the mirror pod that it made makes it again
)
"""What is done to a Node, to what it has to give, and to its static pods."""
PODS = Half(
    "pods",
    (
        scenes_changes.lost_keys,
        scenes_specs.too_much_dns,
        scenes_changes.foreign_statuses,
        scenes_changes.projected,
        scenes_changes.edited,
        scenes_changes.finalizers,
        scenes_changes.readiness_gates,
        scenes_changes.debuggers,
        scenes_specs.gating_sidecars,
        scenes_specs.own_grace,
        scenes_specs.all_restart,
        scenes_specs.named_ports,
        scenes_specs.host_paths,
        scenes_specs.image_volumes,
        scenes_specs.classes,
        scenes_specs.sysctls,
        scenes_specs.users,
        scenes_specs.last_words,
        scenes_specs.sub_paths,
        scenes_specs.environments,
        scenes_specs.long_names,
        scenes_specs.names_of_pods,
        scenes_specs.host_pods,
    ),
    (scenes_restarts.restarts_midway,),
    own_rows=OF_PODS,
    restarts=True,
)
"""What the spec of a pod may say, and what others change of a pod."""
LONG = Half(
    "long",
    (scenes_restarts.back_off_ladders, scenes_restarts.idle),
    (
        scenes_resources.resize_and_restart,
        scenes_restarts.kubelet_restarts,
        scenes_restarts.apiserver_restarts,
        scenes_restarts.deleted_node,
    ),
    own_rows=OF_LONG,
    restarts=True,
    mutated=("kubelet_restarts",),
)
"""Restarts, back-off ladders, and two minutes of nothing."""
BARE = Half(
    "bare",
    (scenes_variants.no_cluster_dns, scenes_variants.lacking_runtime),
    (scenes_variants.lone_cpus,),
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
)
"""A node without cluster DNS, with CPUs for pods alone, and a runtime that can do less."""
ASKED = Half(
    "asked",
    (scenes_variants.resolver,),
    (scenes_variants.asked,),
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
)
"""A kubelet asks the API server about its clients; a file has many name servers and domains."""
PLUGINS = Half(
    "plugins",
    (scenes_plugins.dynamic_resources,),
    (
        scenes_plugins.devices,
        scenes_plugins.devices_in_turn,
        scenes_plugins.devices_after_a_restart,
    ),
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
)
"""A node with devices."""
DRIVERS = Half(
    "drivers",
    (scenes_plugins.csi_volumes, scenes_plugins.lone_volumes, scenes_plugins.grown_volumes),
    (scenes_plugins.stuck_unmounts,),
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
)
"""A node with volumes of CSI drivers."""
MIXED = Half("mixed", scenes_mixed.SCENES)
"""Where two things of a pod's life come together."""
HALVES = (SHORT, LONG, NODES, PODS, BARE, ASKED, PLUGINS, DRIVERS, MIXED)
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
