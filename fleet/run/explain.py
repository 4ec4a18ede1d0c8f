"""`fleet profiles explain`: what fleet takes the programs of a pod for, and what they will do.

Each pod is played on a runtime of its own, by the same code as on a node: its containers are
started, and asked when they end. Nothing is sent anywhere.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

from fleet.clock import NS_PER_S, Draws
from fleet.errors import UsageError
from fleet.k8s.effects import NodeId
from fleet.k8s.pods import ContainerSpec, Pod
from fleet.k8s.schema import part_of
from fleet.k8s.well_known import OWN_PREFIX
from fleet.kubelet.containers.prober import KIND_TEXTS, behavior_of
from fleet.kubelet.environment import Environment
from fleet.profile.container_behavior import ProbeBehavior, ProbeKind
from fleet.profile.loader import load_mix, yaml_mappings
from fleet.profile.option_types import ProfileChoice
from fleet.profile.pod_behavior import OUTCOME_ANNOTATIONS, Outcome, PodBehavior
from fleet.quantity import format_duration
from fleet.runtime.containers import NEVER, Container, RunState
from fleet.runtime.program import Program, Role, role_of, unknown_from
from fleet.runtime.programs import CommandProgram, program_of
from fleet.runtime.runtime import Runtime
from fleet.scenario.placement import TEMPLATES, at_path, group_of
from fleet.wire.api.decode_pod import decode_pod

NAME_MAX = 253
_STARTED_NS = 3600 * NS_PER_S
_HOST_IP = "192.0.2.1"
_DECLARING = frozenset(OWN_PREFIX + each for each in OUTCOME_ANNOTATIONS)
_ROLES = {Role.INIT: "init container", Role.BATCH: "batch", Role.SERVER: "server"}


class Explained(TypedDict):
    """What the containers of an object will do."""

    object: str
    containers: list[dict[str, str]]


def explain_files(texts: Mapping[str, str], choices: tuple[ProfileChoice, ...]) -> list[Explained]:
    """Return what the pods of some YAML texts will do, by where they come from.

    Raises UsageError.
    """
    mix = load_mix(choices) if choices else load_mix()
    env = Environment(mix.model_of(0), Draws(0))
    found = [
        Explained(object=title, containers=[*_containers(pod, env)])
        for origin, text in texts.items()
        for title, pod in _pods(text, origin)
    ]
    if not found:
        raise UsageError(f"{', '.join(texts)}: holds no Pod and no object with a pod template")
    return found


def text_of(found: Sequence[Explained]) -> str:
    """Return what people read of it."""
    lines: list[str] = []
    for each in found:
        lines += ["", each["object"]]
        for container in each["containers"]:
            kind, name, *facts = container.items()
            lines.append(f"  {kind[1]} {name[1]}")
            lines += [f"    {label.replace('_', ' '):<12}{text}" for label, text in facts]
    return "\n".join(lines[1:])


def _pods(text: str, origin: str) -> Iterator[tuple[str, Pod]]:
    for document in yaml_mappings(text, origin):
        for obj in _objects(document, origin):
            found = _template(obj)
            if found is not None:
                yield found[0], _pod(found[0], found[1], origin)


def _objects(document: object, origin: str) -> Iterator[dict[str, object]]:
    """Yield an object, or those of a List."""
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise UsageError(f"{origin}: a document is not a Kubernetes object: it has no kind")
    items = document.get("items")
    if document["kind"].endswith("List") and isinstance(items, list):
        for each in items:
            yield from _objects(each, origin)
        return
    yield document


def _template(obj: dict[str, object]) -> tuple[str, dict[str, object]] | None:
    """Return the title of an object and the pod that it is, or makes; None if it makes none."""
    kind = str(obj["kind"])
    meta = part_of(obj, "metadata")
    name = str(meta.get("name") or meta.get("generateName") or "unnamed")[:NAME_MAX]
    usual = "template" if kind == "PodTemplate" else "spec.template"
    path = TEMPLATES.get((group_of(obj), kind), usual)
    found = next(at_path(obj, [part for part in path.split(".") if part]), {})
    if kind != "Pod" and not isinstance(part_of(found, "spec").get("containers"), list):
        return None
    pod_meta = part_of(found, "metadata")
    own = {"name": name, "namespace": str(meta.get("namespace") or "default"), "uid": name}
    if kind != "Pod":
        own["ownerReferences"] = [{"kind": kind, "name": name, "uid": name, "controller": True}]  # type: ignore[assignment]
    return f"{kind} {name}", {"metadata": {**pod_meta, **own}, "spec": found.get("spec")}


def _pod(title: str, obj: dict[str, object], origin: str) -> Pod:
    try:
        pod = decode_pod(obj)
    except KeyError as error:
        raise UsageError(f"{origin}: {title}: its pod spec lacks {error.args[0]!r}") from error
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        check = "kubectl create --dry-run=client -f FILE says what is wrong"
        raise UsageError(f"{origin}: {title}: its pod spec cannot be read; {check}") from error
    if not pod.spec.containers:
        raise UsageError(f"{origin}: {title}: its pod spec has no containers")
    return pod


def _containers(pod: Pod, env: Environment) -> Iterator[dict[str, str]]:
    behavior = env.model.behavior_of(pod)
    for kind, specs in (("init container", pod.spec.init_containers), ("", pod.spec.containers)):
        for spec in specs:
            is_sidecar = bool(kind) and spec.restart_policy == "Always"
            kind_of = "sidecar" if is_sidecar else kind or "container"
            facts = dict(_lines(pod, spec, behavior, env))
            yield {"kind": kind_of, "name": spec.name, **facts}


def _lines(
    pod: Pod, spec: ContainerSpec, behavior: PodBehavior, env: Environment
) -> Iterator[tuple[str, str]]:
    """Start a container, and yield what will become of it."""
    run_times, started_s = env.model.run_times, _STARTED_NS // NS_PER_S
    runtime = Runtime(NodeId(0), _HOST_IP, "10.0.0.0/24", env.draws, run_times=run_times)
    runtime.create_sandbox(pod)
    container = runtime.start_container(pod, spec, behavior, _STARTED_NS, started_s)
    if container.state is RunState.EXITED:
        yield "start", f"fails: {container.message}"
        return
    program, chosen = program_of(pod, spec), behavior.container(spec.name)
    unknown_ns = unknown_from(
        pod, spec, program.run(runtime.process(pod, spec, container, _STARTED_NS))
    )
    role = role_of(pod, spec, program)
    is_named = bool(spec.command) or (isinstance(program, CommandProgram) and bool(program.words))
    args = f" with {_shown(spec.args)}" if spec.args else ""
    words = _shown(spec.command + spec.args)
    yield "program", words if is_named else f"the entry point of {spec.image}{args}"
    yield (
        "taken_as",
        _declared(pod, spec, behavior) if chosen.outcomes else _taken_as(program, role, unknown_ns),
    )
    run_time = None if unknown_ns is None else role.run_time(run_times)
    yield "ends", _ends(container, chosen.outcomes, unknown_ns or 0, run_time)
    for kind, probe in enumerate((spec.startup_probe, spec.readiness_probe, spec.liveness_probe)):
        if probe is not None:
            found = behavior_of(pod, spec, probe, ProbeKind(kind), chosen)
            where = _shown(probe.command) if probe.handler == "exec" else f"port {probe.port}"
            told = probe.error or _phases(found)
            yield KIND_TEXTS[kind].lower(), f"{probe.handler} {where}: {told}"


def _shown(words: tuple[str, ...]) -> str:
    """Return a command line in one line."""
    return shlex.join(words).replace("\n", "\\n")


def _declared(pod: Pod, spec: ContainerSpec, behavior: PodBehavior) -> str:
    keys = {key.removesuffix(f".{spec.name}") for key, _ in pod.annotations}
    if keys & _DECLARING:
        return "declared: by annotations of the pod"
    return f"declared: by PodBehavior {behavior.name}"


def _taken_as(program: Program, role: Role, unknown_ns: int | None) -> str:
    if not isinstance(program, CommandProgram):
        return f"program {type(program).__name__} of a plug-in"
    if unknown_ns is None:
        return "understood: fleet follows its command"
    first = f"understood up to {format_duration(unknown_ns)}, then " if unknown_ns else ""
    return f"{first}by role: {_ROLES[role]}"


def _ends(
    container: Container, outcomes: Sequence[Outcome], unknown_ns: int, run_time: object
) -> str:
    """Say when it ends; `run_time` is that of its role, after `unknown_ns` that are understood."""
    if len(outcomes) > 1:
        texts = (f"with {each.exit_code} after {each.after}" for each in outcomes)
        return f"one of: {'; '.join(texts)}"
    if container.exit_ns == NEVER:
        return "never: it runs until it is stopped"
    takes_ns = container.exit_ns - _STARTED_NS
    after = "at once" if takes_ns < NS_PER_S // 10 else f"after {format_duration(takes_ns)}"
    if outcomes:
        after = f"after {outcomes[0].after}"
    elif run_time is not None:
        after = f"after {f'{format_duration(unknown_ns)} and ' if unknown_ns else ''}{run_time}"
    return f"with {container.exit_code} {after}"


def _phases(found: ProbeBehavior) -> str:
    texts = []
    for phase in found.phases:
        text = "passes" if phase.answer.is_good else f"fails ({phase.answer.value})"
        if phase.failure_rate:
            text += f", {phase.failure_rate:.0%} of the attempts fail"
        since = f" from {format_duration(phase.after_ns)} on" if phase.after_ns else ""
        texts.append(f"{text}{since}")
    again = f"; again every {format_duration(found.repeat_ns)}" if found.repeat_ns else ""
    return "; ".join(texts) + again
