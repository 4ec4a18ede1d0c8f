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

import enum
from collections.abc import Container

from fleet.clock import NS_PER_S
from fleet.objects.effects import ApiCall, Op
from fleet.profile.node_model import NodeModel

QPS_DEFAULT = 5  # client-go/rest/config.go, DefaultQPS: what a configured 0 means
BURST_DEFAULT = 10  # DefaultBurst


class Client(enum.IntEnum):
    """Which limiter a call goes by.

    The groups of the main client share one, unless kubeAPIQPS is 0: then each has its own.
    """

    CORE = 0
    STORAGE = 1
    RESOURCE = 2
    EVENTS = 3
    UNLIMITED = 4


_CLIENTS: dict[Op, Client] = {
    Op.GET_NODE_HEARTBEAT: Client.UNLIMITED,
    Op.PATCH_NODE_STATUS_HEARTBEAT: Client.UNLIMITED,
    Op.GET_LEASE: Client.UNLIMITED,
    Op.CREATE_LEASE: Client.UNLIMITED,
    Op.RENEW_LEASE: Client.UNLIMITED,
    Op.CREATE_RESOURCE_SLICE: Client.UNLIMITED,  # the DRA driver's own client, another process
    Op.CREATE_EVENT: Client.EVENTS,
    Op.PATCH_EVENT: Client.EVENTS,
    Op.GET_CSINODE: Client.STORAGE,
    Op.PROBE_CSINODE: Client.STORAGE,
    Op.CREATE_CSINODE: Client.STORAGE,
    Op.DELETE_CSINODE: Client.STORAGE,
    Op.UPDATE_CSINODE: Client.STORAGE,
    Op.GET_ATTACHMENT: Client.STORAGE,
    Op.GET_RESOURCE_CLAIM: Client.RESOURCE,
    Op.DELETE_RESOURCE_SLICES: Client.RESOURCE,
    Op.DELETE_DRIVER_SLICES: Client.RESOURCE,
}


def client_of(call: ApiCall) -> Client:
    """Return the client that sends a call."""
    return _CLIENTS.get(call.op, Client.CORE)


class ClientLimits:
    """The buckets of all nodes of a process that are not full."""

    __slots__ = ("_full_ns",)

    def __init__(self) -> None:
        self._full_ns: dict[int, int] = {}  # by node and client

    def wait_ns(self, call: ApiCall, model: NodeModel, now_ns: int) -> int:
        """Take a token for a call; return how long it has to wait for it, 0 for not at all."""
        client = client_of(call)
        if client is Client.UNLIMITED:
            return 0
        if client is Client.EVENTS:
            qps, burst = model.kubelet.event_record_qps, model.kubelet.event_burst
        else:
            qps, burst = model.kubelet.kube_api_qps, model.kubelet.kube_api_burst
            if qps:
                client = Client.CORE
        interval_ns = NS_PER_S // (qps or QPS_DEFAULT)
        bucket = call.node * len(Client) + client
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
