"""The short way of a heartbeat: a renewal is sent, and its success taken, without a kubelet's turn.

    due -> the bytes of the Lease, with a new time -> the wire
    200 -> the bytes for the next time -> the wheel

Nearly all that an idle fleet does is this, and nobody would read the effects and the reply that the
long way makes for it. The Lease's own machine says whether a renewal is an ordinary one. Whatever
is not goes the long way, which knows all cases: no Lease yet, a refusal, a conflict, no answer, an
answer that cannot be read, calls that a fault hinders, a kubelet whose story is kept, a Node that
others make. Both ways build and count alike.
"""

from fleet.errors import RemoteProtocolError
from fleet.k8s.effects import ApiCall, LeaseRenewal, NodeId, Op, Outbox, Timer
from fleet.k8s.pods import LeaseView
from fleet.reactor.calls import Calls, count_answer, count_renewal
from fleet.reactor.process import Entry, Process
from fleet.wire.http2.messages import Response

RENEW_LEASE, RENEWAL_DUE = Op.RENEW_LEASE, Timer.RENEW_LEASE


class Heartbeats:
    """Renews the Leases of one process as long as nothing out of the ordinary happens."""

    def __init__(self, process: Process, calls: Calls) -> None:
        self._process = process
        self._calls = calls
        self._row = process.codec.operations[RENEW_LEASE]
        self._malformed = process.codec.malformed

    def send(self, node: NodeId, entry: Entry, now_ns: int, out: Outbox) -> bool:
        """Send the renewal that is due; return False, and do nothing, if it is no ordinary one.

        It belongs to the heartbeat client, which has no limit: see `Client`.
        """
        kubelet = entry.kubelet
        if kubelet is None or entry.story is not None or node in self._calls.hindrances:
            return False
        if node in kubelet.env.holds:
            return False
        base = kubelet.begin_renewal(now_ns)
        if not base:
            return False
        call = ApiCall(node, RENEW_LEASE, "", LeaseRenewal(base, kubelet.env.wall_ns(now_ns)))
        try:
            request = self._row.build(call, entry.caller)
        except RemoteProtocolError:
            out.append(call)  # the long way says so to the kubelet
        else:
            self._process.wires.nodes.send(entry.pool, request, call)
        return True

    def take(self, call: ApiCall, entry: Entry, response: Response, now_ns: int) -> bool:
        """Take the success of a renewal; return False, and do nothing, if that is not what came."""
        kubelet = entry.kubelet
        if response.code != 200 or kubelet is None or entry.story is not None:
            return False
        if call.node in kubelet.env.holds:
            return False
        try:
            lease = self._row.read(response.body) if self._row.read else None
        except self._malformed:
            return False
        if type(lease) is not LeaseView or not kubelet.lease.is_first_try:
            return False
        process = self._process
        count_answer(process, self._row, response)
        count_renewal(process.counts, kubelet, response, is_first=True)
        due_ns = kubelet.renewed(lease.body, response.arrived_ns, now_ns)
        process.wheel.set(due_ns, call.node, RENEWAL_DUE)
        return True
