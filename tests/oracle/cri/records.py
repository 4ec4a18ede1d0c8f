"""What the runtime keeps of sandboxes and containers beside fleet's own records."""

from dataclasses import dataclass, field
from typing import Any

from fleet.k8s.addresses import first_of
from fleet.k8s.pods import ContainerSpec, Pod
from fleet.profile.pod_behavior import ContainerBehavior, PodBehavior
from fleet.runtime.containers import Container, RunState, Sandbox
from oracle.cri.applications import Application

Message = Any
"""A message of CRI: they are made at run time, see messages.py."""


@dataclass(slots=True)
class PodSandbox:
    """A sandbox that was run and not removed."""

    id: str
    config: Message
    handler: str
    pod: Pod
    sandbox: Sandbox
    created_wall_ns: int

    @property
    def uid(self) -> str:
        return str(self.config.metadata.uid)

    @property
    def ip(self) -> str:
        """The address, "" in the host's network."""
        return "" if self.pod.spec.host_network else first_of(self.sandbox.ips)


@dataclass(slots=True)
class CriContainer:
    """A container that was created and not removed."""

    id: str
    sandbox_id: str
    config: Message
    pod: Pod
    spec: ContainerSpec
    application: Application | None
    behavior: PodBehavior
    image_id: str
    image_ref: str
    image_name: str
    created_wall_ns: int
    resources: Message
    log_path: str = ""
    """In full; "" if nobody wants its log."""
    container: Container | None = None
    """fleet's record of it, once it was started."""
    started_wall_ns: int = 0
    finished_wall_ns: int = 0
    start_error: str = ""
    is_settled: bool = False
    """Its end was seen, and what it leaves is written."""
    waiters: list[Any] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.config.metadata.name)

    @property
    def state(self) -> RunState:
        return RunState.CREATED if self.container is None else self.container.state

    @property
    def declared(self) -> ContainerBehavior:
        return self.behavior.container(self.name)
