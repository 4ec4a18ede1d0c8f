"""NodeAgent: a program that runs alongside a node's kubelet, by its requests to the API server.

What it does with the answers is nobody's business here: events are counted and dropped.
"""

import enum
import re
from functools import cached_property
from typing import Annotated, Literal, NamedTuple
from urllib.parse import quote_plus

from pydantic import BeforeValidator, Field, model_validator

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.well_known import NODE_USER
from fleet.profile import schema
from fleet.profile.distribution import ZERO, DistributionField

NODE = b"{{node}}"
SERVICE_ACCOUNT_USER = "system:serviceaccount:"
HEARTBEAT_NS = 300 * NS_PER_S
AGENTS_MAX = 16  # on one node: each has a connection of its own
WATCHES_MAX = 90  # of one agent: an API server takes 100 streams on a connection
USER_AGENT_PLACEHOLDERS = ("version", "os", "arch")  # of a user agent, an agent's or a kubelet's

_NAME = r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$"
_NAMESPACED = re.compile(r"([a-z0-9][-a-z0-9]{0,62})/([a-z0-9][-.a-z0-9]{0,252})")

Share = Annotated[float, Field(gt=0, le=1)]


class AgentEncoding(enum.StrEnum):
    """What an agent asks the server to answer in."""

    JSON = "json"
    PROTOBUF = "protobuf"


class Method(enum.StrEnum):
    """How a list-watch begins."""

    WATCH_LIST = "WatchList"  # client-go since 0.35
    LIST_WATCH = "ListWatch"


class Rule(NamedTuple):
    """A right that an agent needs, as RBAC writes it; `namespace` is "" for all."""

    group: str
    resource: str  # with its subresource
    verbs: tuple[str, ...]
    namespace: str = ""


def _with_placeholders(text: object) -> object:
    """Refuse a placeholder that nobody fills."""
    return schema.check_placeholders(text, USER_AGENT_PLACEHOLDERS)


def _with_node(text: object) -> object:
    """Refuse a placeholder other than {{node}}."""
    for name in schema.PLACEHOLDER.findall(str(text)):
        if name != "node":
            raise ValueError(f"'{{{{{name}}}}}' is not '{{{{node}}}}'")
    return re.sub(r"\{\{\s*node\s*\}\}", NODE.decode(), str(text))


Text = Annotated[str, Field(min_length=1)]
NodeText = Annotated[str, BeforeValidator(_with_node)]


class ResourceSpec(schema.Spec):
    """A resource of the API."""

    api_version: Annotated[str, Field(pattern=r"^([a-z0-9][-.a-z0-9]*/)?v[0-9][a-z0-9]*$")] = "v1"
    resource: Annotated[str, Field(pattern=r"^[a-z0-9][-.a-z0-9]*$")]  # in the plural
    namespace: schema.DnsLabel | None = None

    @property
    def group(self) -> str:
        """The API group, "" for core."""
        return self.api_version.rpartition("/")[0]

    @cached_property
    def path(self) -> bytes:
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        within = f"/namespaces/{self.namespace}" if self.namespace else ""
        return f"{root}{within}/{self.resource}".encode()


class WatchTimeoutSpec(schema.Spec):
    """Between which ages a watch ends, each at random."""

    min: schema.DurationNs = 300 * NS_PER_S
    max: schema.DurationNs = 600 * NS_PER_S

    @model_validator(mode="after")
    def _is_range(self) -> "WatchTimeoutSpec":
        if not NS_PER_S <= self.min <= self.max:
            raise ValueError("min is 1s or more, and at most max")
        return self


class AgentWatch(ResourceSpec):
    """A list-watch."""

    field_selector: NodeText = ""
    label_selector: NodeText = ""
    method: Method = Method.WATCH_LIST
    timeout: WatchTimeoutSpec = WatchTimeoutSpec()
    typed_client: bool = True
    wait_for_sync: bool = False  # those that follow open once this one has synced

    @cached_property
    def selector(self) -> bytes:
        """The encoded selectors; {{node}} in them is not yet filled."""
        selectors = (("fieldSelector", self.field_selector), ("labelSelector", self.label_selector))
        selector = "&".join(f"{key}={quote_plus(text)}" for key, text in selectors if text)
        return selector.replace(quote_plus(NODE.decode()), NODE.decode()).encode()

    @cached_property
    def timeouts_s(self) -> tuple[int, int]:
        """Between which ages, in whole seconds, it ends."""
        return self.timeout.min // NS_PER_S, self.timeout.max // NS_PER_S


class Periodic(schema.Spec):
    """What is done once, or again and again."""

    every_ns: schema.DurationNs = 0  # 0: once

    @property
    def is_periodic(self) -> bool:
        """Whether it is declared to happen again."""
        return "every_ns" in self.model_fields_set


class AgentRead(ResourceSpec, Periodic):
    """A GET of an object, or of a list where no name is given."""

    name: NodeText = ""

    @model_validator(mode="after")
    def _is_path(self) -> "AgentRead":
        if self.name and not re.match(_NAME, self.name.replace(NODE.decode(), "n")):
            raise ValueError(f"{self.name!r} is no name of an object")
        return self

    @cached_property
    def full_path(self) -> bytes:
        """The path of what is read; {{node}} in it is not yet filled."""
        return self.path + (b"/" + self.name.encode() if self.name else b"")

    @property
    def verb(self) -> str:
        """As RBAC names it, in upper case."""
        return "GET" if self.name else "LIST"


class AgentProblem(Periodic):
    """A time in which a condition says otherwise; counted from the start of the agent."""

    start: Annotated[DistributionField, Field(alias="from")]
    duration: Annotated[DistributionField, Field(alias="for")]
    share: Share = 1.0
    status: Literal["True", "False", "Unknown"] = "True"
    reason: Text
    message: str = ""


class AgentCondition(schema.Spec):
    """A condition of the Node that the agent keeps."""

    type: Text
    status: Literal["True", "False", "Unknown"] = "False"
    reason: Text
    message: str = ""
    problem: AgentProblem | None = None


class AgentEvent(Periodic):
    """An event about the Node."""

    reason: Text
    message: str = ""
    action: str = ""
    component: Text
    type: Literal["Normal", "Warning"] = "Normal"
    api_version: Literal["v1", "events.k8s.io/v1"] = "events.k8s.io/v1"
    after: DistributionField = ZERO

    @model_validator(mode="after")
    def _has_action(self) -> "AgentEvent":
        if self.is_legacy and self.action:
            raise ValueError("an event of v1 has no action")
        if not self.is_legacy and not self.action:
            raise ValueError("an event of events.k8s.io/v1 needs an action")
        return self

    @property
    def is_legacy(self) -> bool:
        """Whether it is one of core/v1."""
        return self.api_version == "v1"


class BackOffSpec(schema.Spec):
    """How long a reflector waits after a failure: doubling, with jitter."""

    first: Annotated[schema.DurationNs, Field(ge=NS_PER_MS)] = 800 * NS_PER_MS
    max: schema.DurationNs = 30 * NS_PER_S

    @model_validator(mode="after")
    def _is_range(self) -> "BackOffSpec":
        if self.first > self.max:
            raise ValueError("first is over max")
        return self


class NodeAgentSpec(schema.Spec):
    """The spec of a NodeAgent."""

    user_agent: Annotated[Text, BeforeValidator(_with_placeholders)]
    service_account: str = ""  # NAMESPACE/NAME
    user: NodeText = ""
    encoding: AgentEncoding = AgentEncoding.JSON
    share: Share = 1.0
    start_delay: DistributionField = ZERO
    back_off: BackOffSpec = BackOffSpec()
    watches: Annotated[tuple[AgentWatch, ...], Field(max_length=WATCHES_MAX)] = ()
    reads: tuple[AgentRead, ...] = ()
    conditions: tuple[AgentCondition, ...] = ()
    condition_period: schema.DurationNs = HEARTBEAT_NS
    events: tuple[AgentEvent, ...] = ()

    @model_validator(mode="after")
    def _is_consistent(self) -> "NodeAgentSpec":
        if bool(self.service_account) == bool(self.user):
            raise ValueError("needs serviceAccount (NAMESPACE/NAME) or user, and not both")
        if self.service_account and not _NAMESPACED.fullmatch(self.service_account):
            raise ValueError(f"serviceAccount: {self.service_account!r} is not NAMESPACE/NAME")
        if NODE.decode() in self.user and self.user != f"{NODE_USER}{NODE.decode()}":
            raise ValueError(
                f"user: {self.user!r}: of users with {{{{node}}}} only "
                "'system:node:{{node}}' gets rights"
            )
        if not (self.watches or self.reads or self.conditions or self.events):
            raise ValueError("does nothing: give it watches, reads, conditions or events")
        periodic = (each for each in (*self.reads, *self.events) if each.is_periodic)
        if min((self.condition_period, *(each.every_ns for each in periodic))) < NS_PER_S:
            raise ValueError("conditionPeriod and every are 1s or more")
        types = [each.type for each in self.conditions]
        if len(set(types)) < len(types):
            raise ValueError("conditions name one type twice")
        return self


class AgentModel(NodeAgentSpec):
    """A NodeAgent as the nodes of a profile run it; `user` may have {{node}}."""

    name: str
    optional: bool = False  # a run goes on without it where it may not be

    @property
    def backoff_ns(self) -> tuple[int, int]:
        """The first and the longest wait of a reflector."""
        return self.back_off.first, self.back_off.max

    def rules(self) -> tuple[Rule, ...]:
        rules = [
            Rule(each.group, each.resource, ("list", "watch"), each.namespace or "")
            for each in self.watches
        ]
        rules += [
            Rule(each.group, each.resource, (each.verb.lower(),), each.namespace or "")
            for each in self.reads
        ]
        if self.conditions:
            rules.append(Rule("", "nodes/status", ("patch",)))
        legacy = {each.is_legacy for each in self.events}
        if any(each.problem for each in self.conditions):
            legacy |= {True}
        for is_legacy in legacy:
            group = "" if is_legacy else "events.k8s.io"
            rules.append(Rule(group, "events", ("create",), "default"))
        return tuple(sorted(dict.fromkeys(rules)))


class NodeAgent(schema.Spec):
    """A NodeAgent document."""

    api_version: Literal["fleet.emulator/v1alpha1"]
    kind: Literal["NodeAgent"]
    metadata: schema.Metadata
    spec: NodeAgentSpec

    def compiled(self, share: float | None = None, *, optional: bool = False) -> AgentModel:
        """Return what all nodes with this agent share; a profile may say how many have it."""
        spec = self.spec
        user = spec.user
        if spec.service_account:
            user = SERVICE_ACCOUNT_USER + spec.service_account.replace("/", ":")
        own = {"name": self.metadata.name, "user": user, "optional": optional}
        own |= {} if share is None else {"share": share}
        return AgentModel.model_construct(None, **(dict(spec) | own))


class AgentChoice(schema.Spec):
    """An entry of a profile's `agents`: a shipped NodeAgent, or one of the same file."""

    name: schema.DnsLabel
    share: Share | None = None
    optional: bool = False  # not in light, nor on a named cluster where it lacks its rights
