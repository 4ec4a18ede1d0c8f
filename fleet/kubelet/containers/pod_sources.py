"""What a kubelet knows of the objects that the containers of its pods refer to.

Source: pkg/kubelet/kubelet_pods.go, getServiceEnvVarMap; pkg/kubelet/envvars/envvars.go.
"""

from collections.abc import Mapping
from typing import NamedTuple

from fleet.kubelet.environment import Environment
from fleet.kubelet.volumes.watched_objects import ObjectManager
from fleet.objects.services import service_variables


class PodSources(NamedTuple):
    """The objects of one node; what all nodes see alike is kept once for all."""

    objects: ObjectManager
    env: Environment

    def texts(self, kind: str, namespace: str, name: str) -> Mapping[str, str] | None:
        """Return what a ConfigMap or Secret holds, None if that is unknown."""
        return self.objects.texts(kind, namespace, name)

    def service_variables(self, namespace: str, *, has_links: bool) -> Mapping[str, str] | None:
        """Return the variables that Services make in a namespace."""
        return service_variables(self.env.services, namespace, has_links=has_links)
