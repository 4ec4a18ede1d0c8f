"""Recordings that a test builds: entries of the audit log, as one node's requests make them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from oracle.exchange import Side, Trace, exchanges
from oracle.judge import Recording
from oracle.left_out import Ledger
from oracle.normalisation import Json
from oracle.scene import SIDES, Play

BEGIN_S = 1_800_000_000.0
NODES = {"real": "real-0", "fleet": "fleet-0"}
HOSTS = {"real": "10.0.0.1", "fleet": "10.0.0.2"}
SCENE = "scene"
UIDS = {"web": 1, "other": 2}


def uid(number: int) -> str:
    return f"00000000-0000-0000-0000-{number:012d}"


def container_id(number: int) -> str:
    return f"containerd://{number:064x}"


@dataclass(slots=True)
class Log:
    """What one node asked, in its order."""

    side: str = "real"
    suffix: str = ""
    """Of the namespace: another play of the scene."""
    at_s: float = BEGIN_S
    step_s: float = 0.5
    """How long after the request before it one comes."""
    events: list[Json] = field(default_factory=list)

    @property
    def node(self) -> str:
        return NODES[self.side]

    @property
    def namespace(self) -> str:
        return f"{SCENE}{self.suffix}-{self.side}"

    def ask(
        self,
        verb: str,
        resource: str,
        name: str,
        told: Json | None = None,
        after: Json | None = None,
        *,
        namespace: str | None = None,
        code: int = 200,
    ) -> None:
        """Add a request; `after` is the status that its object has then."""
        self.at_s += self.step_s
        kind, _, subresource = resource.partition("/")
        inside = self.namespace if namespace is None else namespace
        place = f"/namespaces/{inside}" if inside else ""
        at = datetime.fromtimestamp(self.at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        made: Json = {
            "auditID": f"{self.side}{self.suffix}{len(self.events)}",
            "verb": verb,
            "user": {"username": f"system:node:{self.node}", "groups": ["system:nodes"]},
            "userAgent": "kubelet",
            "requestURI": f"/api/v1{place}/{kind}/{name}",
            "requestReceivedTimestamp": at,
            "objectRef": {
                "resource": kind,
                "namespace": inside,
                "name": name,
                "subresource": subresource,
            },
            "responseStatus": {"code": code},
            "requestObject": told,
        }
        if after is not None:
            made["responseObject"] = {"status": after}
        self.events.append(made)

    def registers(self) -> None:
        """Make the Node, which says the node's address."""
        addresses = [{"type": "InternalIP", "address": HOSTS[self.side]}]
        told = {"status": {"addresses": addresses}}
        self.ask("create", "nodes", self.node, told, namespace="", code=201)

    def reports(self, pod: str, status: Json, number: int = 0, told: Json | None = None) -> None:
        """Read a pod and patch its status; `told` is what of it the patch says."""
        self.ask("get", "pods", pod)
        body = {"metadata": {"uid": uid(number or UIDS[pod])}, "status": told or status}
        self.ask("patch", "pods/status", pod, body, status)

    def trace(self, ledger: Ledger | None = None) -> Trace:
        ledger = Ledger(self.side) if ledger is None else ledger
        side = Side(self.node, {self.namespace: SCENE}, {}, self.side)
        found = exchanges(self.events, side, {}, ledger)
        return Trace(found, (BEGIN_S,), (), ledger.totals)


def recording(logs: Iterable[Log]) -> Recording:
    """Return what was recorded of plays: the one that counts is the last."""
    suffixes: Mapping[str, None] = dict.fromkeys(each.suffix for each in logs)
    plays = [
        Play(
            BEGIN_S,
            BEGIN_S + 60,
            {side: f"{SCENE}{suffix}-{side}" for side in SIDES},
            (),
            frozenset(UIDS),
        )
        for suffix in suffixes
    ]
    return Recording(
        [event for each in logs for event in each.events],
        {},
        dict(NODES),
        {side: [BEGIN_S] for side in SIDES},
        {SCENE: plays[-1]},
        {SCENE: len(plays) - 1},
        [],
        {SCENE: plays[:-1]},
    )
