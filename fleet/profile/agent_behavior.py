"""NodeAgent: a program that runs beside the kubelet of a node, by what it asks of the API server.

What it does with the answers is nobody's business here: events are counted and dropped.
"""

import enum
import re
from typing import Annotated, Literal, NamedTuple
from urllib.parse import quote_plus

from pydantic import BeforeValidator, Field, model_validator

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.objects.well_known import NODE_USER
from fleet.profile.distribution import ZERO, Distribution, DistributionField
from fleet.profile.schema import (
    PLACEHOLDER,
    DnsLabel,
    DurationNs,
    Metadata,
    Spec,
    check_placeholders,
)

NODE = b"{{node}}"
SERVICE_ACCOUNT_USER = "system:serviceaccount:"
HEARTBEAT_NS = 300 * NS_PER_S
AGENTS_MAX = 16
"""On one node: each has a connection of its own."""
WATCHES_MAX = 90
"""Of one agent: an API server takes 100 streams on a connection."""
USER_AGENT_PLACEHOLDERS = ("version", "os", "arch")
"""Of a user agent, an agent's or a kubelet's."""

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


class AgentWatch(NamedTuple):
    """The compiled form of one watch. `selector` is encoded; {{node}} in it is not yet filled."""

    path: bytes
    selector: bytes
    resource: str
    group: str
    namespace: str
    timeouts_s: tuple[int, int]
    lists: bool
    is_generic: bool
    waits: bool  # those that follow open once this one has synced


class AgentRead(NamedTuple):
    """The compiled form of a GET."""

    path: bytes
    verb: str
    resource: str
    group: str
    namespace: str
    every_ns: int  # 0: once


class AgentProblem(NamedTuple):
    """When a condition turns, and to what."""

    start: Distribution
    duration: Distribution
    every_ns: int  # 0: once
    share: float
    status: str
    reason: str
    message: str


class AgentCondition(NamedTuple):
    """The compiled form of a condition of the Node."""

    type: str
    status: str
    reason: str
    message: str
    problem: AgentProblem | None


class AgentEvent(NamedTuple):
    """The compiled form of an event about the Node. `is_legacy` ones are of core/v1."""

    reason: str
    message: str
    action: str
    component: str
    is_warning: bool
    is_legacy: bool
    after: Distribution
    every_ns: int  # 0: once


class AgentModel(NamedTuple):
    """The compiled form of a NodeAgent: what all nodes that run it share."""

    name: str
    user: str  # may have {{node}}
    user_agent: str  # may have placeholders
    encoding: AgentEncoding
    share: float
    start_delay: Distribution
    backoff_ns: tuple[int, int]
    watches: tuple[AgentWatch, ...]
    reads: tuple[AgentRead, ...]
    conditions: tuple[AgentCondition, ...]
    heartbeat_ns: int  # of the conditions
    events: tuple[AgentEvent, ...]

    def rules(self) -> tuple[Rule, ...]:
        """Return the rights that the agent's user needs."""
        rules = [
            Rule(each.group, each.resource, ("list", "watch"), each.namespace)
            for each in self.watches
        ]
        rules += [
            Rule(each.group, each.resource, (each.verb.lower(),), each.namespace)
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


def _with_placeholders(text: object) -> object:
    """Refuse a placeholder that nobody fills."""
    check_placeholders(str(text), USER_AGENT_PLACEHOLDERS)
    return text


def _with_node(text: object) -> object:
    """Refuse a placeholder other than {{node}}."""
    for name in PLACEHOLDER.findall(str(text)):
        if name != "node":
            raise ValueError(f"'{{{{{name}}}}}' is not '{{{{node}}}}'")
    return re.sub(r"\{\{\s*node\s*\}\}", NODE.decode(), str(text))


Text = Annotated[str, Field(min_length=1)]
NodeText = Annotated[str, BeforeValidator(_with_node)]


class ResourceSpec(Spec):
    """A resource of the API."""

    api_version: Annotated[str, Field(pattern=r"^([a-z0-9][-.a-z0-9]*/)?v[0-9][a-z0-9]*$")] = "v1"
    resource: Annotated[str, Field(pattern=r"^[a-z0-9][-.a-z0-9]*$")]  # in the plural
    namespace: DnsLabel | None = None

    @property
    def group(self) -> str:
        """The API group, "" for core."""
        return self.api_version.rpartition("/")[0]

    def path(self) -> bytes:
        """Return the path of the collection."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        within = f"/namespaces/{self.namespace}" if self.namespace else ""
        return f"{root}{within}/{self.resource}".encode()


class WatchTimeoutSpec(Spec):
    """Between which ages a watch ends, each at random."""

    min: DurationNs = 300 * NS_PER_S
    max: DurationNs = 600 * NS_PER_S

    @model_validator(mode="after")
    def _is_range(self) -> "WatchTimeoutSpec":
        if not NS_PER_S <= self.min <= self.max:
            raise ValueError("min is 1s or more, and at most max")
        return self


class WatchSpec(ResourceSpec):
    """A list-watch."""

    field_selector: NodeText = ""
    label_selector: NodeText = ""
    method: Method = Method.WATCH_LIST
    timeout: WatchTimeoutSpec = WatchTimeoutSpec()
    typed_client: bool = True
    wait_for_sync: bool = False

    def compiled(self) -> AgentWatch:
        """Return what a reflector reads."""
        selectors = (("fieldSelector", self.field_selector), ("labelSelector", self.label_selector))
        selector = "&".join(f"{key}={quote_plus(text)}" for key, text in selectors if text)
        return AgentWatch(
            self.path(),
            selector.replace(quote_plus(NODE.decode()), NODE.decode()).encode(),
            self.resource,
            self.group,
            self.namespace or "",
            (self.timeout.min // NS_PER_S, self.timeout.max // NS_PER_S),
            self.method is Method.LIST_WATCH,
            not self.typed_client,
            self.wait_for_sync,
        )


class ReadSpec(ResourceSpec):
    """A GET of an object, or of a list where no name is given."""

    name: NodeText = ""
    every: DurationNs | None = None

    @model_validator(mode="after")
    def _is_path(self) -> "ReadSpec":
        if self.name and not re.match(_NAME, self.name.replace(NODE.decode(), "n")):
            raise ValueError(f"{self.name!r} is no name of an object")
        return self

    def compiled(self) -> AgentRead:
        """Return what an agent reads."""
        path = self.path() + (b"/" + self.name.encode() if self.name else b"")
        verb = "GET" if self.name else "LIST"
        within = self.namespace or ""
        return AgentRead(path, verb, self.resource, self.group, within, self.every or 0)


class ProblemSpec(Spec):
    """A time in which a condition says otherwise; counted from the start of the agent."""

    start: Annotated[DistributionField, Field(alias="from")]
    duration: Annotated[DistributionField, Field(alias="for")]
    every: DurationNs | None = None
    share: Share = 1.0
    status: Literal["True", "False", "Unknown"] = "True"
    reason: Text
    message: str = ""

    def compiled(self) -> AgentProblem:
        """Return what an agent reads."""
        return AgentProblem(
            self.start.compiled(),
            self.duration.compiled(),
            self.every or 0,
            self.share,
            self.status,
            self.reason,
            self.message,
        )


class ConditionSpec(Spec):
    """A condition of the Node that the agent keeps."""

    type: Text
    status: Literal["True", "False", "Unknown"] = "False"
    reason: Text
    message: str = ""
    problem: ProblemSpec | None = None

    def compiled(self) -> AgentCondition:
        """Return what an agent writes."""
        problem = self.problem.compiled() if self.problem else None
        return AgentCondition(self.type, self.status, self.reason, self.message, problem)


class EventSpec(Spec):
    """An event about the Node."""

    reason: Text
    message: str = ""
    action: str = ""
    component: Text
    type: Literal["Normal", "Warning"] = "Normal"
    api_version: Literal["v1", "events.k8s.io/v1"] = "events.k8s.io/v1"
    after: DistributionField | None = None
    every: DurationNs | None = None

    @model_validator(mode="after")
    def _has_action(self) -> "EventSpec":
        if self.api_version == "v1" and self.action:
            raise ValueError("an event of v1 has no action")
        if self.api_version != "v1" and not self.action:
            raise ValueError("an event of events.k8s.io/v1 needs an action")
        return self

    def compiled(self) -> AgentEvent:
        """Return what an agent sends."""
        return AgentEvent(
            self.reason,
            self.message,
            self.action,
            self.component,
            self.type == "Warning",
            self.api_version == "v1",
            self.after.compiled() if self.after else ZERO,
            self.every or 0,
        )


class BackOffSpec(Spec):
    """How long a reflector waits after a failure: doubling, with jitter."""

    first: Annotated[DurationNs, Field(ge=NS_PER_MS)] = 800 * NS_PER_MS
    max: DurationNs = 30 * NS_PER_S

    @model_validator(mode="after")
    def _is_range(self) -> "BackOffSpec":
        if self.first > self.max:
            raise ValueError("first is over max")
        return self


class NodeAgentSpec(Spec):
    """The spec of a NodeAgent."""

    user_agent: Annotated[Text, BeforeValidator(_with_placeholders)]
    service_account: str = ""  # NAMESPACE/NAME
    user: NodeText = ""
    encoding: AgentEncoding = AgentEncoding.JSON
    share: Share = 1.0
    start_delay: DistributionField | None = None
    back_off: BackOffSpec = BackOffSpec()
    watches: Annotated[tuple[WatchSpec, ...], Field(max_length=WATCHES_MAX)] = ()
    reads: tuple[ReadSpec, ...] = ()
    conditions: tuple[ConditionSpec, ...] = ()
    condition_period: DurationNs = HEARTBEAT_NS
    events: tuple[EventSpec, ...] = ()

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
        periods: list[int | None] = [self.condition_period, *(each.every for each in self.reads)]
        periods += [each.every for each in self.events]
        if any(each is not None and each < NS_PER_S for each in periods):
            raise ValueError("conditionPeriod and every are 1s or more")
        types = [each.type for each in self.conditions]
        if len(set(types)) < len(types):
            raise ValueError("conditions name one type twice")
        return self


class NodeAgent(Spec):
    """A NodeAgent document."""

    api_version: Literal["fleet.emulator/v1alpha1"]
    kind: Literal["NodeAgent"]
    metadata: Metadata
    spec: NodeAgentSpec

    def compiled(self, share: float | None = None) -> AgentModel:
        """Return what all nodes with this agent share; a profile may say how many have it."""
        spec = self.spec
        user = spec.user
        if spec.service_account:
            user = SERVICE_ACCOUNT_USER + spec.service_account.replace("/", ":")
        return AgentModel(
            self.metadata.name,
            user,
            spec.user_agent,
            spec.encoding,
            spec.share if share is None else share,
            spec.start_delay.compiled() if spec.start_delay else ZERO,
            (spec.back_off.first, spec.back_off.max),
            tuple(each.compiled() for each in spec.watches),
            tuple(each.compiled() for each in spec.reads),
            tuple(each.compiled() for each in spec.conditions),
            spec.condition_period,
            tuple(each.compiled() for each in spec.events),
        )


class AgentChoice(Spec):
    """An entry of a profile's `agents`: a shipped NodeAgent, or one of the same file."""

    name: DnsLabel
    share: Share | None = None
