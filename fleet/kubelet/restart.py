"""A kubelet whose process restarts: what the machine keeps, and what the new process learns anew.

The container runtime, what it runs and the images outlive a kubelet; so does all that the API
server has: Node, Lease, CSINode, the statuses of pods. Back-offs, probe results, volumes' state,
what the event correlator remembers and every connection and watch are the process's and are lost.
Source: pkg/kubelet/kubelet.go, NewMainKubelet, Run: nothing but checkpoints is read at a start.
"""

from fleet.k8s.effects import NodeId
from fleet.kubelet.environment import Environment
from fleet.kubelet.kubelet import VirtualKubelet


def boot(env: Environment, node: NodeId, down_ns: int, now_ns: int) -> None:
    """Let a machine boot that was off since an instant: another bootID, and nothing runs there."""
    env.boots[node] = env.boots.get(node, 0) + 1
    runtime = env.runtimes.get(node)
    if runtime is not None:
        runtime.boot(down_ns, now_ns, env.wall_offset_ns)


def can_restart(kubelet: VirtualKubelet) -> bool:
    """Return whether there is one again at once: a machine that shuts down starts none."""
    return not kubelet.is_shutting_down


def restarted(old: VirtualKubelet) -> VirtualKubelet:
    """Return the kubelet that follows on the same machine; the old one falls silent."""
    old.stop()
    if old.pods is not None:
        old.env.runtimes[old.node] = old.pods.runtime
    new = VirtualKubelet(old.node, old.name, old.facts.host_ips, old.env)
    # How the server sees the node and its Lease does not begin anew.
    new.is_ready = old.is_ready
    new.lease.renewed_ns = old.lease.renewed_ns
    return new
