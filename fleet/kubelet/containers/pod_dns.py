"""What a kubelet says of a pod's DNS settings each time that it makes them.

They are made for the sandbox, and again by each sync before containers are looked at.
Source: pkg/kubelet/network/dns/dns.go, GetPodDNS, formDNSConfigFitsLimits;
pkg/kubelet/kuberuntime/kuberuntime_sandbox.go, generatePodSandboxConfig.
"""

from fleet.k8s.pods import USUAL_NETWORK, Pod
from fleet.kubelet.events import Reason
from fleet.kubelet.turn import Turn
from fleet.runtime.resolv_conf import SERVERS_MAX, PodDNS, pod_dns

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
    settings = turn.env.model.kubelet.dns
    is_usual = pod.spec.network == USUAL_NETWORK and 0 < len(settings.servers) <= SERVERS_MAX
    if is_usual or not turn.env.fidelity.records_events:
        return None
    return pod_dns(pod, settings, turn.facts.host_ips)
