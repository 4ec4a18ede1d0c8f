"""Client-side limits: the token buckets of a kubelet's API clients.

    main        kubeAPIQPS, kubeAPIBurst (50, 100)         all but what follows
    events      eventRecordQPS, eventBurst (50, 100)       events
    heartbeat   no limit                                   Lease, node status

A bucket is one number, when it will be full again, and kept only until then: a node that asks for
little costs nothing. Whoever finds it empty is told how long to wait for its own token, so that
requests leave in the order in which they came.
Source: cmd/kubelet/app/server.go, run; client-go/rest/request.go, tryThrottle; client-go/rest/
config.go, RESTClientForConfigAndClient; golang.org/x/time/rate, Limiter.reserveN.
"""

from collections.abc import Container

from fleet.clock import NS_PER_S
from fleet.k8s.effects import ApiCall, Client
from fleet.profile.node_model import NodeModel
from fleet.wire.api.operations import OPERATIONS

QPS_DEFAULT = 5  # client-go/rest/config.go, DefaultQPS: what a configured 0 means
BURST_DEFAULT = 10  # DefaultBurst
UNLIMITED = frozenset((Client.HEARTBEAT, Client.DRIVER))


class ClientLimits:
    """The buckets of all nodes of a process that are not full."""

    __slots__ = ("_full_ns",)

    def __init__(self) -> None:
        self._full_ns: dict[int, int] = {}  # by node and client

    def wait_ns(self, call: ApiCall, model: NodeModel, now_ns: int) -> int:
        """Take a token for a call; return how long it has to wait for it, 0 for not at all."""
        return self.take(call.node, OPERATIONS[call.op].client, model, now_ns)

    def take(self, node: int, client: Client, model: NodeModel, now_ns: int) -> int:
        """Take a token of a client; return how long it has to wait for it."""
        if client in UNLIMITED:
            return 0
        if client is Client.EVENTS:
            qps, burst = model.kubelet.event_record_qps, model.kubelet.event_burst
        else:
            qps, burst = model.kubelet.kube_api_qps, model.kubelet.kube_api_burst
            if qps:
                client = Client.CORE
        interval_ns = NS_PER_S // (qps or QPS_DEFAULT)
        bucket = node * len(Client) + client
        full_ns = max(self._full_ns.get(bucket, 0), now_ns) + interval_ns
        self._full_ns[bucket] = full_ns
        return max(0, full_ns - now_ns - interval_ns * (burst or BURST_DEFAULT))

    def forget(self, now_ns: int) -> None:
        """Drop the buckets that are full again."""
        if self._full_ns:
            self._full_ns = {key: at for key, at in self._full_ns.items() if at > now_ns}

    def drop(self, nodes: Container[int]) -> None:
        """Forget the clients of nodes whose kubelets restart: new ones begin with full buckets."""
        self._full_ns = {
            key: at for key, at in self._full_ns.items() if key // len(Client) not in nodes
        }

    def __len__(self) -> int:
        """Return how many buckets are kept."""
        return len(self._full_ns)
