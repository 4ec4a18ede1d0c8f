"""What speaks against a resize of a pod that runs, before anything of it is applied.

Source: pkg/kubelet/kuberuntime/kuberuntime_manager.go, doPodResizeAction,
validateMemoryResizeAction.
Differs: the pod's cgroup cannot be written if that of one of its containers cannot.
"""

from collections.abc import Iterator, Mapping

from fleet.clock import NS_PER_S
from fleet.k8s.pods import Pod, PodSpec
from fleet.kubelet.containers.allocation_manager import ResizeActions
from fleet.kubelet.containers.pod_allocation import changed, limited_json, lowered_memory_limit
from fleet.kubelet.turn import Turn
from fleet.runtime.container_usage import container_usage
from fleet.runtime.containers import RunState, Sandbox

POD_BELOW = "attempting to set pod memory limit (%d) below current usage (%d)"
CONTAINER_BELOW = 'attempting to set container "%s" memory limit (%d) below current usage (%d)'


def resize_error(
    pod: Pod,
    sandbox: Sandbox,
    resize: ResizeActions,
    had: Mapping[str, bytes],
    in_cgroup: PodSpec,
    turn: Turn,
) -> str:
    """Return why nothing of a resize can be applied, "" if nothing speaks against it.

    `had` are the resources that containers still have, `in_cgroup` what the pod as a whole has.
    """
    wanted = {spec.name: limited_json(spec, pod.spec) for spec in pod.spec.all_containers}
    lowered = {name: lowered_memory_limit(had[name], wanted[name]) for name in resize.update}
    if resize.kill or any("memory" in changed(had[name], wanted[name]) for name in resize.update):
        whole = lowered_memory_limit(in_cgroup.ended_json, pod.spec.ended_json)
        below = list(_below_usage(_usage(pod, sandbox, turn), lowered, whole))
        if below:
            text = below[0] if len(below) == 1 else f"[{', '.join(dict.fromkeys(below))}]"
            return f"cannot decrease memory limits: {text}"
    if not resize.whole:
        return ""
    behavior = turn.behavior(pod)
    errors = (behavior.container(spec.name).life.resize_error for spec in pod.spec.containers)
    return next((each for each in errors if each), "")


def _below_usage(usage: Mapping[str, int], lowered: Mapping[str, int], whole: int) -> Iterator[str]:
    """Yield what would be below what is used; upstream prints the pod's usage in each."""
    used = sum(usage.values())
    if whole and used >= whole:
        yield POD_BELOW % (whole, used)
    for name, memory in usage.items():
        limit = lowered.get(name, 0)
        if limit and memory >= limit:
            yield CONTAINER_BELOW % (name, limit, used)


def _usage(pod: Pod, sandbox: Sandbox, turn: Turn) -> dict[str, int]:
    """Return the memory that the containers of a pod use; what is not declared fits."""
    behavior = turn.behavior(pod)
    found = {}
    for container in sandbox.containers:
        spec = pod.find(container.name)
        if spec is not None and container.state is RunState.RUNNING:
            usage = container_usage(spec.resources_json, behavior.container(spec.name).usage)
            start_ns = container.started_s * NS_PER_S - turn.env.wall_offset_ns
            found[spec.name] = usage.memory.at(turn.now_ns - start_ns)
    return found
