"""What a node asks of the API server, with all values: the audit log and what the proxy noted."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from oracle.identities import with_words
from oracle.left_out import (
    CGROUP_OF_AN_ENDED_POD,
    LIMIT_OF_V1,
    PATCH_OF_A_CGROUP,
    PATCH_OF_AN_ADDRESS,
    PATCH_WITHOUT_LIMIT,
    REQUEST_OF_FLEET,
    Ledger,
)
from oracle.normalisation import Json, Leaf, Normaliser, is_time, seconds

OWN_AGENT = "fleet/"
"""What fleet asks for itself, beside its kubelets, says so."""
NODE_SCOPE = "node"
"""The scene of what belongs to no scene's namespace."""
OF_THE_NODE = ("", "default", "kube-node-lease", "kube-system")
"""The namespaces of what belongs to it."""
STATUSES = ("pods/status", "nodes/status")
"""Of these the audit log has the object after the write."""
WATCH_S = {"300..600": (300, 600), "1800..3600": (1800, 3600)}
"""Reflectors of most resources, and of single objects: client-go/tools/cache/reflector.go."""
FORBIDDEN = 403
ENDED = ("Succeeded", "Failed")
NO_LIMIT_OF_V1 = "9007199254740988Ki"
"""The largest number that cgroup v1 knows: a pod without a memory limit has it as one.

With v2 such a pod has none. Source: pkg/kubelet/cm/helpers_linux.go, MemoryLimitsFromConfig.
"""
LIMITS_OF_V1 = {"memory": NO_LIMIT_OF_V1}
FIRST = 1
"""The generation of a pod that was neither changed nor deleted yet."""
GONE = "-"
"""For the namespace of a volume that no play made."""
OUTLINE = (
    ".phase",
    ".status",
    ".restartCount",
    "state.running.startedAt",
    "state.waiting.reason",
    "tate.terminated.exitCode",
)


@dataclass(frozen=True)
class Exchange:
    """One request of a node and its answer, normalised; times are seconds since the epoch."""

    at_s: float
    scene: str
    verb: str
    resource: str
    """With the subresource."""
    name: str
    path: str
    query: tuple[tuple[str, str], ...]
    code: int
    body: Mapping[str, Leaf]
    state: Mapping[str, Leaf]
    """The status that the object has after a write of it."""
    headers: Mapping[str, str] = field(default_factory=dict)
    identity: str = ""
    connection: int = 0
    led_to_nothing_told: bool = False
    """A read, of which the patch after it is left out: the other node may have sent neither."""

    @cached_property
    def token(self) -> str:
        """What two requests share if they are the same request."""
        query = "&".join(f"{key}={value}" for key, value in self.query)
        return f"{self.verb} {self.resource} {self.name}{'?' + query if query else ''} {self.code}"

    @cached_property
    def shape(self) -> str:
        """The token and all values but times: by that two of them are the same."""
        told = self.state or self.body
        return "\n".join(
            (self.token, *(f"{path}={value}" for path, value in sorted(_timeless(told))))
        )

    @cached_property
    def outline(self) -> str:
        """The token and what a status is about: by that two are likely meant to be the same."""
        told = [
            f"{path}={value}"
            for path, value in sorted(_timeless(self.state or self.body))
            if path.endswith(OUTLINE)
        ]
        return "\n".join((self.token, *told))

    @property
    def is_of_mirror(self) -> bool:
        """Whether it is about the mirror of a static pod, which its node's name ends."""
        return self.resource.startswith("pods") and self.name.endswith("-NODE")

    @property
    def stream(self) -> str:
        """The object that it is about; the order of requests about different ones is chance."""
        kind = self.resource.partition("/")[0]
        if self.verb == "watch":
            return f"watch {kind} {dict(self.query).get('fieldSelector', '')} {self.path}"
        if kind == "events":
            about = [self.body.get(f"involvedObject.{key}", "") for key in ("kind", "name")]
            return " ".join(("events", *map(str, about)))
        if kind == "nodes" and self.verb == "get":
            return "nodes get"  # several loops look for the Node, each at its own times
        if kind == "serviceaccounts":
            about = [
                self.body.get(f"spec.{key}", "") for key in ("boundObjectRef.name", "audiences[0]")
            ]
            return " ".join(("serviceaccounts", self.name, *map(str, about)))
        return f"{kind} {self.name}"


class Trace(NamedTuple):
    """What one node asked, and when it was started."""

    exchanges: Sequence[Exchange]
    starts_s: Sequence[float]
    outages_s: Sequence[tuple[float, float]] = ()
    """Since when, and until when, there was no API server."""
    left_out: Mapping[str, int] = MappingProxyType({})
    """How many each row of differences.md has left out of it."""

    def since_start_s(self, at_s: float, cut_s: float = 0) -> float:
        """Return how long before a time the node was started last.

        A time of which up to `cut_s` is cut off may be that much later.
        """
        return at_s - self.start_before(at_s, cut_s)

    def start_before(self, at_s: float, cut_s: float = 0) -> float:
        """Return when the node was started last before a time."""
        return max(
            (each for each in self.starts_s if each <= at_s + cut_s), default=self.starts_s[0]
        )

    def is_parted(self, begin_s: float, end_s: float) -> bool:
        """Return whether a start or an outage lies between two times."""
        return any(begin_s < each <= end_s for each in self.starts_s) or any(
            begin_s <= until_s and since_s <= end_s for since_s, until_s in self.outages_s
        )

    def backs_off(self, begin_s: float, end_s: float) -> bool:
        """Return whether what came at the end may have waited for the API server."""
        return any(begin_s <= until_s and since_s <= end_s for since_s, until_s in self.outages_s)


def _timeless(values: Mapping[str, Leaf]) -> Iterable[tuple[str, Leaf]]:
    return ((path, "TIME" if is_time(value) else value) for path, value in values.items())


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two nodes, and how its names are told from the other's."""

    node: str
    namespaces: Mapping[str, str]
    """The scene of each of its namespaces that is looked at."""
    generated: Mapping[str, str] = field(default_factory=dict)
    """What stands for names that controllers made up."""
    who: str = "fleet"
    """Or `real`: rows of differences.md may hold for one of them."""
    others: Collection[str] | None = None
    """The namespaces of all plays: requests about others are the node's. None if not known."""

    def normaliser(self) -> Normaliser:
        scenes = dict.fromkeys((*self.namespaces, *(self.others or ())), "SCENE")
        return Normaliser({**scenes, **self.generated, self.node: "NODE"})


def exchanges(
    events: Iterable[Json],
    side: Side,
    noted: Mapping[str, tuple[Json, Json, int]],
    ledger: Ledger | None = None,
) -> list[Exchange]:
    """Return what a node has asked, in the order of time.

    `noted` has request headers, response headers and connection by audit ID. A request about an
    Event that is patched is completed with what it was when it was created: the patch has little.
    The read before a patch that is left out says so. What is left out, `ledger` counts.
    """
    reading = _Reading(side, noted, Ledger(side.who) if ledger is None else ledger)
    for event in events:
        reading.take(event)
    return with_words(sorted(reading.found.values(), key=lambda each: each.at_s))


class _Reading:
    """Takes the entries of an audit log one after the other."""

    def __init__(
        self, side: Side, noted: Mapping[str, tuple[Json, Json, int]], ledger: Ledger
    ) -> None:
        self._side = side
        self._noted = noted
        self._ledger = ledger
        self._normaliser = side.normaliser()
        self._reads: dict[tuple[str, str], str] = {}
        self._idle: dict[tuple[str, str], str] = {}
        """The last read of a pod, if the patch after it is left out."""
        self._created: dict[str, Mapping[str, Leaf]] = {}
        self._resources: dict[tuple[str, str], Json | None] = {}
        """What the status of a pod had of them last, None if it had no such field."""
        self._memory: dict[tuple[str, str], str] = {}
        """The memory limit that the status of a pod had before the one of cgroup v1, if any."""
        self.found: dict[str, Exchange] = {}

    def take(self, event: Json) -> None:
        """Add what an entry says, if it is the node's and no row leaves it out."""
        scene = self._scene_of(event)
        if not scene:
            return
        about: Json = event.get("objectRef") or {}
        pod = str(about.get("namespace", "")), str(about.get("name", ""))
        if (about.get("resource"), about.get("subresource")) == ("pods", "status"):
            before, kept = self._before(pod, event)
            if tells_nothing(event, before or {}, self._ledger, kept):
                read = self._reads.pop(pod, "")
                if read in self.found:
                    self._idle[pod] = read
                    self._leads_to_nothing(read, is_so=True)
                return
            if event["auditID"] not in self.found:
                event = without_cgroup(event, before, self._ledger, kept)
        if about.get("resource") == "pods":
            self._reads.pop(pod, None)
            read = self._idle.pop(pod, "")
            if read and event["verb"] == "delete":  # without the patch it would have come, too
                self._leads_to_nothing(read, is_so=False)
            if event["verb"] == "get":
                self._reads[pod] = event["auditID"]
        if event["auditID"] not in self.found:  # a watch has two entries
            made = _exchange(event, scene, self._normaliser, self._noted.get(event["auditID"]))
            if made.resource == "events":
                made = _whole_event(made, pod[1], event, self._created)
            self.found[event["auditID"]] = made

    def _before(self, pod: tuple[str, str], event: Json) -> tuple[Json | None, str]:
        """Return what the status of a pod had of resources before a patch, and the memory limit."""
        before, kept = self._resources.get(pod), self._memory.get(pod, "")
        after = (event.get("responseObject") or {}).get("status")
        if isinstance(after, dict):  # of a refusal it is a word
            self._resources[pod] = after.get("resources")
            if _memory_limit(after) != NO_LIMIT_OF_V1:
                self._memory[pod] = str(_memory_limit(after) or "")
        return before, kept

    def _leads_to_nothing(self, read: str, *, is_so: bool) -> None:
        self.found[read] = dataclasses.replace(self.found[read], led_to_nothing_told=is_so)

    def _scene_of(self, event: Json) -> str:
        """Return the scene that an entry belongs to, "" if it is not to be compared."""
        user = (event.get("impersonatedUser") or event["user"])["username"]
        if user != f"system:node:{self._side.node}":
            return ""
        if event.get("userAgent", "").startswith(OWN_AGENT) and self._ledger.takes(
            REQUEST_OF_FLEET
        ):
            return ""
        about: Json = event.get("objectRef") or {}
        namespace = about.get("namespace", "") or owner_of(about, self._side)
        if namespace in self._side.namespaces:
            return self._side.namespaces[namespace]
        if namespace in OF_THE_NODE:
            return NODE_SCOPE
        # Each play is compared by itself; nothing else has a namespace that no play had.
        others = self._side.others
        return "" if others is None or namespace in others else NODE_SCOPE


def tells_nothing(event: Json, before: Json, ledger: Ledger, kept: str = "") -> bool:
    """Whether a patch says only what a row of differences.md leaves out, of which one is left.

    `before` has the resources that the status had before the patch, and `kept` the memory limit
    that it would have with cgroup v2.
    """
    about: Json = event.get("objectRef") or {}
    pod = f"{about.get('namespace', '')}/{about.get('name', '')}"
    rows = {
        PATCH_WITHOUT_LIMIT: tells_no_limit(event, before, kept),
        PATCH_OF_A_CGROUP: tells_no_cgroup(event),
        PATCH_OF_AN_ADDRESS: tells_no_address(event),
    }
    name = next((name for name, is_so in rows.items() if is_so), "")
    return bool(name) and ledger.takes(name, pod)


def tells_no_limit(event: Json, before: Json, kept: str = "") -> bool:
    """Whether a patch says nothing but what cgroup v1 calls no limit, or takes that back."""
    status = (event.get("requestObject") or {}).get("status")
    return status == {"resources": {"limits": LIMITS_OF_V1}} or (
        before.get("limits") == LIMITS_OF_V1
        and not kept
        and status == {"resources": {"limits": None}}
    )


def without_cgroup(event: Json, before: Json | None, ledger: Ledger, kept: str = "") -> Json:
    """Leave out of a status what cgroup v1 calls no limit, and the cgroup of a pod that ended.

    With cgroup v2 a pod of which only some containers have a memory limit keeps the one that its
    status had before it ran: `kept`.
    Housekeeping removes the cgroup of a pod that has ended, before its last status or after it.
    Source: pkg/kubelet/cm/helpers_linux.go, MemoryLimitsFromConfig; kubelet_pods.go,
    HandlePodCleanups, convertToAPIPodLevelResourcesStatus.
    """
    told, after = (
        (event.get(each) or {}).get("status") for each in ("requestObject", "responseObject")
    )
    if not isinstance(told, dict) or not isinstance(after, dict):
        return event
    about = event["auditID"]
    old = (before or {}).get("limits") or {}
    if NO_LIMIT_OF_V1 in (_memory_limit(after), old.get("memory")):
        if not ledger.takes(LIMIT_OF_V1, about):
            return event
        is_known = before is not None
        after = _without_limit(after, {}, instead=kept)
        told = _without_limit(told, {} if kept else old, is_known=is_known)
        told = _without_each(told, after)
    if after.get("phase") in ENDED and (
        any("resources" in each and not each["resources"] for each in (told, after))
        and ledger.takes(CGROUP_OF_AN_ENDED_POD, about)
    ):
        told, after = (
            {key: value for key, value in each.items() if key != "resources" or value}
            for each in (told, after)
        )
    return {
        **event,
        "requestObject": {**event["requestObject"], "status": told},
        "responseObject": {**event["responseObject"], "status": after},
    }


def _memory_limit(status: Json) -> object:
    return ((status.get("resources") or {}).get("limits") or {}).get("memory")


def _without_each(told: Json, after: Json) -> Json:
    """Take all limits back at once, as a patch does after which no other is left."""
    limits = (told.get("resources") or {}).get("limits")
    if not limits or any(limits.values()) or (after.get("resources") or {}).get("limits"):
        return told
    return {**told, "resources": {**told["resources"], "limits": None}}


def _without_limit(status: Json, old: Json, *, is_known: bool = False, instead: str = "") -> Json:
    """Leave the limit out, also where it is taken back: a status is then as with cgroup v2.

    A status that has no other resources has an empty object then, which a patch does not say again.
    """
    resources = status.get("resources")
    if not isinstance(resources, dict) or "limits" not in resources:
        return status
    limits = resources["limits"]
    if limits is None:  # of all
        left: Json | None = {} if old == LIMITS_OF_V1 else None
    else:
        is_old = old.get("memory") == NO_LIMIT_OF_V1
        left = {
            key: each
            for key, each in limits.items()
            if each != NO_LIMIT_OF_V1 and not (is_old and key == "memory" and each is None)
        }
        if instead and limits.get("memory") == NO_LIMIT_OF_V1:
            left["memory"] = instead
    kept = {key: each for key, each in resources.items() if key != "limits"}
    if left or left is None:
        kept["limits"] = left
    rest = {key: each for key, each in status.items() if key != "resources"}
    return rest if is_known and not kept else {**rest, "resources": kept}


def tells_no_cgroup(event: Json) -> bool:
    """Whether a patch only takes back what the cgroup of a pod had that has ended.

    Housekeeping removes cgroups of pods that have ended, before their last status or after it.
    Source: pkg/kubelet/kubelet_pods.go, HandlePodCleanups, convertToAPIPodLevelResourcesStatus.
    """
    told, after = (
        (event.get(each) or {}).get("status") for each in ("requestObject", "responseObject")
    )
    if not isinstance(told, dict) or not isinstance(after, dict):  # of a refusal it is a word
        return False
    return [*told] == ["resources"] and after.get("phase") in ENDED


def tells_no_address(event: Json) -> bool:
    """Whether a patch only takes back the addresses of a pod that has ended and is being deleted.

    Once a minute a kubelet removes sandboxes of such pods; if that falls between their last two
    statuses, the last one knows no address.
    Source: pkg/kubelet/kuberuntime/kuberuntime_gc.go, evictSandboxes; pkg/kubelet/pleg/generic.go,
    getPodIPs; kubelet.go, ContainerGCPeriod.
    """
    told, after = (
        (event.get(each) or {}).get("status") for each in ("requestObject", "responseObject")
    )
    if not isinstance(told, dict) or not isinstance(after, dict):  # of a refusal it is a word
        return False
    if {**told, "resources": None} != {"podIP": None, "podIPs": None, "resources": None}:
        return False
    return after.get("phase") in ENDED and after.get("observedGeneration", 0) > FIRST


def owner_of(about: Json, side: Side) -> str:
    """Return the namespace of the scene that a volume was made for: its name begins with it."""
    if about.get("resource") != "persistentvolumes":
        return ""
    name = str(about.get("name", ""))
    namespaces = (*side.namespaces, *(side.others or ()))
    return next((each for each in namespaces if name.startswith(f"{each}-")), GONE)


def _exchange(
    event: Json, scene: str, normaliser: Normaliser, noted: tuple[Json, Json, int] | None
) -> Exchange:
    about: Json = event.get("objectRef") or {}
    subresource = about.get("subresource", "")
    resource = str(about.get("resource", event["requestURI"]))
    resource = f"{resource}/{subresource}" if subresource else resource
    url = urlsplit(event["requestURI"])
    status = (event.get("responseObject") or {}).get("status") if resource in STATUSES else None
    asked, _answered, connection = noted or ({}, {}, 0)
    headers = {
        name: normaliser.text(str(value), name)
        for name, value in asked.items()
        if not name.startswith(":")
    }
    if noted is not None:
        for name in (
            "content-type",
            "x-kubernetes-pf-flowschema-uid",
            "x-kubernetes-pf-prioritylevel-uid",
        ):
            # The UIDs of a flow schema and a priority level are the same for both nodes, or differ.
            headers[f"answer {name}"] = str(_answered.get(name, "none"))
    return Exchange(
        seconds(event["requestReceivedTimestamp"]),
        scene,
        event["verb"],
        resource,
        normaliser.text(about.get("name", ""), "metadata.name" if resource == "events" else ""),
        normaliser.text(url.path, "uri"),
        query_of(normaliser.text(url.query)),
        event.get("responseStatus", {}).get("code", 0),
        normaliser.flat(event.get("requestObject") or {}),
        normaliser.flat({"status": status}) if status is not None else {},
        headers,
        identity_of(event),
        connection,
    )


def _whole_event(
    made: Exchange, name: str, event: Json, created: dict[str, Mapping[str, Leaf]]
) -> Exchange:
    """Give the patch of an Event what it does not change, so that it says what it is about."""
    if made.verb == "create":
        name = str((event.get("requestObject") or {}).get("metadata", {}).get("name", ""))
        created[name] = made.body
        return made
    body = {**created.get(name, {}), **made.body}
    created[name] = body
    values = {key: getattr(made, key) for key in made.__dataclass_fields__}
    return Exchange(**{**values, "body": body})


def identity_of(event: Json) -> str:
    """Tell whether the user of a request is who has sent it, and its groups."""
    impersonated = event.get("impersonatedUser")
    groups = (impersonated or event["user"]).get("groups", ())
    return " ".join(("impersonated" if impersonated else "itself", "in", *sorted(groups)))


def query_of(text: str) -> tuple[tuple[str, str], ...]:
    """Return the parameters in their order, random timeouts by their range."""
    pairs = parse_qsl(text, keep_blank_values=True)
    seconds_asked = dict(pairs).get("timeoutSeconds")
    return tuple((key, _plain(key, value, seconds_asked)) for key, value in pairs)


def _plain(key: str, value: str, asked: str | None) -> str:
    if key == "resourceVersion" and value != "0":
        return "N"
    if asked is None:
        return value
    if key == "timeoutSeconds":
        ranges = [name for name, (low, high) in WATCH_S.items() if low <= int(value) <= high]
        return ranges[0] if ranges else value
    if key == "timeout" and _duration_s(value) == int(asked):
        return "timeoutSeconds"
    return value


def _duration_s(text: str) -> int:
    """Return what Go writes for whole seconds: 1h2m3s."""
    total, number = 0, ""
    for letter in text:
        if letter.isdigit():
            number += letter
        else:
            total += int(number or 0) * {"h": 3600, "m": 60, "s": 1}.get(letter, 0)
            number = ""
    return total
