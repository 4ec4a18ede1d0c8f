"""What a kubelet knows of the objects that the containers of its pods refer to.

Source: pkg/kubelet/kubelet_pods.go, getServiceEnvVarMap; pkg/kubelet/envvars/envvars.go.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.k8s.objects import service_variables
from fleet.k8s.pods import PodUid, TokenSource
from fleet.kubelet.environment import Environment
from fleet.kubelet.volumes.token_cache import TokenCache, TokenKey
from fleet.kubelet.volumes.watched_objects import ObjectManager
from fleet.profile.kubelet_configuration import DNSSettings
from fleet.runtime.program import Sources


@dataclass(slots=True, frozen=True)
class PodSources(Sources):
    """The objects of one node; what all nodes see alike is kept once for all."""

    objects: ObjectManager
    tokens: TokenCache
    env: Environment

    def texts(self, kind: str, namespace: str, name: str) -> Mapping[str, str] | None:
        """Return what a ConfigMap or Secret holds, None if that is unknown."""
        return self.objects.texts(kind, namespace, name)

    def token(self, uid: PodUid, source: TokenSource) -> str:
        """Return the token of a pod that a volume shows, "" if it has none yet."""
        return self.tokens.text(TokenKey(uid, source.audience, source.expiration_s))

    def service_variables(self, namespace: str, *, has_links: bool) -> Mapping[str, str] | None:
        """Return the variables that Services make in a namespace."""
        return service_variables(self.env.services, namespace, has_links=has_links)

    def allocatable(self, resource: str) -> str:
        """Return what the node has of a resource for its pods, "" if it has none."""
        return self.env.model.allocatable.get(resource, "")

    @property
    def dns(self) -> DNSSettings:
        """Return what the DNS settings of pods are made of."""
        return self.env.model.kubelet.dns
