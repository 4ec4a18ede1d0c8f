"""What a scenario will ask of an API server, by estimate: `fleet run FILE --dry-run`.

Nodes that idle renew Leases and report their status. What a pod of one container costs, and what
the start of a kubelet, is what the simulation counts, and a server with time to spare. What
controllers and schedulers ask by themselves, what becomes of pods in a fault, node agents and the
bring-up are not in it. Of many kubelets that start at once it is what a crowded server gets.
"""

from collections.abc import Iterator
from pathlib import Path

from fleet.clock import NS_PER_S
from fleet.faults.fault import FaultSpec, FaultType
from fleet.kubelet.node.node_lease import JITTER, RENEW_FRACTION
from fleet.profile.loader import NodeMix
from fleet.scenario.scenario import PhaseSpec, Scenario
from fleet.scenario.workload import Manifest, pods_of

SAMPLED_MAX = 1_000
"""So many nodes stand for all: their profiles repeat much sooner."""
PER_POD = (
    ("POST events", 4.0),
    ("GET pods", 7.0),
    ("PATCH pods/status", 5.0),
    ("POST serviceaccounts/token", 1.0),
    ("DELETE pods", 1.0),
)
"""Requests of a kubelet over the life of a pod whose image is there, fidelity `kubelet`.

A server that answers late gets fewer: statuses that wait are sent as one.
"""
WATCHES = 5  # nodes, pods, services, csidrivers, runtimeclasses
PER_START = (
    ("WATCH", WATCHES),
    ("POST events", 6),
    ("GET nodes", 2),
    ("GET csinodes", 2),
    ("GET leases", 1),
    ("POST nodes", 1),
    ("PATCH nodes/status", 1),
    ("DELETE resourceslices", 1),
)
"""Requests of a kubelet that starts anew and finds its Node, fidelity `kubelet`."""
CROWDED = {"POST events": 8, "GET leases": 1.7, "PATCH nodes/status": 2}
"""Of them those that become more, each of so many, where starting kubelets wait for one another.

Then a kubelet is NotReady at its first report, for want of its CSINode, and says so; later it says
that it is Ready. Requests that are refused, or get no answer, are sent again. Measured with 1,000
at once on two cores.
"""
CROWD_MIN = 200
"""So many at once, on two cores. 60 do not crowd them; nothing between was measured."""
STARTS = frozenset((FaultType.KUBELET_RESTART, FaultType.KUBELET_DOWN))


def forecast(scenario: Scenario, origin: Path, nodes: int, mix: NodeMix, *, light: bool) -> str:
    """Return the estimates as lines: objects, requests a second, of pods and faults by phase.

    Raises UsageError for manifests that cannot be read.
    """
    lines = ["", "forecast (estimates; without controllers, node agents and the bring-up):"]
    lines.append(
        f"  objects   {nodes:,} each of {'Node, Lease' if light else 'Node, Lease, CSINode'}"
    )
    for phase in scenario.spec.phases:
        lines += (f"            {each}" for each in _objects(phase, origin))
    if not light:
        lines.append(f"  open      {nodes:,} connections, {nodes * WATCHES:,} watches")
    rates = ", ".join(f"{what} {rate:.1f}/s" for what, rate in idle(nodes, mix))
    lines.append(f"  idle      {rates}")
    for phase in scenario.spec.phases:
        lines += (f"  {phase.name:9} {each}" for each in _requests(phase, origin, light=light))
        if not light:
            lines += (f"  {phase.name:9} {each}" for each in _starts(phase, nodes))
    return "\n".join(lines)


def idle(nodes: int, mix: NodeMix) -> list[tuple[str, float]]:
    """Return what nodes ask a second while nothing happens."""
    sampled = min(nodes, SAMPLED_MAX)
    leases = statuses = 0.0
    for index in range(sampled):
        kubelet = mix.model_of(index).kubelet
        interval_s = kubelet.node_lease_duration_seconds / RENEW_FRACTION
        leases += 1 / (interval_s * (1 + JITTER / 2))
        statuses += NS_PER_S / kubelet.status_report_ns
    scale = nodes / sampled
    return [("PUT leases", leases * scale), ("PATCH nodes/status", statuses * scale)]


def _objects(phase: PhaseSpec, origin: Path) -> Iterator[str]:
    for apply in phase.apply:
        for each in apply.manifests(origin):
            pods = pods_of(each) * apply.count
            of = f" with {pods:,} pods" if pods and each["kind"] != "Pod" else ""
            yield f"{apply.count:,} {each['kind']}{of} ({phase.name})"
    for churn in phase.churn:
        alive = churn.rate * min(churn.lifetime_ns, phase.duration_ns) / NS_PER_S
        for each in churn.manifests(origin):
            yield f"{alive:,.0f} {each['kind']} at a time ({phase.name})"


def _requests(phase: PhaseSpec, origin: Path, *, light: bool) -> Iterator[str]:
    pods = sum(
        pods_of(each) * apply.count for apply in phase.apply for each in apply.manifests(origin)
    )
    if pods and not light:
        counts = ", ".join(f"{what} {each * pods:,.0f}" for what, each in PER_POD[:-1])
        yield f"{pods:,} pods: {counts} in all"
    for churn in phase.churn:
        yield ", ".join(_of_churn(churn.manifests(origin), churn.rate, light=light))


def _of_churn(manifests: list[Manifest], rate: float, *, light: bool) -> Iterator[str]:
    for each in manifests:
        kind = str(each["kind"])
        yield f"POST {kind} and DELETE {kind} {rate:g}/s of fleet's own"
    pods = sum(map(pods_of, manifests)) * rate
    if pods and not light:
        yield from (f"{what} {each * pods:.1f}/s" for what, each in PER_POD)


def _starts(phase: PhaseSpec, nodes: int) -> Iterator[str]:
    """Yield what kubelets ask that start anew after a fault."""
    for fault in phase.faults:
        if fault.type in STARTS:
            hit = max(1, round(fault.share * nodes))
            is_crowd = hit >= CROWD_MIN
            more = CROWDED if is_crowd else {}
            counts = ", ".join(
                f"{what} {more.get(what, each) * hit:,.0f}" for what, each in PER_START
            )
            how = ", a crowd for two cores" if is_crowd else ""
            yield f"{_at_most(fault)}{hit:,} kubelets start anew{how}: {counts} in all"


def _at_most(fault: FaultSpec) -> str:
    is_narrowed = bool(fault.zone or fault.nodes or fault.node_selector.match_labels)
    return "at most " if is_narrowed else ""
