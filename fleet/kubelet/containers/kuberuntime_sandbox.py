"""What the sandbox of a pod is made with: its runtime handler and its DNS settings.

The handler is what the pod's RuntimeClass names, if the node has it and it can do what the pod
asks. DNS settings are made for the sandbox, and again by each sync before containers are looked at:
a kubelet reports their problems each time.
Source: pkg/kubelet/runtimeclass/runtimeclass_manager.go, LookupRuntimeHandler;
pkg/kubelet/network/dns/dns.go, GetPodDNS, formDNSConfigFitsLimits;
pkg/kubelet/kuberuntime/kuberuntime_sandbox.go, generatePodSandboxConfig.
"""

from fleet.k8s.pods import USUAL_NETWORK, Pod
from fleet.kubelet.environment import Environment
from fleet.kubelet.events import Reason
from fleet.kubelet.turn import Turn
from fleet.profile.node_model import RuntimeHandler
from fleet.runtime.container_config import SERVERS_MAX, PodDNS, hostname_error, pod_dns
from fleet.runtime.pod_addresses import no_runtime


def sandbox_error(pod: Pod, turn: Turn) -> str:
    """Return why no sandbox can be made for a pod on this node, "" if one can.

    Source: pkg/kubelet/kuberuntime/kuberuntime_sandbox.go, generatePodSandboxConfig,
    createPodSandbox: the host name comes first, then the namespaces, then the handler.
    """
    domain = turn.env.model.dns.domain
    return hostname_error(pod, domain) or handler_error(pod, turn)


def handler_error(pod: Pod, turn: Turn) -> str:
    """Return why the runtime has no handler for a pod, "" if it has.

    A node has the handlers of its `status.runtimeHandlers`. Fidelity `light` reads no RuntimeClass,
    and takes it that the handler is there.
    """
    env, name, wanted = turn.env, pod.spec.runtime_class, _wanted(pod, turn.env)
    if name and not env.fidelity.reads_objects:
        return ""
    if wanted is None:
        return f'runtimeclass.node.k8s.io "{name}" not found'
    handler = _handler(wanted, env)
    if not pod.spec.network.host_users and (handler is None or not handler.user_namespaces):
        return _no_users(wanted, env, is_known=handler is not None)
    if not name or handler is not None:
        return ""
    return no_runtime(wanted, pod.uid, turn.now_ns)


def _wanted(pod: Pod, env: Environment) -> str | None:
    """Return the name of the handler that a pod wants, None if its RuntimeClass is not there."""
    if not pod.spec.runtime_class:
        return ""
    found = env.runtime_classes.get(pod.spec.runtime_class)
    return None if found is None else found.handler


def _handler(name: str, env: Environment) -> RuntimeHandler | None:
    return next((each for each in env.model.runtime_handlers if each.name == name), None)


def _no_users(name: str, env: Environment, *, is_known: bool) -> str:
    """Source: userns/userns_manager.go, GetOrCreateUserNamespaceMappings; kubelet_getters.go."""
    who = f'RuntimeClass handler "{name}"' if name else "runtime"
    text = f"can't set `spec.hostUsers: false`, {who} does not support user namespaces"
    if is_known or not env.model.runtime_handlers:
        return text
    return f'{text}: the handler "{name}" is not known'


def mounts_recursively(pod: Pod, env: Environment) -> bool:
    """Return whether the handler of a pod supports recursive read-only mounts.

    Source: pkg/kubelet/kubelet_pods.go, runtimeClassSupportsRecursiveReadOnlyMounts.
    """
    if pod.spec.runtime_class and not env.fidelity.reads_objects:
        return True
    wanted = _wanted(pod, env)
    handler = None if wanted is None else _handler(wanted, env)
    return handler is not None and handler.recursive_read_only_mounts


_LACKS_DNS = (
    "kubelet does not have ClusterDNS IP configured and cannot create Pod using "
    '"ClusterFirst" policy. Falling back to "Default" policy.'
)


def tell_dns(pod: Pod, turn: Turn) -> None:
    """Record the events of a pod's DNS settings; most pods have none."""
    found = _settings(pod, turn)
    if found is None:
        return
    if found.lacks_server:
        reason = Reason.MISSING_CLUSTER_DNS
        turn.node_event(reason, _LACKS_DNS)
        turn.event(pod, reason, f'pod: "{pod.name}_{pod.namespace}({pod.uid})". {_LACKS_DNS}')
    for message in found.problems:
        turn.event(pod, Reason.DNS_CONFIG_FORMING, message)


def has_dns_events(pod: Pod, turn: Turn) -> bool:
    """Return whether each sync of a pod says something of its DNS settings."""
    found = _settings(pod, turn)
    return found is not None and (found.lacks_server or bool(found.problems))


def _settings(pod: Pod, turn: Turn) -> PodDNS | None:
    """Return the settings of a pod, None if nothing can be said of them."""
    settings = turn.env.model.dns
    is_usual = pod.spec.network == USUAL_NETWORK and 0 < len(settings.servers) <= SERVERS_MAX
    if (is_usual and not settings.host_searches) or not turn.env.fidelity.records_events:
        return None
    return pod_dns(pod, settings, turn.facts.host_ips)
