"""A node's requests as the audit log has them, without what differs between two runs of one thing.

Left out of a request are names, uids and times. Left out of a trace are what says nothing about the
kubelet: a GET of a pod that another GET follows (its status had not changed; how many there are is
a matter of milliseconds), and how many renewals there were, but not how far apart.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from support.header_tap import Noted

from parity.differences import LIMITS

Json = dict[str, Any]

MADE_UP = re.compile(r"(?<=kube-api-access-)[a-z0-9]{5}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""By an admission plug-in; and uids."""
OWN_AGENT = "fleet/"
"""What fleet asks for itself, beside its kubelets, says so."""
WATCH_S = {"300..600": (300, 600), "1800..3600": (1800, 3600)}
"""Reflectors of most resources (kubelet_network.go and others give none) and of single objects."""
MERGE_KEYS = ("type", "name", "key")
TIMES = re.compile(r"\.last(Transition|Heartbeat)Time$")
"""A patch has these if their second has changed."""
TOLD = re.compile(r"^status\.phase$|(?<=\.state\.)\w+")
CONDITION = re.compile(r"^status\.conditions\[type=\w+\]\.type$")
ORDER = "status.$setElementOrder/conditions"
[REGISTRATION_S] = LIMITS["registration_s"]
REPORT = "patch nodes/status"
COMPARED = ("content-type", "accept", "accept-encoding")
NOTHING: Mapping[str, Noted] = {}
GENERATED = re.compile(r"(-[a-z0-9]{8,10})?-[a-z0-9]{5}$")
"""The end of a pod's name, if a controller made it up."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a node."""

    at_s: float
    """Since the epoch."""
    verb: str
    resource: str
    """With the subresource."""
    name: str
    is_namespaced: bool
    """Whether in the node's own namespace."""
    query: tuple[tuple[str, str], ...]
    code: int
    body: frozenset[str]
    """The paths of its keys."""
    agent: str
    headers: tuple[tuple[str, str], ...] = ()
    """What the proxy noted of COMPARED, of the request and of the answer."""
    connection: int = 0
    identity: str = ""
    """Whether it came under the node's own name, and the groups that the name has."""

    @property
    def token(self) -> str:
        """What two requests share if they are the same request."""
        query = "&".join(f"{key}={value}" for key, value in self.query)
        name = GENERATED.sub("-X", self.name) if self.resource.startswith("pods") else self.name
        return f"{self.verb} {self.resource} {name}{'?' + query if query else ''} {self.code}"

    @property
    def shape(self) -> str:
        """The token, and of a pod's status what it tells: by that two of them are the same."""
        if self.resource != "pods/status":
            return self.token
        told = {match[0] for match in map(TOLD.search, self.body) if match}
        return " ".join((self.token, *sorted(told)))

    @property
    def stream(self) -> str:
        """The object that it is about; the order of requests about different ones is chance."""
        kind = "events" if self.resource == "events" else self.resource.partition("/")[0]
        name = "" if kind == "events" else self.name
        watched = dict(self.query).get("fieldSelector", "") if self.verb == "watch" else ""
        if self.verb == "get" and kind == "nodes":
            return "nodes get"  # two of its loops look for the Node, each at its own times
        token = "with an audience" if "spec.audiences[]" in self.body else ""
        return " ".join(filter(None, (kind, name, watched, self.verb if watched else "", token)))


Window = tuple[float, float]


def trace(
    events: list[Json],
    node: str,
    namespace: str,
    void: Collection[Window] = (),
    noted: Mapping[str, Noted] = NOTHING,
) -> list[Request]:
    """Return the requests of a node in their order.

    Left out are those in its namespace within the time windows `void`.
    """
    seen: set[str] = set()
    requests = []
    for event in events:
        user = (event.get("impersonatedUser") or event["user"])["username"]
        agent = event.get("userAgent", "")
        if user != f"system:node:{node}" or agent.startswith(OWN_AGENT):
            continue
        if event["auditID"] in seen:  # a watch has two entries
            continue
        seen.add(event["auditID"])
        request = parse(event, {node: "NODE", namespace: "NAMESPACE"}, noted)
        if not (request.is_namespaced and any(a <= request.at_s <= b for a, b in void)):
            requests.append(request)
    requests.sort(key=lambda each: each.at_s)
    return _with_one_first_report(
        [each for each in requests if not _is_early_read(each, requests[0].at_s)]
    )


def _with_one_first_report(requests: list[Request]) -> list[Request]:
    """Make one of the reports of a Node's status at its registration.

    The second of its creation may be over or not when the next is due, and the reasons why it is
    not Ready end one after the other (the runtime was not asked yet, the CSINode is not there yet),
    with a report between them or not.
    Source: pkg/kubelet/kubelet.go, fastStatusUpdateOnce; pkg/kubelet/nodestatus/setters.go.
    """
    early = [
        each
        for each in requests
        if each.token.startswith(REPORT) and each.at_s < requests[0].at_s + REGISTRATION_S
    ]
    if not early:
        return requests
    told = frozenset[str]().union(*(each.body for each in early))
    return [
        dataclasses.replace(each, body=told) if each is early[-1] else each
        for each in requests
        if each not in early[:-1]
    ]


def _is_early_read(request: Request, start_s: float) -> bool:
    """Whether it reads the Node because neither informer nor API server has it: a matter of luck.

    Source: pkg/kubelet/kubelet_node_status.go, tryUpdateNodeStatus; pkg/kubelet/util/nodelease.go.
    """
    is_read = request.token.startswith(("get nodes NODE?timeout=10s", "get nodes NODE 404"))
    return is_read and request.at_s < start_s + REGISTRATION_S


def parse(event: Json, names: dict[str, str], noted: Mapping[str, Noted] = NOTHING) -> Request:
    """Make a request of an entry of the audit log; `names` are replaced."""

    def plain(text: str) -> str:
        for name, word in names.items():
            text = text.replace(name, word)
        return MADE_UP.sub("X", text)

    about: Json = event.get("objectRef") or {}
    subresource = about.get("subresource", "")
    resource = str(about.get("resource", event["requestURI"]))
    body = event.get("requestObject") or {}
    return Request(
        datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(),
        event["verb"],
        f"{resource}/{subresource}" if subresource else resource,
        plain(about.get("name", "")),
        plain(about.get("namespace", "")) == "NAMESPACE",
        query(plain(event["requestURI"])),
        event.get("responseStatus", {}).get("code", 0),
        frozenset(plain(path) for path in without_times(paths(body, ""))),
        agent_form(event.get("userAgent", "")),
        *headers(noted.get(event["auditID"])),
        identity_of(event),
    )


def identity_of(event: Json) -> str:
    """Tell whether the user of a request is who has sent it, and its groups."""
    impersonated = event.get("impersonatedUser")
    groups = (impersonated or event["user"]).get("groups", ())
    return " ".join(("impersonated" if impersonated else "itself", "in", *sorted(groups)))


def headers(noted: Noted | None) -> tuple[tuple[tuple[str, str], ...], int]:
    """Return the headers to compare, and the number of the connection."""
    if noted is None:
        return (), 0
    asked = ((name, noted.request.get(name, "none")) for name in COMPARED)
    answered = ("content-type of the answer", noted.response.get("content-type", "none"))
    return (*asked, answered), noted.connection


def agent_form(agent: str) -> str:
    """Return a user agent without its version and commit."""
    return re.sub(
        r"v\d+\.\d+\.\d+", "VERSION", re.sub(r"kubernetes/\w+$", "kubernetes/HASH", agent)
    )


def query(uri: str) -> tuple[tuple[str, str], ...]:
    """Return the parameters in their order, random timeouts by their range."""
    pairs = parse_qsl(urlsplit(uri).query, keep_blank_values=True)
    seconds = dict(pairs).get("timeoutSeconds")
    return tuple((key, _plain_value(key, value, seconds)) for key, value in pairs)


def _plain_value(key: str, value: str, seconds: str | None) -> str:
    if key == "resourceVersion" and value != "0":
        return "N"
    if seconds is None:
        return value
    if key == "timeoutSeconds":
        ranges = [name for name, (low, high) in WATCH_S.items() if low <= int(value) <= high]
        return ranges[0] if ranges else value
    if key == "timeout" and _duration_s(value) == int(seconds):
        return "timeoutSeconds"
    return value


def _duration_s(text: str) -> int:
    """Return what Go writes for whole seconds: 1h2m3s."""
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([hms])", text))


def paths(value: object, at: str) -> set[str]:
    """Return the path of every leaf; an item of a list goes by its merge key."""
    found: set[str] = set()
    if isinstance(value, dict) and value:
        for key, each in value.items():
            found |= paths(each, f"{at}.{key}" if at else key)
    elif isinstance(value, list) and value:
        for each in value:
            found |= paths(each, f"{at}[{_item(each)}]")
    else:
        found.add(at)
    return found - {""}


def without_times(found: set[str]) -> set[str]:
    """Leave out times, and conditions of which nothing else has changed."""
    kept = {path for path in found if not TIMES.search(path)}
    changed = {path.rpartition(".")[0] for path in kept if not CONDITION.search(path)}
    kept = {
        path for path in kept if not CONDITION.search(path) or path.rpartition(".")[0] in changed
    }
    if not any(path.startswith("status.conditions[") for path in kept):
        kept = {path for path in kept if not path.startswith(ORDER)}
    return kept


def _item(value: object) -> str:
    if isinstance(value, dict):
        return next((f"{key}={value[key]}" for key in MERGE_KEYS if key in value), "")
    return ""
