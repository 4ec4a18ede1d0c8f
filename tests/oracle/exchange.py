"""What a node asks of the API server, with all values: the audit log and what the proxy noted."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from normalisation import NO_LIMIT_OF_V1, Json, Leaf, Normaliser, is_time, seconds

OWN_AGENT = "fleet/"
"""What fleet asks for itself, beside its kubelets, says so."""
NODE_SCOPE = "node"
"""The scene of what belongs to no scene's namespace."""
STATUSES = ("pods/status", "nodes/status")
"""Of these the audit log has the object after the write."""
WATCH_S = {"300..600": (300, 600), "1800..3600": (1800, 3600)}
"""Reflectors of most resources, and of single objects: client-go/tools/cache/reflector.go."""
FORBIDDEN = 403
ENDED = ("Succeeded", "Failed")
FIRST = 1
"""The generation of a pod that was neither changed nor deleted yet."""
GONE = "-"
"""For a namespace of a scene that was played again."""
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

    def since_start_s(self, at_s: float, cut_s: float = 0) -> float:
        """Return how long before a time the node was started last.

        A time of which up to `cut_s` is cut off may be that much later.
        """
        return at_s - max(
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
    """The scene of each of its namespaces; those of scenes that were played again are not here."""
    generated: Mapping[str, str] = field(default_factory=dict)
    """What stands for names that controllers made up."""

    def normaliser(self) -> Normaliser:
        scenes = dict.fromkeys(self.namespaces, "SCENE")
        return Normaliser({**scenes, **self.generated, self.node: "NODE"})


def exchanges(
    events: Iterable[Json], side: Side, noted: Mapping[str, tuple[Json, Json, int]]
) -> list[Exchange]:
    """Return what a node has asked, in the order of time.

    `noted` has request headers, response headers and connection by audit ID. A request about an
    Event that is patched is completed with what it was when it was created: the patch has little.
    The read before a patch that is left out says so.
    """
    found: dict[str, Exchange] = {}
    reads: dict[tuple[str, str], str] = {}
    normaliser = side.normaliser()
    created: dict[str, Mapping[str, Leaf]] = {}
    for event in events:
        user = (event.get("impersonatedUser") or event["user"])["username"]
        if user != f"system:node:{side.node}" or event.get("userAgent", "").startswith(OWN_AGENT):
            continue
        about: Json = event.get("objectRef") or {}
        namespace = about.get("namespace", "") or owner_of(about, side)
        scene = side.namespaces.get(namespace, NODE_SCOPE)
        if scene is NODE_SCOPE and namespace not in (
            "",
            "default",
            "kube-node-lease",
            "kube-system",
        ):
            continue  # of a scene that was played again
        pod = namespace, str(about.get("name", ""))
        if tells_no_limit(event) or tells_no_cgroup(event) or tells_no_address(event):
            read = reads.pop(pod, "")
            if read in found:
                found[read] = dataclasses.replace(found[read], led_to_nothing_told=True)
            continue
        if about.get("resource") == "pods":
            reads.pop(pod, None)
            if event["verb"] == "get":
                reads[pod] = event["auditID"]
        if event["auditID"] not in found:  # a watch has two entries
            made = _exchange(event, scene, normaliser, noted.get(event["auditID"]))
            if made.resource == "events":
                made = _whole_event(made, str(about.get("name", "")), event, created)
            found[event["auditID"]] = made
    return sorted(found.values(), key=lambda each: each.at_s)


def tells_no_limit(event: Json) -> bool:
    """Whether a patch tells nothing but what cgroup v1 calls no limit. See the table."""
    status = (event.get("requestObject") or {}).get("status")
    return status in (
        {"resources": {"limits": {"memory": NO_LIMIT_OF_V1}}},
        {"resources": {"limits": None}},
    )


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
    return next((each for each in side.namespaces if name.startswith(f"{each}-")), GONE)


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
