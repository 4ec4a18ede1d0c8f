"""The runtime handler of a pod: what its RuntimeClass names, if the node has it.

Source: pkg/kubelet/runtimeclass/runtimeclass_manager.go, LookupRuntimeHandler.
"""

from fleet.kubelet.turn import Turn
from fleet.objects.pods import Pod
from fleet.runtime.pod_addresses import no_runtime


def handler_error(pod: Pod, turn: Turn) -> str:
    """Return why the runtime has no handler for a pod, "" if it has.

    A node has the handlers of its `status.runtimeHandlers`. Fidelity `light` reads no RuntimeClass.
    """
    name = pod.spec.runtime_class
    if not name or turn.env.light:
        return ""
    found = turn.env.runtime_classes.get(name)
    if found is None:
        return f'runtimeclass.node.k8s.io "{name}" not found'
    if any(each.name == found.handler for each in turn.env.model.runtime_handlers):
        return ""
    return no_runtime(found.handler, pod.uid, turn.now_ns)
