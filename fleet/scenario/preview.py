"""What a scenario does when, and what it will ask: `fleet run FILE --dry-run`, and `demand`.

`time_line` says what happens when, `demand` what the objects ask of a cluster (kinds x replicas x
requests), `forecast` what an API server will be asked, by estimate.

Nodes that idle renew Leases and report their status. What a pod of one container costs, and what
the start of a kubelet, is what the simulation counts, and a server with time to spare. What
controllers and schedulers ask by themselves, what becomes of pods in a fault, node agents and the
bring-up are not in it. Of many kubelets that start at once it is what a crowded server gets.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from fleet.clock import NS_PER_S
from fleet.faults.fault import FAULTS, FaultSpec, FaultType, words_of
from fleet.k8s.admission import Demand, pod_resources
from fleet.k8s.schema import part_of
from fleet.kubelet.node.node_lease import JITTER, RENEW_FRACTION
from fleet.profile.loader import NodeMix
from fleet.quantity import Quantity, format_duration, parse_quantity
from fleet.report.summary_text import size
from fleet.scenario.placement import pod_specs
from fleet.scenario.scenario import (
    ApplySpec,
    ChurnSpec,
    Manifest,
    ManifestSpec,
    PhaseFault,
    PhaseSpec,
    Scenario,
    faults_of,
    metadata_of,
    pods_of,
)


def time_line(scenario: Scenario, nodes: int, seed: int | None = None) -> str:
    """Return the time line, in minutes since all nodes were Ready; `seed`: the run's or the file's.

    What follows a phase that waits for something comes at the earliest then: `>=`.
    """
    pools = ", ".join(f"{each.replicas} of {each.profile}" for each in scenario.spec.node_pools)
    seed = scenario.spec.seed if seed is None else seed
    lines = [f"{scenario.metadata.name}: {nodes} nodes ({pools} in the file), seed {seed}", ""]
    lines.append(f"{'':>9}  bring-up: until all nodes are Ready")
    at_ns, is_open = 0, False
    for number, phase in enumerate(scenario.spec.phases):
        lines += (
            f"{_clock(at_ns + offset_ns, is_open=is_open):>9}  {text}"
            for offset_ns, text in _lines(phase, faults_of(phase, number, seed), nodes)
        )
        at_ns += phase.duration_ns
        is_open = is_open or phase.until is not None
    lines.append(f"{_clock(at_ns, is_open=is_open):>9}  clean-up and verdict")
    return "\n".join(lines)


def _lines(phase: PhaseSpec, faults: Iterable[PhaseFault], nodes: int) -> Iterator[tuple[int, str]]:
    waits = []
    if phase.duration_ns:
        waits.append(f"for {format_duration(phase.duration_ns)}")
    if phase.until is not None:
        limit = format_duration(phase.until.timeout_ns)
        waits.append(f"until {phase.until.condition}, {limit} at most")
    yield 0, f"{phase.name}: {', then '.join(waits)}"
    marks = []
    for fault in faults:
        lasts = "" if fault.duration_ns is None else f" for {format_duration(fault.duration_ns)}"
        marks.append((fault.at_ns, f"  {words_of(fault)}{whom(fault)}{lasts}"))
        if fault.duration_ns is not None:
            marks.append((fault.at_ns + fault.duration_ns, f"  {words_of(fault)} is healed"))
    for each in phase.apply:
        what = what_of(each)
        if each.pods_per_node is not None:
            what = f"{each.pods_per_node} pods per node by {what}"
        elif each.count is not None and each.count > 1:
            what = f"{each.count} times {what}, {rate_words(each.rate)}"
        marks.append((each.at_ns, f"  apply {what}"))
    marks += [
        (
            0,
            (
                f"  churn {what_of(each)}, {rate_words(each.per_second(nodes))}, each for "
                f"{format_duration(each.lifetime_ns)}"
            ),
        )
        for each in phase.churn
    ]
    yield from sorted(marks)


def what_of(spec: ManifestSpec) -> str:
    if spec.manifest is None:
        return spec.file
    return f"{spec.manifest['kind']} {metadata_of(spec.manifest)['name']}"


def rate_words(rate: float) -> str:
    return f"{rate:g}/s"


def whom(fault: FaultSpec) -> str:
    """Say which nodes a fault hits, "" if it is none of nodes."""
    if FAULTS[fault.type].of_control_plane:
        return ""
    labels = fault.node_selector.match_labels.items()
    parts = [f"{key}={value}" for key, value in labels]
    parts += [f"zone {fault.zone}"] if fault.zone else []
    parts += [", ".join(fault.nodes)] if fault.nodes else []
    among = " and ".join(parts) or "all nodes"
    return f" on {among}" if fault.share == 1.0 else f" on {fault.share:.0%} of {among}"


def _clock(at_ns: int, *, is_open: bool) -> str:
    minutes, seconds = divmod(at_ns // NS_PER_S, 60)
    return f"{'>=' if is_open else ''}{minutes}:{seconds:02d}"


Json = dict[str, Any]
Requests = Mapping[str, Quantity]
SHOWN_MAX = 12
"""Kinds of objects in the question, which must stay on one screen."""


def demand(scenario: Scenario, origin: Path, nodes: int) -> list[str]:
    """Return a line for each object that a scenario applies, the most pods first.

    Of an object that phases change the most pods count. Raises UsageError for manifests that cannot
    be read.
    """
    lines: dict[tuple[str, str, str], tuple[int, str]] = {}
    for phase in scenario.spec.phases:
        for part, manifest, count in _parts(phase, origin, nodes):
            metadata = metadata_of(manifest)
            key = (
                str(manifest["kind"]),
                str(metadata.get("namespace", "default")),
                str(metadata["name"]),
            )
            found = _line(manifest, max(1, round(count)), part.pod_templates, nodes)
            if found[0] > lines.get(key, (-1, ""))[0]:
                lines[key] = found
    rows = sorted(lines.values(), key=lambda each: -each[0])
    more = [f"and {len(rows) - SHOWN_MAX:,} more"] if len(rows) > SHOWN_MAX else []
    return [text for _, text in rows[:SHOWN_MAX]] + more


def _parts(
    phase: PhaseSpec, origin: Path, nodes: int
) -> Iterator[tuple[ApplySpec | ChurnSpec, Manifest, float]]:
    """Yield each object of a phase with how many copies there are at a time."""
    for apply in phase.apply:
        count = apply.copies(manifests := apply.manifests(origin), nodes)
        yield from ((apply, each, count) for each in manifests)
    for churn in phase.churn:
        alive = churn.at_a_time(nodes, phase.duration_ns)
        yield from ((churn, each, alive) for each in churn.manifests(origin))


def _line(manifest: Manifest, copies: int, paths: Sequence[str], nodes: int) -> tuple[int, str]:
    """Return how many pods copies of an object make at a time, and the words for them."""
    text = f"{copies:,} x {manifest['kind']} {metadata_of(manifest)['name']}"
    specs = pod_specs(manifest, paths)
    each = _pods_at_a_time(manifest, nodes)
    if not specs and not each:
        return 0, text
    if each is None:
        return 0, f"{text}: its controller says how many pods{_of_each(specs)}"
    pods = copies * each
    text += "" if manifest["kind"] == "Pod" else f": {pods:,} pods"
    total = {
        name: Quantity(amount.nano * pods, amount.format)
        for spec in specs
        for name, amount in requests_of(spec).items()
    }
    together = f", together {_words(total)}" if total and pods > 1 else ""
    return pods, text + _of_each(specs) + together


def _of_each(specs: Sequence[Json]) -> str:
    told = [_words(requests_of(spec)) or "no requests" for spec in specs]
    return f", each {' or '.join(dict.fromkeys(told))}" if told else ""


def _words(requests: Requests) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in sorted(requests.items()))


def _pods_at_a_time(manifest: Manifest, nodes: int) -> int | None:
    """Return how many pods an object has at a time, None if only its controller knows."""
    kind = manifest["kind"]
    spec = part_of(manifest, "spec")
    if kind == "DaemonSet":
        return nodes
    if kind == "CronJob":
        spec = part_of(part_of(spec, "jobTemplate"), "spec")
    if kind in {"Job", "CronJob"}:
        wanted = spec.get("parallelism", 1)
        return wanted if isinstance(wanted, int) else 1
    if kind in {"Pod", "Deployment", "ReplicaSet", "StatefulSet", "ReplicationController"}:
        return pods_of(manifest)
    return None


def requests_of(spec: Json) -> dict[str, Quantity]:
    """Return what a pod of a spec requests; where a request lacks, its limit counts."""
    first, main = (_demands(spec.get(name)) for name in ("initContainers", "containers"))
    own = _demand(spec)
    asked = pod_resources(main, first, {}, own if own.requests else None).allocated
    return {name: parse_quantity(text) for name, text in orjson.loads(asked or b"{}").items()}


def _demands(containers: object) -> list[Demand]:
    listed = containers if isinstance(containers, list) else []
    return [_demand(each) for each in listed if isinstance(each, dict)]


def _demand(container: Json) -> Demand:
    resources = part_of(container, "resources")
    asked = {**part_of(resources, "limits"), **part_of(resources, "requests")}
    found: dict[str, str] = {}
    for name, amount in asked.items():
        with contextlib.suppress(ValueError):  # the API server says what is wrong with it
            found[str(name)] = str(parse_quantity(str(amount)))
    return Demand(found, {}, container.get("restartPolicy") == "Always")


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
    ("POST events", 6),
    ("GET nodes", 2),
    ("GET csinodes", 2),
    ("GET leases", 1),
    ("POST nodes", 1),
    ("PATCH nodes/status", 1),
    ("DELETE resourceslices", 1),
)
"""Requests of a kubelet that restarts and finds its Node, fidelity `kubelet`; its watches apart."""
CROWDED = {"POST events": 8, "GET leases": 1.7, "PATCH nodes/status": 2}
"""Of them those that become more, each of so many, where starting kubelets wait for one another.

Then a kubelet is NotReady at its first report, for want of its CSINode, and says so; later it says
that it is Ready. Requests that are refused, or get no answer, are sent again. Measured with 1,000
at once on two cores.
"""
CROWD_MIN = 200
"""So many at once, on two cores. 60 do not crowd them; nothing between was measured."""


class Stored(NamedTuple):
    """Bytes in etcd, with keys and pages."""

    node: int
    """With its CSINode."""
    lease: int
    """Each of its versions."""
    pod: int
    """A running pod with its Events, which stay for an hour."""
    pod_history: int
    """What the start of a pod has written besides."""


STORED = {False: Stored(10_800, 750, 6_300, 14_000), True: Stored(2_600, 400, 4_100, 6_100)}
"""By whether the fidelity is light. Measured with 100 nodes and 500 pods of a Deployment."""
HISTORY_S = 600.0
"""The API server compacts each five minutes to what was five minutes before."""
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
        lines += (f"            {each}" for each in _objects(phase, origin, nodes))
    if not light:
        [(_, watches), *_] = watching = _watching(mix)
        lines.append(f"  open      {nodes:,} connections, {nodes * watches:,} watches")
    rates = dict(idle(nodes, mix))
    told = ", ".join(f"{what} {rate:.1f}/s" for what, rate in rates.items())
    lines.append(f"  idle      {told}")
    lines.append(f"  etcd      {_etcd(scenario, origin, nodes, rates, STORED[light])}")
    for phase in scenario.spec.phases:
        asked = _requests(phase, origin, nodes, light=light)
        lines += (f"  {phase.name:9} {each}" for each in asked)
        if not light:
            lines += (f"  {phase.name:9} {each}" for each in _starts(phase, nodes, watching))
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


def _objects(phase: PhaseSpec, origin: Path, nodes: int) -> Iterator[str]:
    for part, each, count in _parts(phase, origin, nodes):
        pods = pods_of(each) * count
        of = f" with {pods:,.0f} pods" if pods and each["kind"] != "Pod" else ""
        of = of if isinstance(part, ApplySpec) else " at a time"
        yield f"{count:,.0f} {each['kind']}{of} ({phase.name})"


def _etcd(
    scenario: Scenario, origin: Path, nodes: int, rates: Mapping[str, float], each: Stored
) -> str:
    """Say how large etcd becomes: objects, and what they were until it is compacted."""
    pods = sum(
        pods_of(manifest) * count
        for phase in scenario.spec.phases
        for _, manifest, count in _parts(phase, origin, nodes)
    )
    kept = nodes * (each.node + each.lease) + pods * each.pod
    written = rates["PUT leases"] * each.lease + rates["PATCH nodes/status"] * each.node
    history = HISTORY_S * written + pods * each.pod_history
    return f"{size(int(kept))} of objects, up to {size(int(history))} of history before compaction"


def _requests(phase: PhaseSpec, origin: Path, nodes: int, *, light: bool) -> Iterator[str]:
    pods = sum(
        pods_of(each) * count
        for part, each, count in _parts(phase, origin, nodes)
        if isinstance(part, ApplySpec)
    )
    if pods and not light:
        counts = ", ".join(f"{what} {each * pods:,.0f}" for what, each in PER_POD[:-1])
        yield f"{pods:,.0f} pods: {counts} in all"
    for churn in phase.churn:
        rate = churn.per_second(nodes)
        yield ", ".join(_of_churn(churn.manifests(origin), rate, light=light))


def _of_churn(manifests: list[Manifest], rate: float, *, light: bool) -> Iterator[str]:
    for each in manifests:
        kind = str(each["kind"])
        yield f"POST {kind} and DELETE {kind} {rate:g}/s of fleet's own"
    pods = sum(map(pods_of, manifests)) * rate
    if pods and not light:
        yield from (f"{what} {each * pods:.1f}/s" for what, each in PER_POD)


def _watching(mix: NodeMix) -> tuple[tuple[str, int], ...]:
    """Return what a kubelet asks for to see its cluster, by its release: the watches come first."""
    release = mix.model_of(0).release
    watches = WATCHES + release.watches_certificate_requests
    return (("WATCH", watches), *(() if release.streams_lists else (("LIST", watches),)))


def _starts(phase: PhaseSpec, nodes: int, watching: tuple[tuple[str, int], ...]) -> Iterator[str]:
    """Yield what kubelets ask that restart after a fault."""
    for fault in phase.faults:
        if fault.type in STARTS:
            hit = max(1, round(fault.share * nodes))
            is_crowd = hit >= CROWD_MIN
            more = CROWDED if is_crowd else {}
            counts = ", ".join(
                f"{what} {more.get(what, each) * hit:,.0f}"
                for what, each in (*watching, *PER_START)
            )
            how = ", a crowd for two cores" if is_crowd else ""
            is_narrowed = fault.zone or fault.nodes or fault.node_selector.match_labels
            most = "at most " if is_narrowed else ""
            yield f"{most}{hit:,} kubelets restart{how}: {counts} in all"
