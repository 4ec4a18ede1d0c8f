"""What the objects of a scenario ask of a cluster: kinds x replicas x requests, for its owner."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet.quantity import Quantity, parse_quantity
from fleet.scenario.placement import pod_specs
from fleet.scenario.scenario import Scenario
from fleet.scenario.workload import Manifest, pods_of

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
        parts = [
            *((each, float(each.count)) for each in phase.apply),
            *(
                (each, each.rate * min(each.lifetime_ns, phase.duration_ns) / 1e9)
                for each in phase.churn
            ),
        ]
        for part, count in parts:
            for manifest in part.manifests(origin):
                metadata: Json = manifest["metadata"]  # type: ignore[assignment]
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


def _line(manifest: Manifest, copies: int, paths: Sequence[str], nodes: int) -> tuple[int, str]:
    """Return how many pods copies of an object make at a time, and the words for them."""
    metadata: Json = manifest["metadata"]  # type: ignore[assignment]
    text = f"{copies:,} x {manifest['kind']} {metadata['name']}"
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
    spec = _mapping(manifest.get("spec"))
    if kind == "DaemonSet":
        return nodes
    if kind == "CronJob":
        spec = _mapping(_mapping(spec.get("jobTemplate")).get("spec"))
    if kind in {"Job", "CronJob"}:
        wanted = spec.get("parallelism", 1)
        return wanted if isinstance(wanted, int) else 1
    if kind in {"Pod", "Deployment", "ReplicaSet", "StatefulSet", "ReplicationController"}:
        return pods_of(manifest)
    return None


def requests_of(spec: Json) -> dict[str, Quantity]:
    """Return what a pod of a spec requests; where a request lacks, its limit counts.

    Source: k8s.io/component-helpers/resource/helpers.go, PodRequests; pkg/apis/core/v1/defaults.go.
    """
    total: dict[str, Quantity] = {}
    for container in _listed(spec.get("containers")):
        _add(total, _requests(container))
    first: dict[str, Quantity] = {}
    for container in _listed(spec.get("initContainers")):
        asked = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(total, asked)
            continue
        for name, amount in asked.items():
            first[name] = max(first.get(name, amount), amount, key=lambda each: each.nano)
    for name, amount in first.items():
        total[name] = max(total.get(name, amount), amount, key=lambda each: each.nano)
    return {**total, **_requests(spec)}  # those of the whole pod stand for its containers'


def _add(total: dict[str, Quantity], more: Requests) -> None:
    for name, amount in more.items():
        before = total.get(name, Quantity(0, amount.format))
        total[name] = Quantity(before.nano + amount.nano, before.format)


def _requests(container: Json) -> dict[str, Quantity]:
    resources = _mapping(container.get("resources"))
    asked = {**_mapping(resources.get("limits")), **_mapping(resources.get("requests"))}
    found = {}
    for name, amount in asked.items():
        with contextlib.suppress(ValueError):  # the API server says what is wrong with it
            found[str(name)] = parse_quantity(str(amount))
    return found


def _mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _listed(value: object) -> list[Json]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
